"""The faults that Ascend's device plugin lists in its ConfigMap, from a file that holds key ``DeviceInfoCfg``.

The ConfigMap ``mindx-dl-deviceinfo-NODE`` has, under ``DeviceInfo.DeviceList``, a key ``huawei.com/NAME-Fault`` whose
value is a JSON list as text. A site may move codes to other levels: what stands there wins over our table's levels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tocsin.collector.npu_smi.text import codes_of

MOST_BYTES = 1 << 20
"""A ConfigMap is at most 1 MiB."""
MOST_FAULTS = 1_000
_CARD = re.compile(r"^[A-Za-z0-9]{1,40}-([0-9]{1,4})$")
_LEVEL = re.compile(r"^[A-Za-z]{1,40}$")


class PluginFileError(Exception):
    """The file cannot be used; the text says why."""


@dataclass(frozen=True, slots=True)
class PluginFault:
    """One fault: the card by the plugin's number, the code, its level; empty where it has none."""

    card: int
    code: str
    level: str


def read_plugin_faults(path: Path) -> list[PluginFault]:
    """The faults of a file. Raises PluginFileError where it cannot be read or is none."""
    try:
        with path.open("rb") as file:
            text = file.read(MOST_BYTES + 1)
    except OSError as error:
        raise PluginFileError(f"cannot be read: {error.strerror}") from None
    if len(text) > MOST_BYTES:
        raise PluginFileError(f"is larger than {MOST_BYTES} bytes")
    return parse_plugin_faults(text.decode("utf-8", errors="replace"))


def parse_plugin_faults(text: str) -> list[PluginFault]:
    """The faults of a document. Raises PluginFileError where it is none; a fault that cannot be read is left out."""
    document = _json(text)
    inner = document.get("DeviceInfoCfg") if isinstance(document, dict) else None
    if isinstance(inner, str):
        document = _json(inner)
    info = document.get("DeviceInfo") if isinstance(document, dict) else None
    devices = info.get("DeviceList") if isinstance(info, dict) else None
    if not isinstance(devices, dict):
        raise PluginFileError("has no DeviceInfo.DeviceList")
    found: list[PluginFault] = []
    for key, value in devices.items():
        if key.endswith("-Fault") and isinstance(value, str) and value.strip():
            entries = _json(value)
            found += [fault for one in entries if (fault := _fault(one))] if isinstance(entries, list) else []
    return found[:MOST_FAULTS]


def _json(text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise PluginFileError("is no JSON") from None


def _fault(entry: object) -> PluginFault | None:
    if not isinstance(entry, dict):
        return None
    name, code = entry.get("npu_name"), entry.get("fault_code")
    card = _CARD.match(name) if isinstance(name, str) else None
    if card is None or not isinstance(code, str):
        return None
    codes = codes_of(code)
    level = next(_levels(entry), "")
    if not codes and not level:
        return None
    return PluginFault(int(card[1]), codes[0] if codes else code.strip()[:40], level)


def _levels(entry: dict[str, Any]) -> Iterator[str]:
    for name in ("fault_level", "fault_handling", "large_model_fault_level"):
        level = entry.get(name)
        if isinstance(level, str) and _LEVEL.match(level):
            yield level
