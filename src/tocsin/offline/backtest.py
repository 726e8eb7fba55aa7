"""`tocsin backtest --dataset`: the data sets that installed packages register, and one run of them.

The product has none of its own; the package in `benchmarks/` of a checkout registers those of the reports.
"""

from __future__ import annotations

from dataclasses import replace
from importlib.metadata import entry_points

from tocsin.domain.clock import Clock
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import DataSet, Request, Result

GROUP = "tocsin.datasets"


def names() -> tuple[str, ...]:
    """Of the data sets that are registered."""
    return tuple(sorted(entry_points(group=GROUP).names))


def find(name: str) -> DataSet:
    """The data set `name`. Raises InputError, which says how to get one, where it is not registered."""
    for entry in entry_points(group=GROUP, name=name):
        found = entry.load()
        assert isinstance(found, DataSet), entry.value
        return found
    if names():
        raise InputError("--dataset", name, "no such data set", f"use one of {', '.join(names())}")
    remedy = "in a checkout of Tocsin `make setup` installs them; or backtest your own fleet with --store or files"
    raise InputError("--dataset", name, "no data set is installed", remedy)


def run_dataset(name: str, dataset: DataSet, request: Request, clock: Clock) -> Result:
    """Run the protocol of `dataset`; `seconds` of the result is what it took by `clock`.

    Raises InputError where a folder is not there or holds something else, or an option is for other data sets.
    """
    _check(name, dataset, request)
    begun = clock.monotonic()
    return replace(dataset.run(request), seconds=clock.monotonic() - begun)


def _check(name: str, dataset: DataSet, request: Request) -> None:
    if request.scenario is not None and not dataset.scenarios:
        raise InputError("--scenario", str(request.scenario), f"{name} takes none", "leave it out")
    for option, folder in (("--train", request.train), ("--test", request.test)):
        if folder is not None and not folder.is_dir():
            raise InputError(option, str(folder), "is no folder", f"name a folder of data in the format of {name}")
