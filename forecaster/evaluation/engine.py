"""Where independent parts of a training or backtest run: here, one after another, or on Ray, with the same numbers."""

from __future__ import annotations

import logging
import os
import socket
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Protocol, TypeVar

from tocsin.domain.errors import InputError, Unavailable, install_extra
from tocsin.domain.progress import track

Item = TypeVar("Item")
Made = TypeVar("Made")

ENGINES = ("local", "ray")
CONNECT_SECONDS = 5.0
WORKERS = 2
"""Workers of a Ray that is started for the occasion, where the machine has that many cores."""


class Engine(Protocol):
    """Runs a function over items."""

    name: str

    def map(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        """What `work` makes of each item, in their order. `work` must not depend on anything but its item."""


class Local:
    """One after another, in this process."""

    name = "local"

    def map(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        return [work(item) for item in track(items, "fits")]


class Ray:
    """Tasks of a Ray cluster that is connected already."""

    name = "ray"

    def map(self, work: Callable[[Item], Made], items: Sequence[Item]) -> list[Made]:
        import ray

        # One thread each, as in a single process with as many cores as tasks: sums then add up in one order.
        task = ray.remote(num_cpus=1, max_retries=2)(work)
        waiting = [task.remote(item) for item in items]
        return [ray.get(one) for one in track(waiting, "fits")]


def _reachable(address: str) -> None:
    """Ray itself tries for minutes. Raises Unavailable where nobody listens at HOST:PORT."""
    host, _, port = address.rpartition(":")
    if not host or not port.isdigit() or "://" in address:
        return
    try:
        socket.create_connection((host, int(port)), timeout=CONNECT_SECONDS).close()
    except OSError as error:
        raise Unavailable(f"Ray at {address}: {error}; start it or give its address") from None


def connect(address: str = "", workers: int = WORKERS) -> None:
    """Join the Ray cluster at `address`; without one, start Ray on this machine with `workers` workers.

    Raises Unavailable without the library or the cluster.
    """
    _reachable(address)
    # Ray asks what hardware it runs on, and reports home; neither is wanted.
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO", "0")
    try:
        import ray
    except ModuleNotFoundError:
        raise Unavailable(f"Ray is not installed; {install_extra('ray')}") from None
    quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": logging.ERROR}
    try:
        if address:
            ray.init(address=address, **quiet)
        else:
            # Else Ray joins what RAY_ADDRESS names, or whatever cluster somebody else has started on this machine.
            ray.init(address="local", num_cpus=workers, include_dashboard=False, **quiet)
    except (ConnectionError, RuntimeError, OSError) as error:
        raise Unavailable(f"Ray at {address or 'this machine'}: {error}") from None


def disconnect() -> None:
    """Leave the cluster; one that was started here ends."""
    import ray

    ray.shutdown()


@contextmanager
def engine(name: str, address: str = "") -> Iterator[Engine]:
    """The engine called `name`. `address` is that of a running Ray cluster; without one, Ray is started here with
    `WORKERS` workers and ended again.

    Raises InputError for another name, Unavailable without the library or cluster.
    """
    if name == Local.name:
        yield Local()
        return
    if name != Ray.name:
        raise InputError("engine", name, "no such engine", f"use one of {', '.join(ENGINES)}")
    connect(address)
    try:
        yield Ray()
    finally:
        disconnect()
