"""Selectors of VictoriaMetrics, and its export: stored samples as they are, a line of JSON for each series."""

from __future__ import annotations

import json
import re
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np

from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import BY_FIELD, METRICS, split_variant, variant
from tocsin.store import points
from tocsin.store.grid import Instants, Numbers

MARK = "gpu_info_index"
"""Written with every reading, by the store as by the agent: it tells the instants of a GPU without its other series."""

MARKS = (MARK, "gpu_temperature_celsius", "gpu_power_watts", "gpu_memory_used_bytes")
"""What nearly every reading has, also one that VictoriaMetrics scraped itself."""

_OTHERS = "gpu_(event|finding|prediction|info|owner)_.+"
_EVERY = f'__name__=~"gpu_.+",__name__!~"{_OTHERS}"'
ANY_MARK = f'{{__name__=~"{"|".join(MARKS)}"}}'
_MAX_NAMED = 100
"""More GPUs than these are not named in a selector: all are read, and the others left out here."""

_STAMPS = b',"timestamps":['
_MAX_STAMPS = 4_096


@dataclass(slots=True)
class Exported:
    """One series: the metric or variant `key` of `gpu`, or the reasons for its absence; empty key for `MARK`."""

    gpu: Gpu
    key: str
    is_reason: bool
    at_ms: Instants
    values: Numbers


def every_series(gpus: Collection[str] | None) -> list[str]:
    """Selectors of all that readings of `gpus` are made of."""
    return _of_gpus(_EVERY, gpus)


def chosen_series(metrics: Iterable[str], gpus: Collection[str] | None) -> list[str]:
    """Selectors of `MARK` and of the series of `metrics`; names that nobody knows are left out."""
    plain = {MARK}
    labelled: dict[tuple[str, str], set[str]] = {}
    for key in metrics:
        name, _, value = split_variant(key)
        spec = METRICS.get(name)
        if spec is not None and spec.label:
            labelled.setdefault((name, spec.label), set()).add(value)
        elif spec is not None:
            plain.add(name)
    found = _of_gpus(f'__name__=~"{"|".join(sorted(plain))}"', gpus)
    for (name, label), values in sorted(labelled.items()):
        found += _of_gpus(f'__name__="{name}",{label}=~{_one_of(values)}', gpus)
    return found


def _of_gpus(condition: str, gpus: Collection[str] | None) -> list[str]:
    if gpus is None or len(gpus) > _MAX_NAMED:
        return [f"{{{condition}}}"]
    chosen = _one_of(gpus)
    return [f'{{{condition},gpu_uuid=~{chosen},mig_uuid=""}}', f"{{{condition},mig_uuid=~{chosen}}}"]


def _one_of(values: Collection[str]) -> str:
    return json.dumps("|".join(re.escape(value) for value in sorted(values)), ensure_ascii=False)


def lines_of(chunks: Iterable[bytes]) -> Iterator[bytes]:
    """Whole lines, without their ends, of a body that comes in pieces; empty ones are left out."""
    rest: list[bytes] = []
    for chunk in chunks:
        head, newline, tail = chunk.rpartition(b"\n")
        if not newline:
            rest.append(tail)
            continue
        rest.append(head)
        yield from filter(None, b"".join(rest).split(b"\n"))
        rest = [tail]
    yield from filter(None, (b"".join(rest),))


def parse(lines: Iterable[bytes], gpus: Collection[str] | None) -> Iterator[Exported]:
    """The series of an export that belong to readings, of all GPUs or of `gpus`; samples without a number are left out.

    Many series have the same instants, so their text is parsed once.
    """
    stamps: dict[bytes, Instants] = {}
    chosen = None if gpus is None else set(gpus)
    for line in lines:
        cut = line.rindex(_STAMPS)
        document = json.loads(line[:cut].decode() + "}")
        labels = document["metric"]
        key = _key(labels)
        if key is None:
            continue
        gpu = _gpu(labels["gpu_uuid"], labels.get("host", ""), labels.get("mig_uuid", ""))
        if chosen is not None and gpu.uuid not in chosen:
            continue
        at_ms = stamps.get(line[cut:])
        if at_ms is None:
            if len(stamps) >= _MAX_STAMPS:
                stamps.clear()
            at_ms = stamps[line[cut:]] = np.array(json.loads(line[cut + len(_STAMPS) - 1 : -1]), dtype=np.int64)
        values = np.array(document["values"], dtype=np.float64)
        if b"null" in line:
            there = ~np.isnan(values)
            at_ms, values = at_ms[there], values[there]
        yield Exported(gpu, *key, at_ms, values)


@lru_cache(maxsize=65_536)
def _gpu(uuid: str, host: str, mig: str) -> Gpu:
    return points.gpu_of_tags({"gpu_uuid": uuid, "host": host, "mig_uuid": mig})


def _key(labels: Mapping[str, str]) -> tuple[str, bool] | None:
    """Metric key of a series, and whether it holds reasons; None for a series that is none of ours."""
    if not labels.get("gpu_uuid"):
        return None
    if labels["__name__"] == MARK:
        return "", False
    field = labels["__name__"].removeprefix("gpu_")
    is_reason = field not in BY_FIELD
    spec = BY_FIELD.get(field.removeprefix("missing_"))
    if spec is None:
        return None
    value = labels.get(spec.label, "") if spec.label else ""
    return (variant(spec.name, spec.label, value) if value else spec.name), is_reason


def clusters(newest: Mapping[str, int], span_ms: int) -> list[tuple[int, int, Sequence[str]]]:
    """The GPUs of `newest` by instant, in groups of at most `span_ms`: first and last instant, and the UUIDs."""
    found: list[tuple[int, int, list[str]]] = []
    for at_ms, uuid in sorted((at_ms, uuid) for uuid, at_ms in newest.items()):
        if found and at_ms < found[-1][0] + span_ms:
            first, _, members = found[-1]
            members.append(uuid)
            found[-1] = (first, at_ms, members)
        else:
            found.append((at_ms, at_ms, [uuid]))
    return [(first, last, members) for first, last, members in found]
