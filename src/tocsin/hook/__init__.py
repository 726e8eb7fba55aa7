"""Memory and steps of a training process, told to the agent on this node.

One line in a training script is enough::

    import tocsin.hook; tocsin.hook.watch()

or none at all: ``python -m tocsin.hook train.py``. Needs the standard library alone, imports neither PyTorch nor JAX,
never raises into the script and never waits; without an agent it does nothing.
"""

from __future__ import annotations

import atexit
import os
from collections.abc import Callable
from typing import TypeVar

from tocsin.hook.watch import SAMPLE_SECONDS, ProcessWatch, enabled
from tocsin.hook.wire import socket_path

__all__ = ["on_checkpoint", "step", "stop", "watch"]

Saving = TypeVar("Saving", bound=Callable[[], object])

_watch: ProcessWatch | None = None
_saving: list[Callable[[], object]] = []
_prepared = False


def watch(socket: str | None = None, seconds: float = SAMPLE_SECONDS) -> bool:
    """Watch this process; whether it is watched now. Safe to repeat, the first call counts.

    `socket` is where the agent listens (default: ``TOCSIN_HOOK_SOCKET``, else ``/run/tocsin/hook.sock``), `seconds`
    the time between two samples, at least 0.1. Steps of PyTorch optimizers are counted by themselves. False where
    ``TOCSIN_HOOK`` is ``off`` and where no thread can be started.
    """
    global _watch
    if _watch is not None:
        return True
    if not enabled():
        return False
    made = ProcessWatch(socket or socket_path(), max(0.1, seconds))
    made.orders.on_checkpoint = _saving
    try:
        made.start()
    except (OSError, RuntimeError):
        return False
    _watch = made
    _prepare()
    return True


def step() -> None:
    """A training or inference step has ended; for loops without a PyTorch optimizer, and where steps are to be exact.

    Begins to watch where `watch` was not called. From the first call on, only these calls count as steps.
    """
    if _watch is not None or watch():
        watched = _watch
        if watched is not None:
            watched.step()


def on_checkpoint(function: Saving) -> Saving:
    """Call `function` (no arguments) at a step boundary when the agent asks for a checkpoint; also a decorator.

    It runs in the training thread of this process alone. In a distributed job, where saving is a collective operation,
    let it set a flag on which the ranks then agree.
    """
    _saving.append(function)
    return function


def stop() -> None:
    """End the watch and forget the functions of `on_checkpoint`; safe to repeat."""
    global _watch
    watched, _watch = _watch, None
    _saving.clear()
    if watched is not None:
        watched.stop()


def _prepare() -> None:
    global _prepared
    if _prepared:
        return
    _prepared = True
    # What was carried out last is still acknowledged, and no thread is left inside PyTorch when the interpreter ends:
    # that can abort a process that has done its work.
    atexit.register(stop)
    if hasattr(os, "register_at_fork"):
        os.register_at_fork(after_in_child=_forked)


def _forked() -> None:
    if _watch is not None:
        _watch.forked()
