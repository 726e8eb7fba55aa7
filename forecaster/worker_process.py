"""What runs inside the worker process; imported there, so it stays light until the first forecast."""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Sequence

from tocsin.config.settings import ForecastSettings
from tocsin.domain.prediction import Prediction
from tocsin.forecaster.protocol import Forecaster, History
from tocsin.forecaster.registry import build_all

_models: list[Forecaster] = []


def _follow_parent() -> None:
    """End this process when its parent is gone: a killed brain leaves no worker behind."""
    parent = multiprocessing.parent_process()
    if parent is not None:
        parent.join()
        os._exit(0)


def start(settings: ForecastSettings, only: Sequence[str] | None) -> None:
    """Build the models. Ctrl-C reaches the whole process group; ending is the parent's decision alone."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    threading.Thread(target=_follow_parent, name="follow-parent", daemon=True).start()
    _models[:] = build_all(settings, only)


def predict(history: Sequence[History], now_ms: int) -> list[Prediction]:
    """Ask every model in turn."""
    return [prediction for model in _models for prediction in model.predict(history, now_ms)]
