"""The processes on a GPU."""

from __future__ import annotations

from functools import partial
from typing import Any

from tocsin.collector.nvml.answers import LASTING, Answers, reason_of
from tocsin.collector.nvml.asker import ask
from tocsin.collector.nvml.decode import PERCENT, scaled
from tocsin.collector.nvml.library import Code, Nvml, coded
from tocsin.domain.metrics import variant
from tocsin.domain.missing import Missing

_LISTS = (
    "nvmlDeviceGetComputeRunningProcesses",
    "nvmlDeviceGetGraphicsRunningProcesses",
    "nvmlDeviceGetMPSComputeRunningProcesses",
)
_UTILIZATION = "nvmlDeviceGetProcessUtilization"
_FULL = 100


class Processes:
    """Compute, graphics and MPS processes of one handle, each counted once.

    A process whose memory the driver does not tell is blank. The count needs every list that the GPU has: one that
    fails leaves it unknown, for a GPU that looks free may be reset. `utilization` adds the mean SM utilisation of each
    since the reading before, which no MIG instance and no MIG-enabled GPU has.
    """

    def __init__(self, library: Nvml, handle: Any, *, utilization: bool) -> None:
        self._library = library
        self._handle = handle
        self._lists = list(_LISTS)
        self._refused: Missing | None = None
        self._utilization: Missing | None = None if utilization else Missing.UNSUPPORTED
        self._last_seen = 0

    def read(self, answers: Answers) -> None:
        """Add the count, and memory and SM utilisation by process."""
        listed, unknown = self._listed()
        if unknown is None:
            answers.add("gpu_processes", len(listed))
        else:
            answers.fail("gpu_processes", unknown)
            if not listed:
                answers.fail("gpu_process_memory_used_bytes", unknown)
        for pid, used in listed.items():
            answers.add(variant("gpu_process_memory_used_bytes", "pid", str(pid)), used)
        self._read_utilization(listed if unknown is None else None, answers)

    def _listed(self) -> tuple[dict[int, int | None], Missing | None]:
        """Memory by process, and why there may be more of them."""
        found: dict[int, int | None] = {}
        unknown = self._refused
        for function in self._lists:
            code, reply = ask(coded(partial(self._library.call, function, self._handle)))
            if code:
                unknown = self._list_failed(function, code) or unknown
                continue
            if any(not process.pid for process in reply):
                # Drivers of R535 fill a longer structure: from the second entry on memory is read as the process.
                unknown = Missing.BLANK
                continue
            for process in reply:
                known, used = found.get(process.pid), process.usedGpuMemory
                found[process.pid] = used if known is None or (used is not None and used > known) else known
        return found, unknown

    def _list_failed(self, function: str, code: int) -> Missing | None:
        reason = reason_of(code)
        if code in LASTING:
            self._lists = [name for name in self._lists if name != function]
        if reason is Missing.UNSUPPORTED and function != _LISTS[0]:
            # No graphics or no MPS here: there is nothing to count.
            return None
        if code in LASTING:
            self._refused = reason
        return reason

    def _read_utilization(self, listed: dict[int, int | None] | None, answers: Answers) -> None:
        metric = "gpu_process_sm_utilization_ratio"
        if self._utilization is not None:
            answers.fail(metric, self._utilization)
            return
        code, samples = ask(coded(partial(self._library.call, _UTILIZATION, self._handle, self._last_seen)))
        if code == Code.NOT_FOUND:
            # Nothing ran since the samples of the reading before.
            return
        if code:
            reason = reason_of(code)
            answers.fail(metric, reason)
            if code in LASTING:
                self._utilization = reason
            return
        by_pid: dict[int, list[int]] = {}
        for sample in samples:
            self._last_seen = max(self._last_seen, sample.timeStamp)
            if sample.smUtil <= _FULL and (listed is None or sample.pid in listed):
                by_pid.setdefault(sample.pid, []).append(sample.smUtil)
        for pid, used in by_pid.items():
            answers.add(variant(metric, "pid", str(pid)), scaled(sum(used) / len(used), PERCENT))
