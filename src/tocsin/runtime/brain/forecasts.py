"""Forecasting beside the evaluation loop: an XID never waits for a model."""

from __future__ import annotations

import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from zlib import crc32

import structlog

from tocsin.config.settings import ForecastSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import SubjectKind
from tocsin.domain.prediction import HARDWARE_FAULT, Prediction, PredictionStatus
from tocsin.domain.reading import Gpu
from tocsin.forecaster.capacity.capacity import PoolPast
from tocsin.forecaster.live.news import is_news
from tocsin.forecaster.live.outcomes import outcomes
from tocsin.forecaster.live.recalibration import KindFigures, Recalibration
from tocsin.forecaster.live.risk_inputs import SeenGpus
from tocsin.forecaster.live.worker import ForecastWorker
from tocsin.forecaster.trend.protocol import GpuHistory
from tocsin.store.grid import by_gpu
from tocsin.store.port import Store, StoreUnavailable

log = structlog.get_logger()

CHUNK = 100
"""GPUs whose past is read in one request and held in memory at once; so many for each shard that forecasts them."""

MOST_SETTLED = 1000
"""Cases that are judged in one turn: each reads the series of its window, some 1 ms (own choice)."""
LOCKED = 1000
"""Past statements and cases that are taken in before others get a turn."""
RECORD_MS = 30 * DAY
"""How far back what was said is judged after a restart."""
READ_MS = 6 * HOUR
"""Past of which statements are read at once."""
MOST_CAUGHT_UP = 40_000
"""Past cases that are judged at once, which holds up the forecasts of that turn (own choice)."""

QUIET_TURNS = 6
"""A GPU of which nothing is expected is forecast at one turn in so many, each host at its own (own choice: half an hour
by default, of what takes hours to fill)."""
QUIET = 0.1
"""Below this probability nothing is expected."""

Key = tuple[str, str]


