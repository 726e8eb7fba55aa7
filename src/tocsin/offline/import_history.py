"""`tocsin import prometheus`: a site's own past into the store, or into a file that a replay lives through."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

from tocsin.collector.prometheus_history.answers import check_installed
from tocsin.collector.prometheus_history.batches import Batches, Gap
from tocsin.collector.prometheus_history.history import HistoryFile, PrometheusHistory, QueryWindow, Survey
from tocsin.collector.prometheus_history.http import HistoryClient
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, Clock, from_iso, to_iso
from tocsin.domain.errors import InputError, TocsinError
from tocsin.domain.metrics import split_variant
from tocsin.domain.progress import is_heard, work
from tocsin.domain.reading import Gpu
from tocsin.domain.words import counted
from tocsin.store.port import Store

_SPAN = re.compile(r"^(\d+(?:\.\d+)?)(s|m|h|d|w)$")
_UNITS = {"s": SECOND, "m": MINUTE, "h": HOUR, "d": DAY, "w": 7 * DAY}
SHOWN_GAPS = 10

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class ImportRequest:
    """What to import: instants of the span, a label selector, and the step (None measures the scrape interval)."""

    start_ms: int
    end_ms: int
    match: str = ""
    step_ms: int | None = None


@dataclass(frozen=True, slots=True)
class ImportReport:
    """What one import found.

    `metrics` are canonical names, `unknown` dcgm-exporter's that no row of the metric table is fed by; `others` counts
    series of something else than a GPU, once a window. `events` were written; `blank` samples were sentinels.
    """

    url: str
    target: str
    start_ms: int | None
    end_ms: int | None
    step_ms: int
    gpus: tuple[Gpu, ...]
    metrics: tuple[str, ...]
    names: tuple[str, ...]
    unknown: tuple[str, ...]
    others: Mapping[str, int]
    samples: int
    blank: int
    readings: int
    xids: Mapping[int, int]
    sxids: Mapping[int, int]
    unsettled: Mapping[int, int]
    restarts: int
    gaps: tuple[Gap, ...]
    more_gaps: int
    windows: int
    requests: int
    seconds: float
    warnings: tuple[str, ...]

    @property
    def samples_per_second(self) -> float:
        return self.samples / self.seconds if self.seconds > 0 else 0.0

    def as_json(self) -> dict[str, object]:
        return {
            "url": self.url,
            "target": self.target,
            "from": None if self.start_ms is None else to_iso(self.start_ms),
            "to": None if self.end_ms is None else to_iso(self.end_ms),
            "step_seconds": self.step_ms / SECOND,
            "gpus": sum(1 for gpu in self.gpus if not gpu.is_mig),
            "mig_instances": sum(1 for gpu in self.gpus if gpu.is_mig),
            "hosts": len({gpu.host for gpu in self.gpus}),
            "metrics": list(self.metrics),
            "recognised": list(self.names),
            "unknown": list(self.unknown),
            "other_series": dict(self.others),
            "samples": self.samples,
            "blank": self.blank,
            "readings": self.readings,
            "xids": {str(code): count for code, count in sorted(self.xids.items())},
            "sxids": {str(code): count for code, count in sorted(self.sxids.items())},
            "unsettled_xids": {str(code): count for code, count in sorted(self.unsettled.items())},
            "counter_restarts": self.restarts,
            "gaps": [{"host": g.host, "from": to_iso(g.start_ms), "to": to_iso(g.end_ms)} for g in self.gaps],
            "more_gaps": self.more_gaps,
            "windows": self.windows,
            "requests": self.requests,
            "seconds": round(self.seconds, 3),
            "samples_per_second": round(self.samples_per_second),
            "warnings": list(self.warnings),
        }

    def as_text(self) -> str:
        whole = sum(1 for gpu in self.gpus if not gpu.is_mig)
        hosts = len({gpu.host for gpu in self.gpus})
        lines = [
            f"{counted(self.samples, 'sample')} in {self.seconds:.1f} s ({self.samples_per_second:,.0f}/s), "
            f"{counted(self.windows, 'window')}, {counted(self.requests, 'request')}",
            f"{counted(whole, 'GPU')} and {counted(len(self.gpus) - whole, 'MIG instance')} on "
            f"{counted(hosts, 'host')}: {counted(self.readings, 'reading')} in {self.target}",
        ]
        if self.start_ms is not None and self.end_ms is not None:
            lines.append(f"from {to_iso(self.start_ms)} to {to_iso(self.end_ms)}, step {self.step_ms / SECOND:g} s")
        lines += [
            f"metrics: {len(self.metrics)} from {counted(len(self.names), 'field')}; blank samples: {self.blank:,}",
            f"unknown fields: {', '.join(self.unknown) or 'none'}",
            f"XID onsets: {_counts(self.xids)}; SXID onsets: {_counts(self.sxids)}; "
            f"counters started again {counted(self.restarts, 'time')}; "
            f"XIDs skipped because they changed with a restart: {_counts(self.unsettled)}",
            f"gaps of over 5 min: {len(self.gaps) + self.more_gaps}",
        ]
        longest = sorted(self.gaps, key=lambda gap: gap.start_ms - gap.end_ms)[:SHOWN_GAPS]
        lines += [
            f"  {gap.host}: {to_iso(gap.start_ms)} to {to_iso(gap.end_ms)} ({(gap.end_ms - gap.start_ms) / HOUR:.1f} h)"
            for gap in longest
        ]
        return "\n".join([*lines, *(f"the server warns: {one}" for one in self.warnings)]) + "\n"


def _counts(counts: Mapping[int, int]) -> str:
    return ", ".join(f"{code} {count}x" for code, count in sorted(counts.items())) or "none"


def instant(text: str, now_ms: int, name: str) -> int:
    """The instant that `text` says: a span before `now_ms` (``30d``, ``12h``) or ISO 8601. Raises InputError."""
    if (match := _SPAN.match(text)) is not None:
        return now_ms - round(float(match[1]) * _UNITS[match[2]])
    try:
        return from_iso(text)
    except ValueError:
        remedy = "write a span before now such as 30d or 12h, or an instant such as 2026-11-01T00:00:00Z"
        raise InputError(name, text, "is no time", remedy) from None


def span_ms(text: str, name: str) -> int:
    """Milliseconds of a time span such as ``30s``. Raises InputError."""
    if (match := _SPAN.match(text)) is None or float(match[1]) * _UNITS[match[2]] < SECOND:
        raise InputError(name, text, "is not a duration of a second or more", "write for example 30s or 1m")
    return round(float(match[1]) * _UNITS[match[2]])


class _Import:
    """One run: where it reads, where it writes, and how far it is."""

    def __init__(self, client: HistoryClient, wanted: ImportRequest, clock: Clock, say: Say) -> None:
        check_installed()
        self._client = client
        self._wanted = wanted
        self._clock = clock
        self._say = say
        self._history = PrometheusHistory(client, wanted.match)
        self._batches = Batches()
        self._begun = clock.monotonic()
        self._windows = 0

    def run(self, start_ms: int, target: str, take: Callable[[QueryWindow, Batches], None]) -> ImportReport:
        """Import everything after `start_ms`; `take` keeps a window."""
        wanted = self._wanted
        survey = self._history.survey(start_ms, wanted.end_ms)
        if not survey.names:
            raise self._nothing()
        step_ms = wanted.step_ms or self._history.step(survey.names, start_ms, wanted.end_ms)
        fields = f"{counted(len(survey.names), 'field')} of dcgm-exporter"
        self._say(f"{fields}, from {to_iso(start_ms)} to {to_iso(wanted.end_ms)}, step {step_ms / SECOND:g} s")
        for before in self._history.prime(survey.names, start_ms, step_ms):
            self._batches.prime(before)
        reached, watched = start_ms, is_heard()
        try:
            with work("import, seconds", (wanted.end_ms - start_ms) / SECOND) as bar:
                for window in self._history.windows(survey.names, start_ms, wanted.end_ms, step_ms):
                    take(window, self._batches)
                    bar.advance((window.until_ms - reached) / SECOND)
                    reached = window.until_ms
                    self._windows += 1
                    if not watched:
                        self._progress(window, start_ms)
        except (TocsinError, KeyboardInterrupt):
            self._say(f"stopped; everything up to {to_iso(reached)} is stored; resume with --since {to_iso(reached)}")
            raise
        if not self._batches.tally.samples and start_ms == wanted.start_ms:
            raise self._nothing()
        return self._report(survey, target, step_ms)

    def _nothing(self) -> InputError:
        span = f"{to_iso(self._wanted.start_ms)} to {to_iso(self._wanted.end_ms)}"
        remedy = "check --since, --until and --match, and whether the server has dcgm-exporter's metrics"
        return InputError("--since", span, "finds no metric of dcgm-exporter", remedy)

    def _progress(self, window: QueryWindow, start_ms: int) -> None:
        done = (window.until_ms - start_ms) / max(1, self._wanted.end_ms - start_ms)
        speed = self._batches.tally.samples / max(1e-9, self._clock.monotonic() - self._begun)
        self._say(
            f"{done:4.0%} up to {to_iso(window.until_ms)}: {counted(window.samples, 'sample')} of "
            f"{(window.until_ms - window.after_ms) / HOUR:.2f} h, {speed:,.0f} samples/s"
        )

    def _report(self, survey: Survey, target: str, step_ms: int) -> ImportReport:
        tally = self._batches.tally
        return ImportReport(
            url=self._client.url,
            target=target,
            start_ms=tally.start_ms,
            end_ms=tally.end_ms,
            step_ms=step_ms,
            gpus=tuple(tally.gpus.values()),
            metrics=tuple(sorted({split_variant(key)[0] for key in tally.metrics})),
            names=tuple(survey.names),
            unknown=tuple(survey.unknown),
            others=dict(self._history.others),
            samples=tally.samples,
            blank=tally.blank,
            readings=tally.readings,
            xids=dict(tally.xids),
            sxids=dict(tally.sxids),
            unsettled=dict(tally.unsettled),
            restarts=tally.restarts,
            gaps=tuple(tally.gaps),
            more_gaps=tally.more_gaps,
            windows=self._windows,
            requests=self._client.requests,
            seconds=self._clock.monotonic() - self._begun,
            warnings=tuple(sorted(self._client.warnings)),
        )


def _checked(wanted: ImportRequest) -> ImportRequest:
    if wanted.start_ms >= wanted.end_ms:
        problem = f"is not before --until, {to_iso(wanted.end_ms)}"
        remedy = "name an earlier --since or a later --until; spans count back from now: --since 2h --until 1h"
        raise InputError("--since", to_iso(wanted.start_ms), problem, remedy)
    return wanted


def import_to_store(client: HistoryClient, wanted: ImportRequest, store: Store, clock: Clock, say: Say) -> ImportReport:
    """Write the history into `store`, whose writes are idempotent: importing twice changes nothing.

    `say` gets a line for each window. Raises InputError, Unavailable, and what the store raises.
    """

    def take(window: QueryWindow, batches: Batches) -> None:
        for batch in batches.batches(window):
            store.write(batch)

    return _Import(client, _checked(wanted), clock, say).run(wanted.start_ms, "the store", take)


def import_to_file(client: HistoryClient, wanted: ImportRequest, path: Path, clock: Clock, say: Say) -> ImportReport:
    """Write the history to `path`; a run before that was cut off is taken up where it ended. Raises as above."""
    start_ms = _checked(wanted).start_ms
    with ExitStack() as stack:
        file = HistoryFile(path, {"url": client.url, "match": wanted.match})
        stack.callback(file.close)
        if file.resume_ms is not None:
            start_ms = file.resume_ms
            say(f"resuming an earlier run at {to_iso(start_ms)}")

        def take(window: QueryWindow, batches: Batches) -> None:
            file.add(window)
            batches.count(window)

        report = _Import(client, wanted, clock, say).run(start_ms, str(path), take)
        file.finish()
    return report
