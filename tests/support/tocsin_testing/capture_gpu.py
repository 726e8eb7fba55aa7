"""Record what NVML answers on this machine's GPUs, as a fixture for tests.

    PYTHONPATH=tests/support python -m tocsin_testing.capture_gpu tests/data/nvml/h200-580.105.08.json

Holds model and driver, two readings of the NVML source, the whole table of field values with their types and the time
that the driver says they took, and code, answer and time of each call. UUIDs, serial numbers, bus ids and process ids
are replaced, so that the file can be published. Nothing is written to a GPU.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import re
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pynvml

from tocsin.collector.nvml.library import ALL_LINKS, MEMORY_V2, NvmlFailure, PynvmlLibrary
from tocsin.collector.nvml.source import NvmlSource
from tocsin.collector.source import NodeIdentity
from tocsin.domain.clock import SystemClock

ROUNDS = 5
"""A call's time is the median of so many."""
FIELDS = tuple(range(1, 310))
LINK_FIELDS = (138, 139, *range(161, 169), *range(201, 223))
MEMBERS = ("dVal", "uiVal", "ulVal", "ullVal", "sllVal", "siVal", "usVal")

CALLS: tuple[tuple[str, tuple[int, ...]], ...] = (
    *((f"nvmlDeviceGet{name}", ()) for name in (
        "Name", "Architecture", "Brand", "BoardPartNumber", "VbiosVersion", "InforomImageVersion", "PersistenceMode",
        "CudaComputeCapability", "ComputeMode", "VirtualizationMode", "NumGpuCores", "MemoryBusWidth",
        "UtilizationRates", "EncoderUtilization", "DecoderUtilization", "JpgUtilization", "OfaUtilization",
        "MemoryInfo", "BAR1MemoryInfo", "MarginTemperature", "PowerUsage", "TotalEnergyConsumption",
        "PowerManagementLimit", "EnforcedPowerLimit", "PowerManagementDefaultLimit",
        "PowerManagementLimitConstraints", "CurrentClocksEventReasons", "SupportedClocksEventReasons",
        "PerformanceState", "NumFans", "FanSpeed", "EccMode", "SramEccErrorStatus", "RetiredPagesPendingStatus",
        "RemappedRows", "RowRemapperHistogram", "RepairStatus", "UnrepairableMemoryFlag_v1",
        "CurrPcieLinkGeneration", "MaxPcieLinkGeneration", "CurrPcieLinkWidth", "MaxPcieLinkWidth",
        "PcieReplayCounter", "GpuFabricInfoV", "MigMode", "MaxMigDeviceCount", "SupportedEventTypes",
        "ComputeRunningProcesses", "GraphicsRunningProcesses", "MPSComputeRunningProcesses",
    )),
    ("nvmlDeviceGetMemoryInfo", (MEMORY_V2,)),
    ("nvmlDeviceGetTemperatureV", (0,)),
    ("nvmlDeviceGetTemperature", (0,)),
    *(("nvmlDeviceGetTemperatureThreshold", (number,)) for number in range(8)),
    *(("nvmlDeviceGetClockInfo", (number,)) for number in range(4)),
    *(("nvmlDeviceGetMaxClockInfo", (number,)) for number in range(4)),
    ("nvmlDeviceGetApplicationsClock", (1,)),
    *(("nvmlDeviceGetTotalEccErrors", (kind, span)) for kind in (0, 1) for span in (0, 1)),
    *(("nvmlDeviceGetMemoryErrorCounter", (kind, 0, place)) for kind in (0, 1) for place in (2, 7)),
    ("nvmlDeviceGetPcieThroughput", (0,)),
    ("nvmlDeviceGetNvLinkState", (0,)),
    ("nvmlDeviceGetNvLinkErrorCounter", (0, 0)),
    ("nvmlDeviceGetProcessUtilization", (0,)),
    ("nvmlDeviceGetGpuInstanceProfileInfo", (0,)),
)  # fmt: skip
GPM_METRICS = (1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 20, 21, 60, 61)


def timed(call: Callable[[], Any]) -> tuple[Any, float]:
    """The last answer of `ROUNDS` calls, and their median time in microseconds."""
    took: list[float] = []
    answer: Any = None
    for _ in range(ROUNDS):
        begun = time.perf_counter_ns()
        answer = call()
        took.append((time.perf_counter_ns() - begun) / 1_000)
    return answer, round(statistics.median(took), 1)


def plain(value: Any) -> Any:
    """`value` as what JSON knows; structures become objects."""
    if isinstance(value, bytes):
        return value.decode(errors="replace")
    if isinstance(value, str | int | float | bool) or value is None:
        return value
    if isinstance(value, ctypes.Structure):
        return {name: plain(getattr(value, name)) for name, *_ in value._fields_}
    if isinstance(value, ctypes.Array | Sequence):
        return [plain(part) for part in value]
    return {name: plain(part) for name, part in vars(value).items()}


def capture_calls(library: PynvmlLibrary, handle: Any) -> dict[str, Any]:
    """Code, answer and time of each call of `CALLS`."""

    def ask(function: str, arguments: tuple[int, ...]) -> dict[str, Any]:
        try:
            return {"code": 0, "value": plain(library.call(function, handle, *arguments))}
        except NvmlFailure as failure:
            return {"code": int(failure.code), "text": str(failure)}

    answers: dict[str, Any] = {}
    for function, arguments in CALLS:
        answer, took = timed(lambda f=function, a=arguments: ask(f, a))
        answers[f"{function}{arguments or ''}"] = {**answer, "us": took}
    return answers


