"""What an operator reads where NVML cannot be opened."""

from __future__ import annotations

from tocsin.collector.nvml.library import Code, NvmlFailure
from tocsin.domain.errors import Unavailable


def unavailable(failure: NvmlFailure) -> Unavailable:
    """What is missing, and the remedy, in one line."""
    if failure.code == Code.LIBRARY_NOT_FOUND:
        return Unavailable(
            "NVML is missing: libnvidia-ml.so.1 was not found; install the NVIDIA driver, or give the container "
            "the driver with NVIDIA_DRIVER_CAPABILITIES=utility"
        )
    if failure.code == Code.DRIVER_NOT_LOADED:
        return Unavailable(
            "the NVIDIA kernel driver is not loaded: libnvidia-ml.so.1 is there but finds no driver; load it with "
            "`modprobe nvidia` and see `dmesg` where that fails"
        )
    if failure.code == Code.LIB_RM_VERSION_MISMATCH:
        return Unavailable(
            "the NVIDIA driver was replaced while its old library was loaded; restart the agent, and reboot where "
            "`nvidia-smi` says the same"
        )
    if failure.code == Code.NO_PERMISSION:
        return Unavailable(
            "NVML may not open the GPUs: no access to /dev/nvidiactl; run with access to the /dev/nvidia* files"
        )
    if failure.code == Code.TIMEOUT:
        return Unavailable(f"NVML did not open: {failure}; see whether `nvidia-smi` hangs as well, and reboot then")
    return Unavailable(f"NVML cannot be opened: {failure} (code {failure.code}); see whether `nvidia-smi` works")
