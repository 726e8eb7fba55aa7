"""The risk model at work in a process of its own: it reads the store, keeps its features up to date, and answers."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Sequence

import numpy as np

from tocsin.domain.atomic_file import atomic_file
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.identity import Gpu
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.feed import Feed
from tocsin.forecaster.features.plan import Plan
from tocsin.forecaster.features.state import restore, save
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.forecaster.live.place import RiskPlace
from tocsin.forecaster.live.risk import RiskModel
from tocsin.store.factory import open_store
from tocsin.store.port import Store

SAVE_MS = HOUR
"""Time between two savings of the features: a service that is killed reads so much again at most."""
_FED = "fed_ms"


class RiskWatch:
    """Answers for the whole fleet. `store` is used where it is given, else the one of the settings is opened.

    The version in service is looked up at every turn, so that a promotion or rollback needs no restart. Where none is
    in service nothing is predicted.
    """

    def __init__(self, place: RiskPlace, store: Store | None = None, plan: Plan | None = None) -> None:
        self._place = place
        self._plan = plan or Plan()
        self._shelf = ModelRegistry(place.models)
        self._store = store
        self._model: RiskModel | None = None
        self._version: str | None = None
        self._builder: FeatureBuilder | None = None
        self._feed: Feed | None = None
        self._saved_ms = 0

    def predict(self, gpus: Sequence[Gpu], now_ms: int) -> list[Prediction]:
        """The risk of each of `gpus` at `now_ms`. Raises InputError for a damaged model and what the store raises."""
        model = self._current()
        if model is None:
            return []
        builder, feed = self._up_to_date(gpus, now_ms)
        feed.until(now_ms)
        if now_ms - self._saved_ms >= SAVE_MS:
            self._save(builder, feed)
            self._saved_ms = now_ms
        return model.predict(builder, gpus, now_ms)

    def _current(self) -> RiskModel | None:
        version = self._shelf.in_service
        if version != self._version:
            self._model = None if version is None else RiskModel(self._shelf.load(version), self._place.alarm_share)
            self._version = version
        return self._model

    def _up_to_date(self, gpus: Sequence[Gpu], now_ms: int) -> tuple[FeatureBuilder, Feed]:
        if self._builder is None or self._feed is None or self._builder.newest_ms > now_ms:
            # Also where the clock was set back: features of a future that is now to come again are of no use.
            if self._store is None:
                self._store = open_store(self._place.store)
            oldest = now_ms - int(min(self._place.warm_days * DAY, max(self._plan.windows_ms)))
            kept = self._kept(now_ms)
            self._builder, from_ms = kept or (FeatureBuilder(self._plan, gpus), oldest)
            self._feed = Feed(self._builder, self._store, max(from_ms, oldest), latest=self._store.latest)
            self._saved_ms = now_ms
        self._builder.know(gpus)
        return self._builder, self._feed

    # ------------------------------------------------------------------ between two starts

    def _kept(self, now_ms: int) -> tuple[FeatureBuilder, int] | None:
        """What was saved, and up to where it had read; None where nothing usable is there."""
        path = self._place.state
        if path is None or not path.exists():
            return None
        try:
            with np.load(path, allow_pickle=False) as file:
                state = dict(file)
            fed_ms = int(state.pop(_FED))
            builder = restore(self._plan, state)
        except (OSError, ValueError, KeyError, zipfile.BadZipFile, InputError):
            return None  # the past is in the store: a state that cannot be used costs only the time to read it
        return (builder, fed_ms) if builder.newest_ms <= now_ms else None

    def _save(self, builder: FeatureBuilder, feed: Feed) -> None:
        path = self._place.state
        if path is None:
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        with (
            contextlib.suppress(OSError),
            atomic_file(path, 0o600) as file,
        ):  # a full disk costs a slower start, no prediction
            np.savez(file, allow_pickle=False, **{**save(builder), _FED: np.array(feed.fed_ms)})
