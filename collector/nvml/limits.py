"""Reading and writing the limits of this node's GPUs through NVML: power and locked SM clocks, nothing else.

Never fans, whose setter takes them from the driver's own control, and never application clocks, which NVIDIA removes.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from tocsin.collector.nvml.library import LIBRARY_CODES, Code, Nvml, NvmlFailure, attempt, text, unavailable
from tocsin.domain.power import ClockRange, Heat, LimitFailure, Obstacle, PowerLimits

SM_CLOCK = 1
"""``NVML_CLOCK_SM``."""
DIE = 0
"""``NVML_TEMPERATURE_GPU``."""
SLOWDOWN = 1
"""``NVML_TEMPERATURE_THRESHOLD_SLOWDOWN``."""
CLOCKS_SET_BY_SOMEBODY = 0x2
"""``nvmlClocksEventReasonApplicationsClocksSetting``, formerly "user-defined clocks"."""

_OBSTACLES = {
    Code.NO_PERMISSION: Obstacle.PERMISSION,
    Code.NOT_SUPPORTED: Obstacle.UNSUPPORTED,
    Code.FUNCTION_NOT_FOUND: Obstacle.UNSUPPORTED,
    Code.NOT_FOUND: Obstacle.UNKNOWN_GPU,
    Code.INVALID_ARGUMENT: Obstacle.REFUSED,
    Code.GPU_IS_LOST: Obstacle.LOST,
    Code.RESET_REQUIRED: Obstacle.LOST,
}
_REMEDIES = {
    Obstacle.PERMISSION: "the agent needs root for it (see docs/node_actions.md)",
    Obstacle.UNSUPPORTED: "this GPU or driver does not have it",
    Obstacle.LOST: "the GPU does not answer its driver",
    Obstacle.UNKNOWN_GPU: "no GPU of this node has this UUID now",
}


class NvmlLimits:
    """The power port of `tocsin.actions.node` over NVML.

    The library is opened at the first call and closed by `release`, so that an idle agent holds no handle here. A GPU
    is found by its UUID at every opening: indices change over a reset. A driver that was reloaded is opened anew once.
    Belongs to one thread.
    """

    def __init__(self, library: Nvml) -> None:
        self._library = library
        self._open = False
        self._handles: dict[str, Any] = {}

    def limits(self, gpu: str) -> PowerLimits:
        low, high = self._ask(gpu, "nvmlDeviceGetPowerManagementLimitConstraints")
        limits = PowerLimits(
            current_mw=int(self._ask(gpu, "nvmlDeviceGetPowerManagementLimit")),
            enforced_mw=int(self._ask(gpu, "nvmlDeviceGetEnforcedPowerLimit")),
            default_mw=int(self._ask(gpu, "nvmlDeviceGetPowerManagementDefaultLimit")),
            min_mw=int(low),
            max_mw=int(high),
        )
        if min(limits.current_mw, limits.enforced_mw, limits.default_mw, limits.max_mw) <= 0:
            raise LimitFailure(Obstacle.UNSUPPORTED, f"{gpu}: the driver gives a power limit of 0 W, which is none")
        return limits

    def set_limit(self, gpu: str, milliwatts: int) -> None:
        # Not the `_v2` of nvidia-ml-py, which never looks at the driver's answer.
        self._ask(gpu, "nvmlDeviceSetPowerManagementLimit", milliwatts)

    def heat(self, gpu: str) -> Heat:
        temperature = self._temperature(gpu)
        power = self._maybe(gpu, "nvmlDeviceGetPowerUsage")
        margin = self._maybe(gpu, "nvmlDeviceGetMarginTemperature")
        slowdown = self._maybe(gpu, "nvmlDeviceGetTemperatureThreshold", SLOWDOWN)
        # A driver that knows no slowdown temperature may give 0.
        return Heat(temperature, None if power is None else power / 1000.0, margin, slowdown or None)

    def _temperature(self, gpu: str) -> float:
        found = self._maybe(gpu, "nvmlDeviceGetTemperatureV", DIE)
        return float(self._ask(gpu, "nvmlDeviceGetTemperature", DIE)) if found is None else found

    def clocks(self, gpu: str) -> ClockRange:
        if not (memory := self._ask(gpu, "nvmlDeviceGetSupportedMemoryClocks")):
            raise LimitFailure(Obstacle.UNSUPPORTED, f"{gpu}: the driver lists no clocks that can be locked")
        graphics = self._ask(gpu, "nvmlDeviceGetSupportedGraphicsClocks", max(memory))
        reasons = self._maybe(gpu, "nvmlDeviceGetCurrentClocksEventReasons")
        return ClockRange(
            low_mhz=int(min(graphics)),
            high_mhz=int(self._ask(gpu, "nvmlDeviceGetMaxClockInfo", SM_CLOCK)),
            now_mhz=int(self._ask(gpu, "nvmlDeviceGetClockInfo", SM_CLOCK)),
            held=reasons is not None and bool(int(reasons) & CLOCKS_SET_BY_SOMEBODY),
        )

    def lock_clocks(self, gpu: str, low_mhz: int, high_mhz: int) -> None:
        self._ask(gpu, "nvmlDeviceSetGpuLockedClocks", low_mhz, high_mhz)

    def unlock_clocks(self, gpu: str) -> None:
        self._ask(gpu, "nvmlDeviceResetGpuLockedClocks")

    def release(self) -> None:
        self._handles.clear()
        if self._open:
            self._open = False
            try:
                self._library.close()
            except NvmlFailure:
                return

    def on_gpu(self, gpu: str, look: Callable[[Nvml, Any], Any]) -> Any:
        """What `look` finds with the library and the GPU's handle. Raises LimitFailure."""
        for last in (False, True):
            try:
                return look(self._library, self._handle(gpu))
            except NvmlFailure as failure:
                if failure.code in LIBRARY_CODES:
                    self.release()
                if last or failure.code != Code.UNINITIALIZED:
                    raise _failure(gpu, failure) from None
        raise AssertionError("unreachable")  # the second turn returns or raises

    def _ask(self, gpu: str, function: str, *arguments: Any) -> Any:
        return self.on_gpu(gpu, lambda library, handle: library.call(function, handle, *arguments))

    def _maybe(self, gpu: str, function: str, *arguments: Any) -> float | None:
        """None where this GPU does not tell."""
        found = self.on_gpu(gpu, lambda library, handle: attempt(library, function, handle, *arguments))
        return None if found is None else float(found)

    def _handle(self, gpu: str) -> Any:
        if not self._open:
            self._library.open()
            self._open = True
        if gpu not in self._handles:
            handle = self._library.call("nvmlDeviceGetHandleByUUID", gpu)
            if text(self._library.call("nvmlDeviceGetUUID", handle)) != gpu:
                raise NvmlFailure(Code.NOT_FOUND, "the driver gave a handle of another GPU")
            self._handles[gpu] = handle
        return self._handles[gpu]


def _failure(gpu: str, failure: NvmlFailure) -> LimitFailure:
    if failure.code in LIBRARY_CODES or failure.code in (Code.LIBRARY_NOT_FOUND, Code.TIMEOUT):
        return LimitFailure(Obstacle.DRIVER, str(unavailable(failure)))
    obstacle = _OBSTACLES.get(Code(failure.code), Obstacle.REFUSED) if failure.code in set(Code) else Obstacle.REFUSED
    remedy = _REMEDIES.get(obstacle, "see whether nvidia-smi can do it")
    return LimitFailure(obstacle, f"{gpu}: {failure}; {remedy}")
