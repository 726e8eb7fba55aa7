"""The table of vendor metrics against the text of AMD's own Python package, which cannot be imported without ROCm."""

from __future__ import annotations

import importlib
import re
import sys
from functools import cache
from pathlib import Path

import pytest

from tocsin.collector.amdsmi.library import _ARGUMENTS, _LISTENED, AmdSmiLibrary, Status
from tocsin.domain.errors import Unavailable
from tocsin.domain.vendor_metrics import AMD, VendorMetric, vendor_metrics

ASIDE = Path(sys.prefix) / "aside"
"""Where `make setup` puts the package: among the others it would break the import of Ray."""
_NOT_KEYS = frozenset({"", "RESERVED", "UNRESERVABLE", "PENDING"})


@cache
def text(name: str) -> str:
    return (ASIDE / "amdsmi" / name).read_text(encoding="utf-8")


def body(function: str) -> str:
    found = re.search(
        rf"^def {function}\(.*?(?=^def |^class |\Z)", text("amdsmi_interface.py"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, function
    return found[0]


def members(enumeration: str) -> set[str]:
    found = re.search(
        rf"^class {enumeration}\(.*?(?=^def |^class )", text("amdsmi_interface.py"), re.DOTALL | re.MULTILINE
    )
    assert found is not None, enumeration
    return set(re.findall(r"^    ([A-Z0-9_]+) = ", found[0], re.MULTILINE))


@pytest.mark.parametrize("row", vendor_metrics(AMD), ids=lambda row: f"{row.metric} {row.label_value}".strip())
def test_every_row_names_a_function_arguments_and_keys_that_exist(row: VendorMetric) -> None:
    function, _, rest = row.call.partition("(")
    said = body(function)
    arguments = [word.strip() for word in rest.rstrip(")").split(",") if word.strip()]
    for kind, word in zip(_ARGUMENTS.get(function, ()), arguments, strict=True):
        assert word in members(kind)
    for key in {part.lstrip("#") for part in re.split(r"[.*+:]|\[\]", row.key)} - _NOT_KEYS:
        assert re.search(rf"""['"]{key}['"]""", said), key


def test_error_numbers_and_events_are_the_package_s() -> None:
    numbers = dict(re.findall(r"^AMDSMI_STATUS_(\w+) = (\d+)$", text("amdsmi_wrapper.py"), re.MULTILINE))
    assert {status.name: str(int(status)) for status in Status}.items() <= numbers.items()
    assert set(_LISTENED) <= members("AmdSmiEvtNotificationType")


def test_the_package_without_rocm_is_one_clear_error_and_prints_nothing(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(ASIDE)
    with pytest.raises(KeyError):
        importlib.import_module("amdsmi")
    capsys.readouterr()
    with pytest.raises(Unavailable, match="library not found"):
        AmdSmiLibrary().open()
    assert capsys.readouterr().out == ""
