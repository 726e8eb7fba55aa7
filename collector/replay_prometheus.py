"""Text dumps of dcgm-exporter: one scrape, or several one after the other, in one file or many.

A line's own timestamp dates it; else the instant in the file's name (``...2025-03-14T00:10:00Z...``, with or without
separators, or 10 to 13 digits of epoch); else the file's modification time. A sample that comes again without
a timestamp begins the next scrape, `INTERVAL_MS` later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from prometheus_client.parser import text_string_to_metric_families
from prometheus_client.samples import Sample

from tocsin.collector.replay_bytes import pieces
from tocsin.collector.replay_samples import Samples
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.identity import Gpu, normalise_pci_bus_id
from tocsin.domain.metrics import BY_DCGM_NAME, MetricSpec, variant

INTERVAL_MS = 30 * SECOND
"""dcgm-exporter's default collection interval (option ``-c``)."""

_ISO = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ ](\d\d)[:-]?(\d\d)[:-]?(\d\d)(?:[.]\d+)?")
_EPOCH = re.compile(r"(?<!\d)(\d{13}|\d{10})(?!\d)")
_BLANK = "value is blank, NaN or infinite"


def instant_of_name(name: str) -> int | None:
    """The instant in a file name, UTC; None where there is none."""
    match = _ISO.search(name)
    if match is not None:
        year, month, day, hour, minute, second = match.groups()
        try:
            return from_iso(f"{year}-{month}-{day}T{hour}:{minute}:{second}+00:00")
        except ValueError:
            return None
    digits = _EPOCH.search(name)
    if digits is None:
        return None
    return int(digits.group(1)) * (SECOND if len(digits.group(1)) == 10 else 1)


@dataclass(frozen=True, slots=True)
class _Labels:
    """Labels of a line under one spelling: dcgm-exporter changed upper and lower case between releases."""

    by_name: Mapping[str, str]

    def first(self, *names: str) -> str:
        return next((self.by_name[name] for name in names if self.by_name.get(name)), "")


def _gpu(labels: _Labels) -> Gpu | None:
    """The GPU, or MIG instance, of a line; None for a line of something else (a CPU, a switch)."""
    host = labels.first("hostname", "node", "instance")
    index = labels.first("gpu")
    uuid = labels.first("uuid", "gpu_uuid")
    if not uuid and not index:
        return None
    uuid = uuid or f"{host}/gpu{index}"
    instance = labels.first("gpu_i_id")
    return Gpu(
        uuid=f"{uuid}/gi{instance}" if instance else uuid,
        host=host,
        index=int(index) if index.isdigit() else None,
        model=labels.first("modelname", "model_name"),
        pci_bus_id=normalise_pci_bus_id(labels.first("pci_bus_id")),
        parent=uuid if instance else "",
        mig_profile=labels.first("gpu_i_profile"),
    )


def _key(spec: MetricSpec, labels: _Labels) -> str:
    by = {"link": "nvlink"}.get(spec.label, spec.label)
    value = labels.first(by) if by else ""
    return variant(spec.name, spec.label, value) if value else spec.name


def _samples(path: Path, counts: Counter[str]) -> Iterator[Sample]:
    """Samples of DCGM fields in `path`, in order; counts lines, and lines that cannot be parsed."""
    for piece in pieces(path):
        for line in piece.decode("utf-8", "replace").splitlines():
            if not line.startswith("DCGM_FI_"):
                continue
            try:
                yield from (s for family in text_string_to_metric_families(line) for s in family.samples)
            except (ValueError, IndexError, TypeError):
                counts["not a sample line"] += 1


class _Dater:
    """Gives each sample its instant."""

    def __init__(self, path: Path) -> None:
        named = instant_of_name(path.name)
        self._at_ms = int(path.stat().st_mtime * SECOND) if named is None else named
        self._seen: set[tuple[str, str]] = set()

    def at_ms(self, sample: Sample, identity: str) -> int:
        if sample.timestamp is not None:
            return round(float(sample.timestamp) * SECOND)
        key = (sample.name, identity)
        if key in self._seen:
            self._seen.clear()
            self._at_ms += INTERVAL_MS
        self._seen.add(key)
        return self._at_ms


def read_prometheus(path: Path, samples: Samples) -> None:
    """Add everything in `path` to `samples`; what cannot be used is counted and reported there.

    Raises InputError where the file ends early or is damaged, after all before that has been added.
    """
    counts: Counter[str] = Counter()
    rows: list[tuple[int, int, int, float]] = []
    try:
        dater = _Dater(path)
        for sample in _samples(path, counts):
            samples.rows += 1
            spec = BY_DCGM_NAME.get(sample.name)
            labels = _Labels({name.lower(): value.strip() for name, value in sample.labels.items()})
            gpu = _gpu(labels)
            if spec is None or gpu is None:
                continue
            key = _key(spec, labels)
            at_ms = dater.at_ms(sample, f"{gpu.host}|{gpu.uuid}|{key}")
            samples.see(gpu.host, at_ms)
            rows.append((samples.gpu(gpu), samples.metric(key, spec.dcgm_scale), at_ms, float(sample.value)))
    finally:
        if rows:
            table = np.array([row[:3] for row in rows], np.int64)
            values = np.array([row[3] for row in rows], np.float64)
            blank = samples.add(table[:, 0], table[:, 1], table[:, 2], values)
            if blank:
                counts[_BLANK] += blank
        samples.report(path, counts)