def capture_fields(handle: Any, scopes: Sequence[tuple[int, int]]) -> dict[str, Any]:
    """Code, type, value and time of field values, one by one in one batch; "id/scope" to what came."""
    table: dict[str, Any] = {}
    for start in range(0, len(scopes), 64):
        part = scopes[start : start + 64]
        for (number, scope), entry in zip(part, pynvml.nvmlDeviceGetFieldValues(handle, list(part)), strict=True):
            row: dict[str, Any] = {"code": entry.nvmlReturn, "us": entry.latencyUsec}
            if entry.nvmlReturn == 0 and entry.valueType < len(MEMBERS):
                row |= {"type": entry.valueType, "value": getattr(entry.value, MEMBERS[entry.valueType])}
            table[f"{number}/{scope}"] = row
    return table


def capture_gpm(handle: Any, pause: Callable[[], None]) -> dict[str, Any]:
    """Code and value of the GPM metrics over one pause; empty where the GPU has no GPM."""
    try:
        if not pynvml.nvmlGpmQueryDeviceSupport(handle).isSupportedDevice:
            return {}
        samples = [pynvml.nvmlGpmSampleAlloc() for _ in range(2)]
        pynvml.nvmlGpmSampleGet(handle, samples[0])
        pause()
        pynvml.nvmlGpmSampleGet(handle, samples[1])
        request = pynvml.c_nvmlGpmMetricsGet_t()
        request.version, request.numMetrics = pynvml.NVML_GPM_METRICS_GET_VERSION, len(GPM_METRICS)
        request.sample1, request.sample2 = samples
        for entry, number in zip(request.metrics, GPM_METRICS, strict=False):
            entry.metricId = number
        pynvml.nvmlGpmMetricsGet(request)
        for sample in samples:
            pynvml.nvmlGpmSampleFree(sample)
    except pynvml.NVMLError as error:
        return {"code": error.value}
    return {str(e.metricId): {"code": e.nvmlReturn, "value": e.value} for e in request.metrics[: len(GPM_METRICS)]}


def capture_readings(pause: Callable[[], None]) -> tuple[list[Any], dict[str, float]]:
    """Two readings of the NVML source as rows, and how long each took in milliseconds."""
    clock = SystemClock()
    source = NvmlSource(PynvmlLibrary(), NodeIdentity("node-1"))
    rows: list[Any] = []
    took: dict[str, float] = {}
    try:
        for name in ("first", "second"):
            begun = time.perf_counter_ns()
            batch = source.read(clock.now_ms())
            took[name] = round((time.perf_counter_ns() - begun) / 1e6, 3)
            rows.append([reading.as_json() for reading in batch.readings])
            pause()
    finally:
        source.close()
    return rows, took


def capture(pause: Callable[[], None]) -> dict[str, Any]:
    """Everything of this machine. Raises Unavailable where NVML cannot be opened."""
    rows, took = capture_readings(pause)
    library = PynvmlLibrary()
    library.open()
    try:
        gpus: list[dict[str, Any]] = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            handle = pynvml.nvmlDeviceGetHandleByIndex(index)
            (links,) = pynvml.nvmlDeviceGetFieldValues(handle, [pynvml.NVML_FI_DEV_NVLINK_LINK_COUNT])
            count = links.value.uiVal if links.nvmlReturn == 0 else 0
            scoped = [(number, scope) for number in LINK_FIELDS for scope in (*range(count), ALL_LINKS)]
            gpus.append(
                {
                    "model": plain(pynvml.nvmlDeviceGetName(handle)),
                    "fields": capture_fields(handle, [(number, 0) for number in FIELDS]),
                    "link_fields": capture_fields(handle, scoped),
                    "calls": capture_calls(library, handle),
                    "gpm": capture_gpm(handle, pause),
                }
            )
        return {
            "captured_with": f"nvidia-ml-py on driver {plain(pynvml.nvmlSystemGetDriverVersion())}",
            "driver": plain(pynvml.nvmlSystemGetDriverVersion()),
            "nvml": plain(pynvml.nvmlSystemGetNVMLVersion()),
            "source_read_ms": took,
            "readings": rows,
            "gpus": gpus,
        }
    finally:
        library.close()


_NAMES = re.compile(r"(?:GPU|MIG)-[0-9a-f]{8}-[0-9a-f-]{27}|[0-9a-f]{8}:[0-9a-f]{2}:[0-9a-f]{2}\.0", re.IGNORECASE)
_PIDS = re.compile(r'((?:pid=\\"|"pid": ))(\d+)')


def anonymous(text: str) -> str:
    """`text` with identities replaced, the same one by the same one."""
    known: dict[str, str] = {}

    def identity(match: re.Match[str]) -> str:
        found = match.group()
        if found not in known:
            number = len(known)
            uuid = f"{found[:4]}{number:08x}-0000-4000-8000-000000000000"
            known[found] = f"00000000:{number:02X}:00.0" if ":" in found else uuid
        return known[found]

    def process(match: re.Match[str]) -> str:
        return match.group(1) + known.setdefault(f"pid {match.group(2)}", str(1_000 + len(known)))

    return _PIDS.sub(process, _NAMES.sub(identity, text))


def main(arguments: Sequence[str] | None = None) -> None:
    """Write the capture to the file that the command line names."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("out", type=Path)
    parser.add_argument("--pause", type=float, default=1.0, help="seconds between two samples")
    chosen = parser.parse_args(arguments)
    text = json.dumps(capture(lambda: time.sleep(chosen.pause)), indent=1)
    chosen.out.write_text(anonymous(text) + "\n")
    print(f"{chosen.out}: {chosen.out.stat().st_size} bytes", file=sys.stderr)


if __name__ == "__main__":
    main()