class FleetForecasts:
    """Runs the forecaster over the fleet when it is due and keeps the newest prediction of each subject and target."""

    def __init__(self, store: Store, worker: ForecastWorker, settings: ForecastSettings) -> None:
        self._store = store
        self._worker = worker
        self._settings = settings
        self._lock = threading.Lock()
        self._stopping = threading.Event()
        self._newest: dict[Key, Prediction] = {}
        # What is current until `_until_ms`, the last instant at which all of it is; None once something else was said.
        self._current: list[Prediction] | None = None
        self._until_ms = 0
        self._stored_ms: dict[Key, int] = {}
        self._pruned_ms = 0
        self._last_ms: int | None = None
        self._turn = self._risk_turn = self._pools_turn = 0
        self._risk_ms: int | None = None
        self._repaired: Mapping[str, int] = {}
        self._pools: frozenset[str] = frozenset()
        self._quiet: set[str] = set()
        # Forgotten since the run under way began: models may be at work on them.
        self._gone: set[str] = set()
        # From where on, and up to where, what was said before a restart is still to be judged.
        self._unread_ms: int | None = None
        self._unread_end_ms = 0
        self._waiting: list[Prediction] = []
        self._kinds = Recalibration(settings.least_precision)
        self.made = 0
        self.failed = 0
        self.unknown = 0
        """Cases of which nothing showed whether they came."""

    def recall(self, now_ms: int, muted: Iterable[tuple[str, bool]] = ()) -> None:
        """Take up what is in force, and which kinds were muted, as (kind, of simulated GPUs). What was said before is
        judged with the next `catch_up`, which need not hold up a start."""
        self._kinds.restore(muted)
        for prediction in sorted(self._store.predictions(self._oldest(now_ms), now_ms + 1), key=_in_time):
            self._newest[_key(prediction)] = prediction
        self._current = None
        self._unread_ms, self._unread_end_ms = now_ms - RECORD_MS, now_ms + 1

    def catch_up(self, now_ms: int) -> None:
        """After a restart: judge what was said before it, in the order in which it was judged then. What is over is
        settled before more is taken in, so that nothing waits for long; what is too much for one turn, or cannot be
        read, is gone on with at the next."""
        left = MOST_CAUGHT_UP
        try:
            while self._unread_ms is not None and left > 0 and not self._stopping.is_set():
                over_ms = now_ms if self._unread_ms == self._unread_end_ms else min(self._unread_ms, now_ms)
                judged = self._settle(over_ms, LOCKED, past=True)
                left -= judged
                if not judged:
                    self._take_in(self._unread_ms)
        except StoreUnavailable as error:
            log.warning("past forecasts not judged: the store is unavailable", error=str(error))

    def _take_in(self, start_ms: int) -> None:
        """Follow what was said in the `READ_MS` from `start_ms` on, and with the last of it what was said since."""
        end_ms = min(start_ms + READ_MS, self._unread_end_ms)
        said = sorted(self._store.predictions(start_ms, end_ms), key=_in_time) if start_ms < end_ms else []
        for first in range(0, len(said), LOCKED):
            with self._lock:
                self._kinds.follow(said[first : first + LOCKED])
        with self._lock:
            if end_ms == self._unread_end_ms:
                self._kinds.follow(sorted(self._waiting, key=_in_time))
                self._waiting = []
            self._unread_ms = end_ms if start_ms < end_ms else None

    def settle(self, now_ms: int) -> list[KindFigures]:
        """Judge what was said by what came of it; the kinds of statements that are muted or heard again from now on.
        None as long as `catch_up` has not come to its end."""
        if self._unread_ms is not None:
            return []
        try:
            self._settle(now_ms, MOST_SETTLED)
        except StoreUnavailable as error:
            log.warning("forecasts not judged: the store is unavailable", error=str(error))
        with self._lock:
            return self._kinds.judge(now_ms)

    @property
    def unjudged(self) -> int:
        """Cases that were dropped, as more were over than could be judged."""
        return self._kinds.unjudged

    def kinds(self, now_ms: int) -> list[KindFigures]:
        """The record of every kind of statement."""
        with self._lock:
            return self._kinds.figures(now_ms)

    def _settle(self, now_ms: int, most: int, *, past: bool = False) -> int:
        """Judge one pass of cases; how many there were. What is `past` is never dropped, nor counted anew. Raises
        StoreUnavailable; they wait for the next time then."""
        with self._lock:
            due = self._kinds.take_due(now_ms, most, drops=not past)
        if not due:
            return 0
        try:
            found = outcomes(self._store, due)
        except StoreUnavailable:
            with self._lock:
                self._kinds.put_back(due)
            raise
        with self._lock:
            self._kinds.settle([(one, came) for one, came in zip(due, found, strict=True) if came is not None])
        self.unknown += 0 if past else found.count(None)
        return len(due)

    def _oldest(self, now_ms: int, turns: int = QUIET_TURNS) -> int:
        return now_ms - int((turns + 1) * self._settings.every_seconds * SECOND) - MINUTE

    def due(self, now_ms: int) -> bool:
        """Whether the interval since the last forecast has passed; a clock that stepped back also makes it due."""
        if self._last_ms is None:
            return True
        return not self._last_ms <= now_ms < self._last_ms + self._settings.every_seconds * SECOND

    def stop(self) -> None:
        """End a run under way after the part that it is at."""
        self._stopping.set()

    def run(self, gpus: Sequence[Gpu], now_ms: int) -> list[Prediction]:
        """Forecast those of `gpus` whose turn it is as of `now_ms`: all of which something is or may be expected, and
        of the others those of some hosts. Blocks until the models have answered. A failure is counted and logged."""
        self._last_ms = now_ms
        self._turn += 1
        self._quiet &= {gpu.uuid for gpu in gpus}
        with self._lock:
            self._gone = set()
        made: list[Prediction] = []
        # By host, as they were written: those of a hundred hosts are spread over all that the store has of the day.
        ordered = sorted(filter(self._has_turn, gpus), key=lambda one: (one.host, one.uuid))
        try:
            size = CHUNK * self._worker.shards
            for start in range(0, len(ordered), size):
                if self._stopping.is_set():
                    break
                made += self._part(ordered[start : start + size], now_ms)
        except TocsinError as error:
            self._note("forecast failed", error)
        return made

    def _has_turn(self, gpu: Gpu) -> bool:
        return gpu.uuid not in self._quiet or (self._turn + crc32(gpu.host.encode())) % QUIET_TURNS == 0

    def run_pools(self, pools: Sequence[PoolPast], now_ms: int) -> list[Prediction]:
        """Forecast the capacity of `pools` as of `now_ms`; blocks as `run` does. It looks days ahead by hours: it has
        one turn in `QUIET_TURNS`, and the next one where a pool is new; nothing in between."""
        names = frozenset(one.pool for one in pools)
        if names <= self._pools and self._turn < self._pools_turn + QUIET_TURNS:
            return []
        ask = self._worker.submit_pools
        made = self._supervised("capacity forecast failed", lambda: ask(pools, now_ms).result())
        if made:
            self._pools, self._pools_turn = names, self._turn
        return made

    def run_risk(self, seen: SeenGpus, now_ms: int) -> list[Prediction]:
        """The risk of a hardware fault for what is `seen` as of `now_ms`; blocks as `run` does. It looks days ahead: it
        has one turn in `QUIET_TURNS`, and each after an event or a proven repair; nothing in between."""
        if seen.repaired == self._repaired and not self._risk_has_turn(now_ms):
            return []
        with self._lock:
            seen = replace(seen, unforeseen=self._kinds.unforeseen(HARDWARE_FAULT))
        made = self._supervised("risk forecast failed", lambda: self._worker.submit_risk(seen, now_ms).result())
        if made:
            self._risk_ms, self._risk_turn, self._repaired = now_ms, self._turn, seen.repaired
        return made

    def _risk_has_turn(self, now_ms: int) -> bool:
        if self._risk_ms is None or self._turn >= self._risk_turn + QUIET_TURNS:
            return True
        try:
            return bool(self._store.events(self._risk_ms + 1, now_ms + 1))
        except StoreUnavailable:
            return True

    def _supervised(self, event: str, ask: Callable[[], list[Prediction]]) -> list[Prediction]:
        """What `ask` answers, kept; nothing where it fails."""
        if self._stopping.is_set():
            return []
        try:
            return self._keep(ask())
        except TocsinError as error:
            self._note(event, error)
            return []

    def _note(self, event: str, error: TocsinError) -> None:
        # A worker that is closed with its brain gives no answer.
        if not self._stopping.is_set():
            self.failed += 1
            log.warning(event, error=str(error))

    def put(self, made: Sequence[Prediction], model: str) -> None:
        """Take what `model` says now; what it said before and says no more is taken back."""
        with self._lock:
            keys = {_key(prediction) for prediction in made}
            self._newest = {key: p for key, p in self._newest.items() if p.model != model or key in keys}
            self._current = None
        self._keep(list(made))

    def forget(self, gpus: Collection[str]) -> None:
        """These GPUs have left the fleet: what is expected of them is not this brain's to say."""
        with self._lock:
            self._newest = {key: one for key, one in self._newest.items() if one.subject.name not in gpus}
            self._gone.update(gpus)
            self._current = None

    def _part(self, gpus: Sequence[Gpu], now_ms: int) -> list[Prediction]:
        start = now_ms - int(self._settings.history_hours * HOUR)
        metrics = self._worker.metrics
        uuids = [gpu.uuid for gpu in gpus]
        series = by_gpu(self._store.columns(metrics, start, now_ms + 1, uuids), uuids)
        history = [GpuHistory(gpu, series[gpu.uuid]) for gpu in gpus]
        said = self._worker.submit(history, now_ms).result()
        with self._lock:
            before = {_key(one): self._newest.get(_key(one)) for one in said}
        made = self._keep(said)
        self._quiet |= set(uuids)
        self._quiet -= {one.subject.name for one in made if not _is_quiet(one, before[_key(one)])}
        return made

    def _keep(self, made: list[Prediction]) -> list[Prediction]:
        with self._lock:
            made = self._kinds.restated([one for one in made if one.subject.name not in self._gone])
            news = [prediction for prediction in made if self._is_news(prediction)]
        self._store.write(Batch(predictions=news))
        with self._lock:
            if news and abs(news[0].at_ms - self._pruned_ms) >= HOUR:
                self._pruned_ms = news[0].at_ms
                kept_ms = self._pruned_ms - 2 * DAY
                self._stored_ms = {key: at for key, at in self._stored_ms.items() if at >= kept_ms}
            self._stored_ms.update((_key(prediction), prediction.at_ms) for prediction in news)
            self.made += len(made)
            if self._unread_ms is not None:
                self._waiting += news
            else:
                self._kinds.follow(news)
            self._newest.update((_key(prediction), prediction) for prediction in made)
            self._current = None if made else self._current
        return made

    def _is_news(self, said: Prediction) -> bool:
        return is_news(said, self._newest.get(_key(said)), self._stored_ms.get(_key(said), 0))

    def current(self, now_ms: int) -> list[Prediction]:
        """The newest prediction of each subject and target, less those that have not been made again though they had
        their turn."""
        with self._lock:
            if self._current is None or now_ms > self._until_ms:
                oldest, soon = self._oldest(0), self._oldest(0, 1)
                ends = {key: p.at_ms - (soon if _is_renewed(p) else oldest) for key, p in self._newest.items()}
                self._newest = {key: p for key, p in self._newest.items() if ends[key] >= now_ms}
                self._current = [*self._newest.values()]
                self._until_ms = min((ends[key] for key in self._newest), default=now_ms)
            return [*self._current]


def _is_quiet(said: Prediction, before: Prediction | None) -> bool:
    """Whether nothing is expected that anybody hears of, nor soon will be: without a value there is nothing to expect,
    and what lacks what it lacked `before` has come no nearer to a forecast."""
    if said.status is PredictionStatus.NOT_ENOUGH_DATA:
        return said.value is None or (
            before is not None and (before.status, before.reason) == (said.status, said.reason)
        )
    return said.muted or (said.status is PredictionStatus.NO_CROSSING and (said.probability or 0.0) < QUIET)


def _is_renewed(said: Prediction) -> bool:
    """Whether it is made again at each turn, as long as it holds."""
    return said.status is PredictionStatus.CROSSING and said.subject.kind is SubjectKind.GPU and not said.muted


def _in_time(said: Prediction) -> tuple[int, str]:
    return said.at_ms, said.id


def _key(prediction: Prediction) -> Key:
    return prediction.subject.key, prediction.target
