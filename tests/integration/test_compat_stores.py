"""Stores that commit 2bd2118 wrote: the same readings, windows, events, findings and predictions, before and after
upkeep; backups come back; and what lies beside a store is taken up."""

from __future__ import annotations

import shutil
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.config.settings import StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.prediction import MODEL_GATE
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin.forecaster.lifecycle.gate import GateRecord
from tocsin.forecaster.lifecycle.model_registry import ModelRegistry
from tocsin.forecaster.live.risk import RiskWatch
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin.store.upkeep import look_after
from tocsin_testing.builders import gpu, reading
from tocsin_testing.compat import (
    CHARTED,
    STORES,
    columns_row,
    expected,
    identified,
    plain,
    reading_row,
    series_row,
    sums,
    unpack,
    within,
)

FOREVER = {"raw_days": 1.0, "minute_days": 2.0, "ten_minute_days": 10_000.0}


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return unpack(tmp_path_factory.mktemp("compat"))


@pytest.fixture
def state(packed: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(packed, tmp_path / "state"))


def settings_of(path: Path) -> StoreSettings:
    return StoreSettings.model_validate({"kind": StoreKind.SQLITE, "path": path, **FOREVER})


@contextmanager
def opened(path: Path) -> Iterator[Store]:
    store = open_store(settings_of(path))
    with closing(store):
        store.init()
        yield store


def now_of(name: str) -> int:
    return int(expected()["now_ms"] if name == "store/store.db" else expected()["brain"]["now_ms"])


def close(found: Any, wanted: Any) -> None:
    """The same values, sums as far as their order may change them."""
    assert found.keys() == wanted.keys()
    for name, value in wanted.items():
        assert found[name] == pytest.approx(value, rel=1e-12), name


def check(store: Store, name: str) -> None:
    wanted, everything = expected()["stores"][name], (0, now_of(name) + DAY)
    assert [plain(one) for one in store.gpus()] == wanted["gpus"]
    assert [[one.gpu.uuid, one.at_ms] for one in store.latest(0)] == wanted["latest"]
    assert identified(store.events(*everything)) == wanted["events"]
    assert within(wanted["findings"], identified(store.findings(*everything)))
    assert within(wanted["predictions"], identified(store.predictions(*everything)))
    found = sums(store, *everything)
    close(found.pop("sums"), wanted["sums"]["sums"])
    assert found == {part: value for part, value in wanted["sums"].items() if part != "sums"}
    if "readings" in wanted:
        assert [reading_row(one) for one in store.readings(*everything)] == wanted["readings"]


def check_charts(store: Store, name: str) -> None:
    wanted, everything = expected()["stores"][name], (0, now_of(name) + DAY)
    first = wanted["gpus"][0]["uuid"]
    assert series_row(store.series(first, CHARTED, *everything)) == wanted["series"]
    assert columns_row(store.columns(CHARTED, *everything)) == wanted["columns"]


@pytest.mark.parametrize("name", STORES)
def test_it_answers_as_its_own_version_did(state: Path, name: str) -> None:
    with opened(state / name) as store:
        check(store, name)
        check_charts(store, name)


def test_windows_keep_their_extremes(state: Path) -> None:
    wanted = expected()["stores"]["store/store.db"]
    with opened(state / "store" / "store.db") as store:
        low, high = store.extremes(wanted["gpus"][0]["uuid"], CHARTED, 0, now_of("store/store.db") + DAY)  # type: ignore[attr-defined]
        assert [series_row(low), series_row(high)] == wanted["extremes"]


@pytest.mark.parametrize("name", STORES)
def test_upkeep_loses_nothing(state: Path, name: str) -> None:
    with opened(state / name) as store:
        for number in range(3):
            look_after(store, settings_of(state / name), now_of(name) - HOUR + number * 60_000)
        check(store, name)
        check_charts(store, name)
    with opened(state / name) as store:
        check(store, name)


def test_it_takes_what_is_written_now(state: Path) -> None:
    path, now = state / "store" / "store.db", now_of("store/store.db")
    with opened(path) as store:
        store.write(Batch([reading(gpu(7), now + 1, temperature_celsius=41.5)]))
        merged = next(one for one in store.latest(0) if one.gpu.uuid == "GPU-00000002")
        store.write(Batch([type(merged)(merged.gpu, merged.at_ms, {"gpu_temperature_celsius": 99.0})]))
    with opened(path) as store:
        assert dict(next(store.readings(now + 1, now + 2)).values) == {"gpu_temperature_celsius": 41.5}
        found = next(one for one in store.latest(0) if one.gpu.uuid == "GPU-00000002")
        assert dict(found.values) == dict(merged.values) | {"gpu_temperature_celsius": 99.0}


