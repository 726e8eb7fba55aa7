"""The newest sample of every series of a GPU, out of as few queries as the server's answers allow.

`query` with a plain selector gives the newest sample of the last five minutes and dates it with the time of the query:
after an exporter has died it goes on for five minutes with values that look fresh. Here each query is a range selector,
``{...}[90s]``, which gives the samples themselves, each with the time at which it was scraped.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from concurrent.futures import Executor, Future, ThreadPoolExecutor
from typing import NamedTuple

from tocsin.collector.dcgm.exposition import PROCESS_START, Head
from tocsin.collector.prometheus_history.answers import Newest
from tocsin.collector.prometheus_history.history import inner_selector
from tocsin.collector.prometheus_history.http import HistoryClient, TooMuch
from tocsin.collector.promql.heads import MAX_LABEL_CHARS, Labelled, SeriesHeads, Target, labelled
from tocsin.config.promql import PromqlSettings
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.telemetry.log import logger

_log = logger("promql")

SURVEY_MS = 10 * MINUTE
"""Time between two looks at which metrics there are."""
CHUNK_NAMES = 6
"""Metrics of one query to begin with: for 10,000 GPUs some 28 MB, which the usual bound of an answer holds."""
MAX_SECONDS = 1e11
"""Beyond it an instant is none: the year 5138."""
MAX_JOBS = 50
_SHOWN = 12


class NothingFound(Exception):
    """The server answers, and has no metric of the exporters."""


class Series(NamedTuple):
    """One series: what it is about, who was scraped, and its newest sample."""

    head: Head
    target: Target
    at_ms: int
    raw: float


class SeriesReader:
    """Asks one server. Of a name that is too much even alone nothing is read; `outcomes` counts its answers."""

    def __init__(self, settings: PromqlSettings, client: HistoryClient) -> None:
        self._settings = settings
        self._client = client
        self._heads = SeriesHeads(settings)
        self._errors = {name for exporter in self._heads.exporters for name in exporter.errors}
        self._inner = inner_selector(settings.selector, "promql.selector")
        self._lookback_ms = round(settings.lookback_seconds * SECOND)
        self._chunks: list[list[str]] = []
        self._names: list[str] = []
        self._surveyed_ms: int | None = None
        self._known: dict[bytes, Labelled] = {}
        self._jobs: set[str] = set()
        self.unknown: list[str] = []
        self.warned: list[str] = []
        self.outcomes: Counter[str] = Counter()

    @property
    def names(self) -> Sequence[str]:
        """Metrics that are asked for."""
        return self._names

    def read(self, now_ms: int) -> list[Series]:
        """The newest sample of each series. Raises InputError, Unavailable, TooMuch and NothingFound."""
        self.outcomes.clear()
        self._survey(now_ms)
        found: list[Series] = []
        for line in self._lines(now_ms):
            if len(found) >= self._settings.max_series:
                self.outcomes["over_limit"] += 1
                continue
            one = self._series(line)
            if one is None:
                self.outcomes["malformed"] += 1
            else:
                found.append(one)
        if len(self._known) > len(found) + 1000:
            self._known.clear()  # pods come and go, and each leaves its labels behind
        self._hear()
        return found

    def _hear(self) -> None:
        """Log what the server warns of, such as a part of its cluster that is away, once until it changes."""
        warned = [one[:200] for one in sorted(self._client.warnings)[:_SHOWN]]
        self._client.warnings.clear()
        if warned and warned != self.warned:
            _log.warning("the server warns", warnings=warned)
        self.warned = warned

    def _survey(self, now_ms: int) -> None:
        due = self._surveyed_ms is None or not 0 <= now_ms - self._surveyed_ms < SURVEY_MS
        if not due and self._names:
            return
        found = self._client.names(self._selector(self._wanted()), now_ms - HOUR, now_ms + MINUTE)
        known = [name for name in found if self._heads.reads(name)]
        self.unknown = sorted(set(found) - set(known))
        self._surveyed_ms = now_ms
        if known:
            # Series of errors begin with the first error: they are asked for before the server has them.
            known += sorted(self._errors - set(known))
        if known != self._names or sum(map(len, self._chunks)) != len(known):
            self._names = known
            self._chunks = [known[at : at + CHUNK_NAMES] for at in range(0, len(known), CHUNK_NAMES)]
            shown = ", ".join(self.unknown[:_SHOWN]) or "none"
            _log.info(
                "metrics found", read=len(set(known) & set(found)), not_read=len(self.unknown), not_read_names=shown
            )
        if not known:
            raise NothingFound("the server has no metric of the exporters that promql.exporters and mapping_file name")

    def _wanted(self) -> list[str]:
        """Patterns of all names, anchored at both ends as a server does."""
        exporters = self._heads.exporters
        begun = [f"{prefix}.+" for exporter in exporters for prefix in exporter.prefixes]
        return list(dict.fromkeys([*begun, *(name for exporter in exporters for name in exporter.names)]))

    def _selector(self, names: Iterable[str], more: str = "") -> str:
        parts = (f'__name__=~"{"|".join(names)}"', more, self._inner)
        return "{" + ",".join(part for part in parts if part) + "}"

    def _lines(self, now_ms: int) -> Iterator[Newest]:
        """The lines of all chunks; the server works at the next one while those of one are looked at."""
        with ThreadPoolExecutor(1, "promql") as ahead:
            yield from self._chunk_lines(now_ms, ahead)
        yield from self._starts(now_ms)

    def _chunk_lines(self, now_ms: int, ahead: Executor) -> Iterator[Newest]:
        def asked(place: int) -> Future[list[Newest]]:
            return ahead.submit(self._client.newest, self._selector(self._chunks[place]), self._lookback_ms, now_ms)

        place, answer = 0, asked(0)
        while place < len(self._chunks):
            chunk = self._chunks[place]
            try:
                lines = answer.result()
            except TooMuch as problem:
                half = len(chunk) // 2
                self._chunks[place : place + 1] = [chunk[:half], chunk[half:]] if half else []
                if not half:
                    self.outcomes["too_large"] += 1
                    _log.warning("a metric is too much for one answer and is left out", name=chunk[0], why=str(problem))
                    if not self._chunks:
                        self._surveyed_ms = None  # once a server has recovered, all of it is asked for again
                        what = "narrow promql.selector or raise promql.max_answer_bytes"
                        raise TooMuch(f"not one metric fits into an answer; {what}") from None
                if place < len(self._chunks):
                    answer = asked(place)
                continue
            place += 1
            if place < len(self._chunks):
                answer = asked(place)
            yield from lines

    def _starts(self, now_ms: int) -> Iterator[Newest]:
        """When the processes that were scraped started: only then can a code that changed be told from an old one."""
        if not self._jobs:
            return
        jobs = "|".join(_escaped(job) for job in sorted(self._jobs))
        try:
            selector = self._selector([PROCESS_START], f'job=~"{jobs}"')
            yield from self._client.newest(selector, self._lookback_ms, now_ms)
        except TooMuch:
            self.outcomes["too_large"] += 1

    def _series(self, line: Newest) -> Series | None:
        """The newest sample of `line`; None where labels or time are not what a server of metrics has."""
        if not 0 <= line.at_s < MAX_SECONDS:
            return None
        name, others = _name_apart(line.labels)
        known = self._known.get(others)
        head = None if known is None else known.heads.get(name)
        if known is None or head is None:
            metric = name
            if known is None:
                if (labels := _read(line.labels)) is None:
                    return None
                metric = labels.pop("__name__", "")
                known = self._known[others] = labelled(labels)
            elif len(name) > MAX_LABEL_CHARS:
                return None
            head = known.heads[name] = self._heads.of(metric, known)
            if head.gpu is not None and known.target[0] and len(self._jobs) < MAX_JOBS:
                self._jobs.add(known.target[0])
        return Series(head, known.target, round(line.at_s * SECOND), line.value)


_NAME = b'"__name__":"'


def _name_apart(labels: bytes) -> tuple[str, bytes]:
    """The name in `labels` and the text without it, which the series of one GPU share; no name where it is not plain.

    A quotation mark inside a JSON string has a backslash before it, so that what is found is a key.
    """
    begin = labels.find(_NAME)
    end = labels.find(b'"', begin + len(_NAME))
    name = labels[begin + len(_NAME) : end]
    if begin < 0 or end < 0 or b"\\" in name:
        return "", labels
    return name.decode(errors="surrogateescape"), labels[:begin] + labels[end:]


def _read(labels: bytes) -> dict[str, str] | None:
    """The labels as they are in `labels`, JSON; None where they are no texts of a length that a label has."""
    try:
        found = json.loads(labels)
    except (ValueError, RecursionError):
        return None
    if not isinstance(found, dict):
        return None
    return found if all(isinstance(one, str) and len(one) <= MAX_LABEL_CHARS for one in found.values()) else None


def _escaped(text: str) -> str:
    """`text` as a literal within a regular expression within a string of PromQL."""
    return "".join(one if one.isalnum() or one in "_-/:" else f"[{one}]" for one in text if one not in '"\\^]\n')
