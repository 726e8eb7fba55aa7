"""A stand-in for NVML that answers from recorded calls, and misbehaves where a test says so."""

from __future__ import annotations

import json
import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pynvml

from tocsin.collector.nvml.library import XID_EVENTS, Code, DeviceEvent, FieldReplies, Gpm, NvmlFailure, coded

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
    """Implements `tocsin.collector.nvml.library.Nvml`. Fields are counted in `batches`, calls by name in `calls`.

    GPM answers by device from `gpm_values`, in the driver's units by metric id; a device that is not there has none.
    """

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
        self.hung_calls: dict[str, threading.Event] = {}
        self.field_failures: dict[tuple[int, int], int] = {}
        self.latencies: dict[int, int] = {}
        self.gpm_values: dict[int, dict[int, float]] = {}
        self.gpm_samples = 0
        self.waits: deque[DeviceEvent | int] = deque()
        self._change = threading.Condition()
        self.longest_wait = 10.0
        self.kinds: dict[int, int] = {}
        self._waits_begun = 0
        self._last_taken = 0
        self.registered: set[int] = set()
        self.migs: dict[int, list[dict[str, Any]]] = {}
        self.placements: dict[int, dict[str, Any]] = {}
        self.vgpus: dict[int, dict[str, Any]] = {}
        self._of_library: dict[str, Callable[..., Any]] = {
            "nvmlDeviceGetCount": lambda: len(self.devices),
            "nvmlDeviceGetHandleByIndex": self._handle,
            "nvmlEventSetCreate": lambda: f"set {self.calls.count('nvmlEventSetCreate')}",
            "nvmlEventSetFree": lambda _event_set: None,
            "nvmlSystemGetDriverVersion": lambda: "550.163.01",
            "nvmlSystemGetCudaDriverVersion_v2": lambda: 12_040,
            "nvmlGpuInstanceGetInfo": lambda number: _friendly(self.placements[number]),
        }
        self._of_device: dict[str, Callable[..., Any]] = {
            "nvmlDeviceRegisterEvents": self._register,
            "nvmlDeviceGetMigDeviceHandleByIndex": self._mig,
            "nvmlDeviceGetGpuInstanceById": self._instance,
            "nvmlGpmQueryDeviceSupport": lambda handle: SimpleNamespace(
                isSupportedDevice=int(handle.device in self.gpm_values)
            ),
        }

    def open(self) -> None:
        if self.init_error is not None:
            raise NvmlFailure(self.init_error, f"init error {self.init_error}")
        self.opened = True
        self.opening += 1

    def close(self) -> None:
        self._alive()
        with self._change:
            self.opened = False
            self._change.notify_all()

    def call(self, function: str, *arguments: Any) -> Any:
        self._alive()
        self.calls.append(function)
        if function in self.hung_calls:
            self.hung_calls[function].wait(30)
        if function.startswith("nvmlVgpu"):
            return self._vgpu(function, arguments[0])
        if function in self._of_library:
            return self._of_library[function](*arguments)
        handle: Handle = arguments[0]
        self._check(handle, function)
        special = self._of_device.get(function)
        return self._answer(handle, function, arguments[1:]) if special is None else special(*arguments)

    def _handle(self, index: int) -> Handle:
        if index in self.closed_indices:
            raise NvmlFailure(self.closed_indices[index])
        return Handle(self.opening, index)

    def _register(self, handle: Handle, kinds: int, _event_set: Any) -> None:
        self.registered.add(handle.device)
        self.kinds[handle.device] = kinds

    def _instance(self, handle: Handle, number: int) -> int:
        if number not in self.placements:
            raise NvmlFailure(Code.NOT_FOUND)
        return number

    def _mig(self, handle: Handle, index: int) -> Handle:
        if index >= len(self.migs.get(handle.device, [])):
            raise NvmlFailure(Code.NOT_FOUND)
        return Handle(self.opening, handle.device, index)

    def bind(self, function: str, handle: Any, *arguments: Any) -> Callable[[], tuple[int, Any]]:
        return coded(lambda: self.call(function, handle, *arguments))

    def batch(self, handle: Any, wanted: Sequence[tuple[int, int]]) -> Callable[[], tuple[int, FieldReplies | None]]:
        def replies() -> FieldReplies:
            self._alive()
            self._check(handle, "nvmlDeviceGetFieldValues")
            self.batches += 1
            recorded = self.devices[handle.device]["nvmlDeviceGetFieldValues"]["value"]
            by_id = {getattr(pynvml, name.split("[")[0]): entry for name, entry in recorded.items() if "[" not in name}
            by_link = {name: entry for name, entry in recorded.items() if "[" in name}
            unknown = {"nvmlReturn": int(Code.NOT_SUPPORTED), "value": None}
            entries = [_link_entry(by_link, field, scope) or by_id.get(field, unknown) for field, scope in wanted]
            codes = [
                self.field_failures.get((handle.device, field), entry["nvmlReturn"])
                for (field, _), entry in zip(wanted, entries, strict=True)
            ]
            return FieldReplies(codes, [entry["value"] or 0 for entry in entries], self.latencies.get(handle.device, 7))

        return coded(replies)

    def gpm(self, handle: Any, instance: int | None, metrics: Sequence[int]) -> Gpm:
        return RecordedGpm(self, handle, instance, metrics)

    def wait(self, event_set: Any, timeout_ms: int) -> DeviceEvent | None:
        with self._change:
            self._alive()
            self._waits_begun += 1
            self._change.notify_all()
            self._change.wait_for(lambda: self.waits or not self.opened, min(timeout_ms / 1000, self.longest_wait))
            self._alive()
            seen = self.waits.popleft() if self.waits else None
            if seen is not None:
                self._last_taken = self._waits_begun
                self._change.notify_all()
        if isinstance(seen, int):
            raise NvmlFailure(seen)
        return seen

    def happen(self, *happenings: DeviceEvent | int) -> None:
        """Let a wait come back with each, an event or an error code; returns when the next wait has begun."""
        with self._change:
            self.waits.extend(happenings)
            self._change.notify_all()
            assert self._change.wait_for(lambda: not self.waits and self._waits_begun > self._last_taken, 10)

    def xid(self, device: int, code: int) -> None:
        """An XID of a GPU."""
        self.happen(DeviceEvent(device, XID_EVENTS, code))

    def key(self, handle: Any) -> int:
        assert isinstance(handle, Handle)
        return handle.device

    def _alive(self) -> None:
        if not self.opened:
            raise NvmlFailure(Code.UNINITIALIZED, "Uninitialized")

    def _check(self, handle: Handle, function: str) -> None:
        assert handle.opening == self.opening, "a handle of a closed library was used: the real one would crash"
        if handle.device >= len(self.devices):
            raise NvmlFailure(Code.GPU_IS_LOST)
        gate = self.hung.get(handle.device)
        if gate is not None:
            gate.wait(30)
        queue = self.once.get((handle.device, function))
        if queue:
            raise NvmlFailure(queue.popleft())
        code = self.failures.get((handle.device, function), self.failures.get((handle.device, "*")))
        if code is not None:
            raise NvmlFailure(code)

    def _vgpu(self, function: str, number: int) -> Any:
        if function not in self.vgpus.get(number, {}):
            raise NvmlFailure(Code.NOT_SUPPORTED)
        return self.vgpus[number][function]

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


