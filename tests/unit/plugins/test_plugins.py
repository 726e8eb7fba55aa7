"""The registry: Tocsin's own plug-ins, and those of installed packages."""

from __future__ import annotations

import importlib
import json
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner

from tocsin.actions.guards.base import guards
from tocsin.cli.main import cli
from tocsin.config.load import check_plugins
from tocsin.config.settings import ActionSettings, ForecastSettings, Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.forecaster.live.worker_process import Models
from tocsin.plugins import BUILT_IN, Kind, Plugin, load, load_all, plugins
from tocsin.rules.load import parse_rules
from tocsin.runtime.agent.companions import Companions, Context
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.histories import TEMPERATURE, history, noise
from tocsin_testing.rule_runs import HEAD


@pytest.fixture(autouse=True)
def fresh() -> Iterator[None]:
    plugins.cache_clear()
    load_all.cache_clear()
    yield
    plugins.cache_clear()
    load_all.cache_clear()


def install(folder: Path, monkeypatch: pytest.MonkeyPatch, points: str, package: str = "acme") -> None:
    """A package with `points` as its entry points, as an installer leaves it."""
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(points)
    (folder / f"{package}_parts.py").write_text("THING = 'theirs'\n")
    monkeypatch.syspath_prepend(str(folder))
    importlib.invalidate_caches()


@pytest.mark.parametrize("kind", list(Kind))
def test_what_tocsin_brings_is_there(kind: Kind) -> None:
    for name, target in BUILT_IN.get(kind, {}).items():
        module, _, attribute = target.partition(":")
        assert importlib.util.find_spec(module) is not None, name
        assert attribute


def test_a_package_adds_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.channel]\npager = acme_parts:THING\n")
    assert plugins(Kind.CHANNEL)["pager"].package == "acme"
    assert load(Kind.CHANNEL, "pager", "notify.channels") == "theirs"
    sys.modules.pop("acme_parts")


def test_nothing_is_imported_before_it_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.guard]\nours = acme_parts:THING\n")
    assert "ours" in plugins(Kind.GUARD)
    assert "acme_parts" not in sys.modules


def test_a_name_of_ours_is_not_taken_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.condition]\nthreshold = acme_parts:THING\n")
    with pytest.raises(InputError, match="claimed by packages tocsin and acme"):
        plugins(Kind.CONDITION)


def test_one_that_does_not_load_names_its_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.store]\nours = acme_parts:NOTHING\n")
    with pytest.raises(InputError) as refused:
        load(Kind.STORE, "ours", "store.kind")
    assert refused.value.remedy == "mend or uninstall package acme"
    sys.modules.pop("acme_parts")


def test_a_companion_that_does_not_load_costs_no_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.companion]\nours = acme_parts:NOTHING\n")
    own = OwnMetrics()
    companions = Companions(Context(Settings(), ManualClock(T0), own, "simulated"))
    batch = Batch(readings=(reading(gpu(0), temperature_celsius=50),))
    assert companions.enrich(batch, T0).readings == batch.readings
    assert (
        own.value("tocsin_companion_up", companion="ours"),
        own.value("tocsin_companion_up", companion="frozen"),
    ) == (0, 1)
    companions.close()
    sys.modules.pop("acme_parts")


FORECASTER = """
class THING:
    name, version, metrics = "ours", "1", ("gpu_power_watts",)

    def __init__(self, settings):
        pass

    def predict(self, history, now_ms):
        raise LookupError("bug")
"""


@pytest.mark.parametrize(("there", "metrics"), [(FORECASTER, ("gpu_power_watts",)), ("", ())])
def test_a_forecaster_that_fails_costs_no_forecast_of_others(
    there: str, metrics: tuple[str, ...], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    alone = Models(ForecastSettings())
    plugins.cache_clear()
    install(tmp_path, monkeypatch, "[tocsin.forecaster]\nours = acme_parts:THING\n")
    (tmp_path / "acme_parts.py").write_text(there)
    models = Models(ForecastSettings())
    assert models.metrics == tuple(dict.fromkeys((*alone.metrics, *metrics)))
    past = [history({TEMPERATURE: 55 + noise(720, 1.0)})]
    assert models.predict(past, T0) == alone.predict(past, T0) != []
    with pytest.raises((InputError, LookupError)):
        Models(ForecastSettings(), only=["ours"]).predict(past, T0)
    sys.modules.pop("acme_parts")


RULE = f"""
[[rules]]
name = "hot"
{HEAD}
alert = "{{where}}"
all = [{{ kind = "KIND", metric = "gpu_temperature_celsius", above = 70 }}]
"""


def test_a_condition_that_does_not_load_stops_only_the_rules_that_name_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "[tocsin.condition]\nours = acme_parts:NOTHING\n")
    assert [rule.name for rule in parse_rules(RULE.replace("KIND", "threshold"), "x")] == ["hot"]
    with pytest.raises(InputError, match="does not load"):
        parse_rules(RULE.replace("KIND", "ours"), "x")
    sys.modules.pop("acme_parts")


@pytest.mark.parametrize("there", ["THING = 'theirs'", "from tocsin.actions.guards.permission import mode as THING"])
def test_what_is_no_guard_of_its_name_is_refused(there: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.guard]\nours = acme_parts:THING\n")
    (tmp_path / "acme_parts.py").write_text(there + "\n")
    with pytest.raises(InputError, match="is no Guard of that name"):
        guards.__wrapped__()
    sys.modules.pop("acme_parts")


def test_a_name_that_nobody_has_is_answered_with_the_nearest() -> None:
    with pytest.raises(InputError) as refused:
        load(Kind.CONDITION, "treshold", "rule r: kind")
    assert refused.value.remedy.startswith("did you mean threshold? known are drift, ")


def test_a_library_that_is_not_installed_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.delitem(sys.modules, "tocsin_needs_torch", raising=False)
    plugin = Plugin(Kind.SCORER, "lstm", "tocsin", "torch:nn")
    with pytest.raises(Unavailable, match=r"with the extra deep"):
        plugin.load()


def test_the_command_lists_them(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install(tmp_path, monkeypatch, "[tocsin.executor]\nticket = acme_parts:THING\n")
    answer = CliRunner().invoke(cli, ["plugins", "--json"])
    listed = json.loads(answer.output)
    assert {"kind": "executor", "name": "ticket", "package": "acme"} in listed
    assert {"kind": "condition", "name": "xid", "package": "tocsin"} in listed
    assert "ticket" in CliRunner().invoke(cli, ["plugins"]).output


def test_the_check_of_settings_knows_the_names_of_other_packages(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install(tmp_path, monkeypatch, "[tocsin.executor]\nticket = acme_parts:THING\n")
    check_plugins(Settings(actions=ActionSettings(executors=["ticket"], pool_executors={"hpc": ["ticket"]})))
