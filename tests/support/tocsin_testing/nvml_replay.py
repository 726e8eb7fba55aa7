"""A stand-in for NVML that answers from recorded calls, and misbehaves where a test says so."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from tocsin.collector.nvml_library import XID_EVENTS, Code, DeviceEvent, FieldAnswer, NvmlFailure

DUMPS = Path(__file__).parents[2] / "data" / "nvml"


def dump(name: str) -> dict[str, Any]:
    """One recorded file."""
    found: dict[str, Any] = json.loads((DUMPS / f"{name}.json").read_text())
    return found


def devices(*names: str) -> list[dict[str, Any]]:
    """The recorded GPUs of some files, one after the other."""
    return [device for name in names for device in dump(name)["devices"]]


@dataclass(frozen=True)
class Handle:
    """A handle is good for the opening of the library that gave it."""

    opening: int
    device: int
    instance: int | None = None


class RecordedNvml:
    """Implements `tocsin.collector.nvml_library.Nvml`. Fields are counted in `batches`, calls by name in `calls`."""

    def __init__(self, recorded: Sequence[dict[str, Any]], init_error: int | None = None) -> None:
        self.devices = list(recorded)
        self.init_error = init_error
        self.opening = 0
        self.opened = False
        self.calls: list[str] = []
        self.batches = 0
        self.failures: dict[tuple[int, str], int] = {}
        self.once: dict[tuple[int, str], deque[int]] = {}
        self.closed_indices: dict[int, int] = {}
        self.hung: dict[int, threading.Event] = {}
        self.events: deque[tuple[int, int]] = deque()
        self.registered: set[int] = set()
        self.migs: dict[int, list[dict[str, Any]]] = {}

    def open(self) -> None:
        if self.init_error is not None:
            raise NvmlFailure(self.init_error, f"init error {self.init_error}")
        self.opened = True
        self.opening += 1

    def close(self) -> None:
        self._alive()
        self.opened = False

    def call(self, function: str, *arguments: Any) -> Any:
        self._alive()
        self.calls.append(function)
        if function == "nvmlDeviceGetCount":
            return len(self.devices)
        if function == "nvmlDeviceGetHandleByIndex":
            if arguments[0] in self.closed_indices:
                raise NvmlFailure(self.closed_indices[arguments[0]])
            return Handle(self.opening, arguments[0])
        if function == "nvmlEventSetCreate":
            return "set"
        handle: Handle = arguments[0]
        self._check(handle, function)
        if function == "nvmlDeviceRegisterEvents":
            self.registered.add(handle.device)
            return None
        if function == "nvmlDeviceGetMigDeviceHandleByIndex":
            if arguments[1] >= len(self.migs.get(handle.device, [])):
                raise NvmlFailure(Code.NOT_FOUND)
            return Handle(self.opening, handle.device, arguments[1])
        return self._answer(handle, function, arguments[1:])

    def fields(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> list[FieldAnswer]:
        self._alive()
        self._check(handle, "nvmlDeviceGetFieldValues")
        self.batches += 1
        recorded = self.devices[handle.device]["nvmlDeviceGetFieldValues"]["value"]
        by_id = {getattr(pynvml, name): entry for name, entry in recorded.items()}
        unknown = {"nvmlReturn": int(Code.NOT_SUPPORTED), "value": None}
        entries = [by_id.get(field, unknown) for field, _ in wanted]
        return [FieldAnswer(entry["nvmlReturn"], entry["value"]) for entry in entries]

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        self._alive()
        assert timeout_ms == 0, "a reading must not wait for events"
        if not self.events:
            return None
        device, code = self.events.popleft()
        return DeviceEvent(device, XID_EVENTS, code)

    def key(self, handle: Any) -> int:
        assert isinstance(handle, Handle)
        return handle.device

    def _alive(self) -> None:
        if not self.opened:
            raise NvmlFailure(Code.UNINITIALIZED, "Uninitialized")

    def _check(self, handle: Handle, function: str) -> None:
        assert handle.opening == self.opening, "a handle of a closed library was used: the real one would crash"
        gate = self.hung.get(handle.device)
        if gate is not None:
            gate.wait(30)
        queue = self.once.get((handle.device, function))
        if queue:
            raise NvmlFailure(queue.popleft())
        code = self.failures.get((handle.device, function), self.failures.get((handle.device, "*")))
        if code is not None:
            raise NvmlFailure(code)

    def _answer(self, handle: Handle, function: str, arguments: tuple[Any, ...]) -> Any:
        source = self.devices[handle.device]
        if handle.instance is not None:
            source = self.migs[handle.device][handle.instance]
        entry = source.get(f"{function}{arguments}" if arguments else function)
        if entry is None or "python_error" in entry:
            raise NvmlFailure(Code.FUNCTION_NOT_FOUND)
        if "error" in entry:
            raise NvmlFailure(entry.get("code", Code.FUNCTION_NOT_FOUND))
        return _friendly(entry["value"])


def _friendly(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _friendly(part) for key, part in value.items()})
    if isinstance(value, list):
        return [_friendly(part) for part in value]
    return value
