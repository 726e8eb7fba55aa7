"""VictoriaMetrics keeps the numbers; an embedded file beside the brain keeps what is not a number.

VictoriaMetrics takes line protocol, names a series ``measurement_field`` and turns text into 0, so attributes of GPUs,
reasons of missing values, events, findings and predictions go to the SQLite file of `store.path`. Its other rules:

- instants are milliseconds;
- two values of one series at one instant: without ``-dedup.minScrapeInterval`` both are kept, with it the greater one
  stays. A second write of other values to one instant is therefore not "last wins" here (`LAST_WINS` is False);
- a value becomes visible to queries about a second after it was acknowledged;
- instant queries look back 5 minutes only, so this store reads by ``/api/v1/export``, which gives raw samples;
- a malformed line is skipped and the write still answers 204; retention is the server's ``-retentionPeriod``.
"""

from __future__ import annotations

import gzip
import json
from collections import defaultdict
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import groupby

import httpx2
import numpy as np

from tocsin.config.settings import StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND
from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import BY_FIELD, spec_of, split_variant, variant
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading
from tocsin.store.lineprotocol import encode
from tocsin.store.port import Series, StoreRejected, StoreUnavailable
from tocsin.store.sqlite import SqliteStore

LAST_WINS = False
"""A second write to one (gpu, at_ms) adds fields; where it changes a value, the server decides which one stays."""

_PREFIX = "gpu_"
_EVERY = f'__name__=~"{_PREFIX}({"|".join(BY_FIELD)})"'

Values = dict[tuple[str, int], dict[str, float]]


class VictoriaMetricsStore:
    """Implements `tocsin.store.port.Store`, except that a changed value at one instant is the server's to choose."""

    name = "victoriametrics"

    def __init__(self, settings: StoreSettings) -> None:
        self._words = SqliteStore(settings.path)
        self._http = httpx2.Client(base_url=settings.url, timeout=settings.timeout_seconds, trust_env=False)

    def init(self) -> None:
        self._words.init()
        self._send("GET", "/health")

    def write(self, batch: Batch) -> None:
        if text := encode(batch):
            body = gzip.compress(text.encode(), compresslevel=1)
            self._send(
                "POST", "/api/v2/write", params={"precision": "ms"}, content=body, headers={"Content-Encoding": "gzip"}
            )
        # Last, so that what the file lists can be found at the server.
        self._words.write(replace(batch, readings=[replace(reading, values={}) for reading in batch.readings]))

    def _send(self, method: str, path: str, **more: object) -> httpx2.Response:
        try:
            answer = self._http.request(method, path, **more)  # type: ignore[arg-type]
        except httpx2.HTTPError as error:
            why = str(error) or type(error).__name__
            raise StoreUnavailable(f"VictoriaMetrics at {self._http.base_url}: {why}") from None
        if answer.status_code >= 500 or answer.status_code == 429:
            raise StoreUnavailable(f"VictoriaMetrics at {answer.url} answers {answer.status_code}: {answer.text[:200]}")
        if answer.status_code >= 400:
            raise StoreRejected(f"VictoriaMetrics at {answer.url} answers {answer.status_code}: {answer.text[:200]}")
        return answer

    # ------------------------------------------------------------------ reading

    def gpus(self) -> list[Gpu]:
        return self._words.gpus()

    def latest(self, since_ms: int) -> list[Reading]:
        found = self._words.latest(since_ms)
        if not found:
            return []
        instants = [reading.at_ms for reading in found]
        return list(self._joined(found, self._export(None, _EVERY, min(instants), max(instants) + 1)))

    def readings(self, start_ms: int, end_ms: int, gpus: Collection[str] | None = None) -> Iterator[Reading]:
        # An hour at a time: what the server sends for it is held in memory.
        for _, group in groupby(self._words.readings(start_ms, end_ms, gpus), key=lambda r: r.at_ms // HOUR):
            part = list(group)
            yield from self._joined(part, self._export(gpus, _EVERY, part[0].at_ms, part[-1].at_ms + 1))

    def series(self, gpu: str, metrics: Sequence[str], start_ms: int, end_ms: int) -> Series:
        known = self._words.series(gpu, (), start_ms, end_ms)
        names = {split_variant(name)[0] for name in metrics}
        found: Values = {}
        if metrics and known.at_ms.size:
            found = self._export([gpu], _one_of("__name__", map(_series_name, names)), start_ms, end_ms)
        values = np.full((known.at_ms.size, len(metrics)), np.nan)
        for row, at_ms in enumerate(known.at_ms):
            there = found.get((gpu, int(at_ms)), {})
            values[row] = [there.get(name, np.nan) for name in metrics]
        return Series(gpu, tuple(metrics), known.at_ms, values)

    @staticmethod
    def _joined(found: Sequence[Reading], values: Values) -> Iterator[Reading]:
        for reading in found:
            there = values.get((reading.gpu.uuid, reading.at_ms), {})
            missing = {name: why for name, why in reading.missing.items() if name not in there}
            yield replace(reading, values=there, missing=missing)

    def _export(self, gpus: Collection[str] | None, names: str, start_ms: int, end_ms: int) -> Values:
        match = ["{" + names + "}"]
        if gpus is not None:
            # A MIG instance carries its parent's UUID as gpu_uuid.
            match = [f"{{{names},{_one_of(label, gpus)}}}" for label in ("gpu_uuid", "mig_uuid")]
        # `end` is inclusive there.
        span = {"start": str(start_ms / SECOND), "end": str((end_ms - 1) / SECOND)}
        answer = self._send("POST", "/api/v1/export", data={"match[]": match, **span})
        values: Values = defaultdict(dict)
        for line in answer.text.splitlines():
            row = json.loads(line)
            labels = row["metric"]
            key = _key_of(labels)
            uuid = labels.get("mig_uuid") or labels.get("gpu_uuid")
            if key is None or uuid is None:
                continue
            for at_ms, value in zip(row["timestamps"], row["values"], strict=True):
                if value is not None and start_ms <= at_ms < end_ms:
                    values[uuid, at_ms][key] = float(value)
        return values

    def events(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Event]:
        return self._words.events(start_ms, end_ms, gpu)

    def findings(self, start_ms: int, end_ms: int) -> list[Finding]:
        return self._words.findings(start_ms, end_ms)

    def predictions(self, start_ms: int, end_ms: int, gpu: str | None = None) -> list[Prediction]:
        return self._words.predictions(start_ms, end_ms, gpu)

    # ------------------------------------------------------------------ keeping

    def prune(self, before_ms: int) -> int:
        return self._words.prune(before_ms)

    def close(self) -> None:
        self._words.close()
        self._http.close()


def _series_name(metric: str) -> str:
    spec = spec_of(metric)
    return _PREFIX + (spec.field if spec is not None else metric)


def _key_of(labels: Mapping[str, str]) -> str | None:
    """The metric or variant that a series is; None for a series that is none."""
    spec = BY_FIELD.get(labels["__name__"].removeprefix(_PREFIX))
    if spec is None:
        return None
    value = labels.get(spec.label) if spec.label else None
    return spec.name if value is None else variant(spec.name, spec.label, value)


def _one_of(label: str, values: Collection[str] | Iterator[str]) -> str:
    """A selector for any of `values`; they are quoted as a regular expression first, then as a string."""
    pattern = "|".join("".join(c if c.isalnum() or c in "_-" else f"\\{c}" for c in value) for value in values)
    return f"{label}=~{json.dumps(pattern)}"
