"""`tocsin backtest`: the data sets that are known, and one run of them."""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable
from dataclasses import replace
from functools import cache

import tocsin.forecaster.benchmarks
from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError
from tocsin.forecaster.benchmarks.result import Request, Result

Run = Callable[[Request], Result]

SIMULATOR = "simulator"
"""The data set that takes a scenario file."""
MADE = (SIMULATOR, "quantiles")
"""Data sets that make their own data and need no folder."""


@cache
def datasets() -> tuple[str, ...]:
    """Names of the data sets: modules of the package `benchmarks` that have `run`. One with an underscore in its name
    is a part of another."""
    package = tocsin.forecaster.benchmarks
    names = [module.name for module in pkgutil.iter_modules(package.__path__) if "_" not in module.name]
    return tuple(sorted(name for name in names if hasattr(_module(name), "run")))


def _module(name: str) -> object:
    return importlib.import_module(f"{tocsin.forecaster.benchmarks.__name__}.{name}")


def run_dataset(name: str, request: Request, clock: Clock) -> Result:
    """Run a data set's protocol; `seconds` of the result is what it took by `clock`.

    Raises InputError where there is no such data set, a folder is not there or holds something else.
    """
    if name not in datasets():
        raise InputError("--dataset", name, "no such data set", f"use one of {', '.join(datasets())}")
    _check(name, request)
    begun = clock.monotonic()
    run: Run = vars(_module(name))["run"]
    return replace(run(request), seconds=clock.monotonic() - begun)


def _check(name: str, request: Request) -> None:
    if name != SIMULATOR and request.scenario is not None:
        raise InputError("--scenario", str(request.scenario), f"{name} has none", f"use --dataset {SIMULATOR}")
    for option, folder in (("--train", request.train), ("--test", request.test)):
        if folder is not None and not folder.is_dir():
            raise InputError(option, str(folder), "is no folder", f"name a folder of data in the format of {name}")
