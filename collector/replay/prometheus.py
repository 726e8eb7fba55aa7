"""Text dumps of dcgm-exporter: one scrape, or several one after the other, in one file or many.

A line's own timestamp dates it; else the instant in the file's name (``...2025-03-14T00:10:00Z...``, with or without
separators, or 10 to 13 digits of epoch); else the file's modification time. A sample that comes again without
a timestamp begins the next scrape, `INTERVAL_MS` later.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from tocsin.collector.dcgm.fields import Field
from tocsin.collector.dcgm.labels import Head
from tocsin.collector.dcgm.lines import Heads, Sample, samples
from tocsin.collector.replay.bytes import pieces, unreadable
from tocsin.collector.replay.samples import Samples
from tocsin.domain.clock import SECOND, from_iso
from tocsin.domain.identity import Gpu

INTERVAL_MS = 30 * SECOND
"""dcgm-exporter's default collection interval (option ``-c``)."""

_ISO = re.compile(r"(\d{4})-?(\d\d)-?(\d\d)[T_ ](\d\d)[:-]?(\d\d)[:-]?(\d\d)(?:[.]\d+)?")
_EPOCH = re.compile(r"(?<!\d)(\d{13}|\d{10})(?!\d)")
_BLANK = "value is blank, NaN or infinite"
FLUSH_ROWS = 1 << 18
"""Samples held as Python numbers before they become columns."""


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


def _samples(path: Path, counts: Counter[str]) -> Iterator[Sample]:
    """Samples of GPUs' metrics in `path`, in order; counts lines that cannot be parsed."""

    def bad(_line: str) -> None:
        counts["not a sample line"] += 1

    heads = Heads()
    for piece in pieces(path):
        for sample in samples(piece.decode("utf-8", "replace"), heads, bad):
            if sample.head.name.startswith("DCGM_FI_"):
                yield sample


def _modified_ms(path: Path) -> int:
    try:
        return int(path.stat().st_mtime * SECOND)
    except OSError as error:
        raise unreadable(path, error) from None


class _Dater:
    """Gives each sample its instant."""

    def __init__(self, path: Path) -> None:
        named = instant_of_name(path.name)
        self._at_ms = _modified_ms(path) if named is None else named
        self._seen: set[tuple[str, str]] = set()

    def at_ms(self, sample: Sample, identity: str) -> int:
        if sample.at_ms is not None:
            return sample.at_ms
        key = (sample.head.name, identity)
        if key in self._seen:
            self._seen.clear()
            self._at_ms += INTERVAL_MS
        self._seen.add(key)
        return self._at_ms


def read_prometheus(path: Path, samples: Samples) -> None:
    """Add everything in `path` to `samples`; what cannot be used is counted and reported there.

    Raises InputError where the file cannot be read, ends early or is damaged, after all before that has been added.
    """
    counts: Counter[str] = Counter()
    table = _Table(samples)
    try:
        dater = _Dater(path)
        for sample in _samples(path, counts):
            samples.rows += 1
            head = sample.head
            if head.gpu is None or head.field is None:
                continue
            gpu, which = head.gpu, head.field
            at_ms = dater.at_ms(sample, f"{gpu.host}|{gpu.uuid}|{head.key}")
            samples.see(gpu.host, at_ms)
            table.add(head, gpu, which, at_ms, sample.raw)
    finally:
        table.flush()
        if table.blank:
            counts[_BLANK] += table.blank
        samples.report(path, counts)


class _Table:
    """Single samples on their way into `Samples`, a column at a time."""

    def __init__(self, samples: Samples) -> None:
        self.blank = 0
        self._samples = samples
        self._rows: list[tuple[int, int, int, float]] = []
        self._numbers: dict[int, tuple[Head, int, int]] = {}

    def add(self, head: Head, gpu: Gpu, which: Field, at_ms: int, raw: float) -> None:
        """Take one sample of `gpu`; `raw` is NaN where it is blank."""
        known = self._numbers.get(id(head))
        if known is None or known[0] is not head:
            metric = self._samples.metric(head.key, which.spec.dcgm_scale)
            known = self._numbers[id(head)] = (head, self._samples.gpu(gpu), metric)
        self._rows.append((known[1], known[2], at_ms, which.plain(raw)))
        if len(self._rows) >= FLUSH_ROWS:
            self.flush()

    def flush(self) -> None:
        """Hand over what waits."""
        if self._rows:
            gpus, metrics, times, raw = zip(*self._rows, strict=True)
            gpu, metric, at_ms = (np.array(column, np.int64) for column in (gpus, metrics, times))
            self.blank += self._samples.add(gpu, metric, at_ms, np.array(raw, np.float64))
            self._rows.clear()