class RecordedGpm:
    """GPM of one recorded device; metrics that it does not have say "not supported" one by one."""

    def __init__(self, library: RecordedNvml, handle: Handle, instance: int | None, metrics: Sequence[int]) -> None:
        self._library = library
        self._handle = handle
        self._metrics = metrics
        self.instance = instance
        self._taken = 0

    def allocate(self) -> int:
        return Code.SUCCESS

    def sample(self) -> int:
        try:
            self._library._alive()
            self._library._check(self._handle, "nvmlGpmSampleGet")
        except NvmlFailure as failure:
            return failure.code
        self._taken += 1
        self._library.gpm_samples += 1
        return Code.SUCCESS

    def metrics(self) -> tuple[int, Sequence[int], Sequence[float]]:
        assert self._taken >= 2, "metrics need two samples"
        try:
            self._library._check(self._handle, "nvmlGpmMetricsGet")
        except NvmlFailure as failure:
            return failure.code, (), ()
        known = self._library.gpm_values.get(self._handle.device, {})
        codes = [int(Code.SUCCESS if number in known else Code.NOT_SUPPORTED) for number in self._metrics]
        return Code.SUCCESS, codes, [known.get(number, 0.0) for number in self._metrics]

    def free(self) -> None:
        self._library._alive()


def _link_entry(recorded: dict[str, Any], field: int, scope: int) -> dict[str, Any] | None:
    """The entry of one link, which a recording names ``NAME[link]``."""
    for name, entry in recorded.items():
        base, _, link = name.partition("[")
        if getattr(pynvml, base) == field and int(link.rstrip("]")) == scope:
            found: dict[str, Any] = entry
            return found
    return None


def _friendly(value: Any) -> Any:
    if isinstance(value, dict):
        return SimpleNamespace(**{key: _friendly(part) for key, part in value.items()})
    if isinstance(value, list):
        return [_friendly(part) for part in value]
    return value
