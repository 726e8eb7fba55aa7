"""Which GPU a CUDA ordinal is, asked of the CUDA driver that the process has loaded already."""

from __future__ import annotations

import ctypes
import os
import uuid
from collections.abc import Callable, Mapping
from typing import Any

_SUCCESS = 0
_UUID_BYTES = 16


def driver_uuid(ordinal: int, load: Callable[[str], Any] = ctypes.CDLL) -> str:
    """UUID of CUDA device `ordinal` without prefix, of the MIG instance where that is one; empty where unknown.

    ``cuDeviceGetUuid_v2`` names the MIG instance, the first version of the call and ``cudaDeviceProp`` do not always.
    Initialises nothing: a process that does not use CUDA gets no answer.
    """
    try:
        library = load("libcuda.so.1")
        device = ctypes.c_int()
        if library.cuDeviceGet(ctypes.byref(device), ctypes.c_int(ordinal)) != _SUCCESS:
            return ""
        raw = (ctypes.c_ubyte * _UUID_BYTES)()
        if library.cuDeviceGetUuid_v2(ctypes.byref(raw), device) != _SUCCESS:
            return ""
    except (OSError, AttributeError):
        return ""
    return str(uuid.UUID(bytes=bytes(raw)))


def visible_uuid(ordinal: int, environment: Mapping[str, str] = os.environ) -> str:
    """What ``CUDA_VISIBLE_DEVICES`` says of device `ordinal` where it names UUIDs; empty where it does not."""
    entries = [entry.strip() for entry in environment.get("CUDA_VISIBLE_DEVICES", "").split(",")]
    if ordinal < len(entries) and entries[ordinal].startswith(("GPU-", "MIG-")):
        return entries[ordinal]
    return ""
