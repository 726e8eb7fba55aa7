"""What the how-to pages tell people to write works as it stands there."""

from __future__ import annotations

import re
import sys
import tomllib
from pathlib import Path
from types import ModuleType

import pytest

from tocsin.config.load import load_settings
from tocsin.domain.reading import Missing, sanitise
from tocsin.rules.load import parse_rules
from tocsin_testing.builders import T0

FOLDER = Path(__file__).parents[3] / "docs" / "howto"


def blocks(page: str, language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", (FOLDER / page).read_text(), re.MULTILINE | re.DOTALL)


@pytest.mark.parametrize("page", ["write-a-rule.md", "turn-on-a-rule.md"])
def test_the_rules_and_settings_are_sound(page: str, tmp_path: Path) -> None:
    found = blocks(page, "toml")
    assert found
    for text in found:
        if "actions" in tomllib.loads(text):
            path = tmp_path / "settings.toml"
            path.write_text(text)
            assert load_settings(path).actions.managed_pools == ["training"]
        else:
            assert len(parse_rules(text, page)) > 1


def test_the_alert_of_the_rule_tells_the_value_that_it_is_about() -> None:
    (text, *_) = blocks("write-a-rule.md", "toml")
    (rule,) = tomllib.loads(text)["rules"]
    assert rule["all"][0]["metric"] == "gpu_power_watts", "{value} and {threshold} are those of the first condition"


def test_the_source_reads_and_says_what_is_missing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (code,) = blocks("write-a-source.md", "python")
    module = ModuleType("bmc")
    monkeypatch.setitem(sys.modules, "bmc", module)
    exec(compile(code, "write-a-source.md", "exec"), module.__dict__)  # our own page
    path = tmp_path / "gpus.csv"
    path.write_text("GPU-a,61,402.5\nGPU-b,,\n")
    source = module.BmcSource(path, "n1")
    assert [(gpu.uuid, gpu.index) for gpu in source.gpus()] == [("GPU-a", 0), ("GPU-b", 1)]
    first, second = source.read(T0).readings
    assert first.values == {"gpu_temperature_celsius": 61.0, "gpu_power_watts": 402.5}
    assert second.missing == dict.fromkeys(module.METRICS, Missing.BLANK)
    assert [sanitise(reading)[1] for reading in (first, second)] == [[], []]
    path.write_text("GPU-b,50,200\n")
    lost, back = source.read(T0 + 1).readings
    assert set(lost.missing.values()) == {Missing.LOST}
    assert back.values["gpu_power_watts"] == 200