def test_a_backup_is_restored_and_answers_the_same(state: Path, tmp_path: Path) -> None:
    config, target = tmp_path / "tocsin.toml", tmp_path / "new" / "store.db"
    config.write_text(f'[store]\npath = "{target}"\n')
    run = CliRunner().invoke(
        cli, ["--config", str(config), "store", "restore", str(state / "backups" / "store.db"), "--json"]
    )
    assert run.exit_code == 0, run.output
    with opened(target) as store:
        check(store, "store/store.db")
        check_charts(store, "store/store.db")


def test_the_commands_look_after_it(state: Path, tmp_path: Path) -> None:
    config, target = tmp_path / "tocsin.toml", tmp_path / "copy.db"
    path = state / "store" / "store.db"
    config.write_text(f'[store]\npath = "{path}"\nten_minute_days = 100000\nminute_days = 100000\nraw_days = 100000\n')
    for words in (("store", "init"), ("store", "backup", str(target)), ("store", "prune", "--json")):
        run = CliRunner().invoke(cli, ["--config", str(config), *words])
        assert run.exit_code == 0, run.output
    for one in (path, target):
        with opened(one) as store:
            check(store, "store/store.db")


# ------------------------------------------------------------------------------------------------ models


def test_saved_models_score_as_they_did(state: Path) -> None:
    wanted, shelf = expected()["models"], ModelRegistry(state / "models")
    assert (shelf.versions(), shelf.in_service) == (wanted["versions"], wanted["in_service"])
    assert plain(shelf.history()) == wanted["history"]
    assert plain(shelf.card("one")) == wanted["card"]
    scorer = shelf.load("one").scorer
    assert scorer.score(_asked(tuple(wanted["card"]["features"]), wanted["replays"])) == pytest.approx(
        np.array(wanted["scores"]), abs=1e-9
    )


def _asked(names: tuple[str, ...], replays: list[float]) -> Examples:
    """GPUs of which nothing but their PCIe replays is known."""
    rows = len(replays)
    features = np.full((rows, len(names)), np.nan, np.float32)
    features[:, names.index("pcie_replay.24h")] = replays
    zeros = np.zeros(rows, np.int64)
    return Examples(
        devices=tuple(f"G{n}" for n in range(rows)),
        device=np.arange(rows, dtype=np.int32),
        groups=("all",),
        group=np.zeros(rows, np.int32),
        at_ms=zeros,
        names=names,
        features=features,
        seen_ms=zeros,
        history_ms=np.full(rows, 30 * DAY),
        event_ms=np.full(rows, NEVER),
        until_ms=np.full(rows, DAY),
        event_class=np.full(rows, ""),
        weight=np.ones(rows),
    )


def test_kept_features_are_gone_on_from(state: Path) -> None:
    path, now, asked = state / "store" / "store.db", now_of("store/store.db"), list[int]()
    with opened(path) as store:

        class Counted:
            def __getattr__(self, name: str) -> object:
                return getattr(store, name)

            def columns(self, metrics: Any, start_ms: int, *more: Any) -> object:
                asked.append(start_ms)
                return store.columns(metrics, start_ms, *more)

        counted: Any = Counted()
        # It was never judged, as there was no gate: a version of before it is heard once it was.
        models = ModelRegistry(state / "models")
        for simulated in (True, False):
            models.record(str(models.in_service), GateRecord(True, simulated, "kept", 40))
        place = RiskInputs(settings_of(path), state / "models", path.with_name("store.db.features.npz"))
        said = [
            one for one in RiskWatch(place, counted).predict(SeenGpus(store.gpus()), now) if one.target != MODEL_GATE
        ]
    found = [[one.subject.name, one.target, one.model_version] for one in said]
    assert found == [one[:3] for one in expected()["risks"]]
    assert [one.probability for one in said] == pytest.approx([one[3] for one in expected()["risks"]])
    assert asked
    assert min(asked) > now - 2 * HOUR - 1, "what was read before is not read again"
