"""Which source `auto` comes to, and what an operator reads where there is none."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.source import HasReaders
from tocsin.config.settings import AgentSettings, Settings
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.reading import Missing
from tocsin.plugins import Kind, plugins
from tocsin.runtime.agent import sources
from tocsin.runtime.agent.sources import open_source
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.mock_gpus import h100
from tocsin_testing.mock_nvml import MockFleet


def settings(**agent: object) -> Settings:
    return Settings(agent=AgentSettings.model_validate({"host": "node-1", **agent}))


def test_auto_is_nvml_where_its_library_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_nvml_loads", lambda: True)
    with MockFleet(tmp_path, [h100(0), h100(1)]).loaded():
        source = open_source("auto", settings(), ManualClock(T0))
        assert source.name == "nvml"
        assert len(source.gpus()) == 2
        assert isinstance(source, HasReaders)
        assert source.stuck_readers == 0
        source.close()


def test_auto_does_not_hide_a_driver_that_is_not_loaded(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_nvml_loads", lambda: True)
    fleet = MockFleet(tmp_path, [h100(0)])
    fleet.system.fail("nvmlInitWithFlags", "DRIVER_NOT_LOADED")
    fleet.apply()
    with fleet.loaded(), pytest.raises(Unavailable, match="kernel driver is not loaded"):
        open_source("auto", settings(), ManualClock(T0))


def test_auto_is_nvidia_smi_where_no_library_loads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_nvml_loads", lambda: False)
    asked: list[object] = []

    class Smi:
        name = "nvidia_smi"

    monkeypatch.setattr(sources, "open_nvidia_smi", lambda *around: asked.append(around) or Smi())
    assert open_source("auto", settings(), ManualClock(T0)).name == "nvidia_smi"
    assert len(asked) == 1


@pytest.mark.parametrize("name", ["amdsmi", "npu_smi"])
def test_auto_is_another_vendor_s_where_only_that_answers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_nvml_loads", lambda: False)

    class Answers:
        def __init__(self) -> None:
            self.name = name

    def missing(*_around: object) -> None:
        raise Unavailable("not here")

    for one in ("nvidia_smi", "amdsmi", "npu_smi"):
        monkeypatch.setattr(sources, f"open_{one}", (lambda *_: Answers()) if one == name else missing)
    assert open_source("auto", settings(), ManualClock(T0)).name == name


def test_amdsmi_without_its_library_is_one_clear_error() -> None:
    with pytest.raises(Unavailable, match="library not found"):
        open_source("amdsmi", settings(), ManualClock(T0))


def test_npu_smi_reads_by_the_command_of_the_settings(tmp_path: Path) -> None:
    command = [str(tmp_path / "no-such-program")]
    with pytest.raises(Unavailable, match=r"agent\.npu_smi_command"):
        open_source("npu_smi", settings(npu_smi_command=command), ManualClock(T0))


def test_without_either_both_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sources, "_nvml_loads", lambda: False)
    command = [str(tmp_path / "no-such-program")]
    with pytest.raises(Unavailable, match=r"libnvidia-ml\.so\.1.*nvidia-smi") as caught:
        open_source("auto", settings(nvidia_smi_command=command), ManualClock(T0))
    assert caught.value.exit_code == 3


def test_whether_a_library_loads_is_found_out_by_loading_it(monkeypatch: pytest.MonkeyPatch) -> None:
    there: set[str] = set()

    def load(name: str) -> object:
        if name not in there:
            raise OSError(f"{name}: cannot open shared object file")
        return object()

    monkeypatch.setattr(sources.ctypes, "CDLL", load)
    assert not sources._nvml_loads()
    there.add("libnvidia-ml.so.1")
    assert sources._nvml_loads()


def test_nvml_lets_go_of_the_gpus_while_the_file_of_the_settings_is_there(tmp_path: Path) -> None:
    file = tmp_path / "release"
    with MockFleet(tmp_path, [h100(0)]).loaded():
        source = open_source("nvml", settings(release_file=str(file)), ManualClock(T0))
        file.touch()
        assert set(source.read(T0).readings[0].missing.values()) == {Missing.NOT_DUE}
        file.unlink()
        assert source.read(T0 + 1_000).readings[0].values
        source.close()


def test_the_sources_are_those_of_the_settings() -> None:
    own = {"auto", "nvml", "nvidia_smi", "dcgm_exporter", "dcgmi", "amdsmi", "npu_smi", "simulated", "replay"}
    assert set(plugins(Kind.SOURCE)) == own
    text = AgentSettings.model_fields["source"].description or ""
    assert all(f"`{name}`" in text for name in plugins(Kind.SOURCE))


def test_dcgm_exporter_counts_on_the_agent_s_own_metrics() -> None:
    own = OwnMetrics()
    source = open_source("dcgm_exporter", settings(dcgm_url="http://127.0.0.1:9/metrics"), ManualClock(T0), own)
    assert source.name == "dcgm_exporter"
    source.close()


def test_a_dcgm_exporter_address_that_is_none_is_one_clear_error() -> None:
    wanted = settings()
    made_by_hand = wanted.model_copy(update={"agent": wanted.agent.model_copy(update={"dcgm_url": "exporter:9400"})})
    with pytest.raises(InputError, match=r"agent\.dcgm_url"):
        open_source("dcgm_exporter", made_by_hand, ManualClock(T0))


def test_dcgmi_that_is_not_there_is_unavailable(tmp_path: Path) -> None:
    command = [str(tmp_path / "no-such-program")]
    with pytest.raises(Unavailable):
        open_source("dcgmi", settings(dcgmi_command=command), ManualClock(T0))
