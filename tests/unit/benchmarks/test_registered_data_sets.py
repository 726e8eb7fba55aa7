"""Which data sets are registered."""

from __future__ import annotations

import pkgutil
import tomllib
from importlib import import_module
from pathlib import Path

import pytest

import tocsin_benchmarks
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.result import DataSet
from tocsin.offline import backtest

ROOT = Path(__file__).parents[3]
REGISTERED = tomllib.loads((ROOT / "benchmarks" / "pyproject.toml").read_text())["project"]["entry-points"]


def test_every_benchmark_is_registered_by_its_name_and_is_a_data_set() -> None:
    folders = {one.name for one in pkgutil.iter_modules(tocsin_benchmarks.__path__) if one.ispkg}
    entries = REGISTERED[backtest.GROUP]
    assert set(entries) == folders
    for name, value in entries.items():
        module, attribute = value.split(":")
        assert isinstance(getattr(import_module(module), attribute), DataSet), name


def test_a_checkout_has_them_installed() -> None:
    assert set(REGISTERED[backtest.GROUP]) <= set(backtest.names()), "make setup installs benchmarks/"
    assert backtest.find("simulator").scenarios


def test_without_any_the_refusal_says_how_to_get_them(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(backtest, "GROUP", "tocsin.no_such_group")
    with pytest.raises(InputError, match="no data set is installed; in a checkout of Tocsin `make setup`"):
        backtest.find("titan")
