"""Answers of an NVIDIA node by NVML, dcgm-exporter and nvidia-smi, sound and with one fault each, by NVIDIA's headers.

Nothing of the product is imported. Numbers and names are those of ``nvml.h`` (``NVML_FI_DEV_...``, arguments of
functions), of ``dcgm_fields.h`` as dcgm-exporter 3.3 prints them, and of ``nvsmi_device_v13.dtd``; values are made up.
The files of ``tests/data/vendors`` are what ``python -m tocsin_testing.nvidia_facts`` writes.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "vendors"
CASES = ("healthy", "memory", "link", "bus", "heat")
LINKS = 18
"""Of an H100."""
ILL = 1
"""The GPU with the fault, of two."""

CORRECTED, UNCORRECTED = 7, 2
CELSIUS, HOT, MEMORY_CELSIUS = 61, 93, 48
LINK_INACTIVE, LINK_ACTIVE, BAD_LINK = 0, 1, 3
FALLEN_OFF = 79

# ---------------------------------------------------------------------------------------------------------- NVML

ECC_SBE_VOL_TOTAL, ECC_DBE_VOL_TOTAL, ECC_SBE_VOL_DEV, ECC_DBE_VOL_DEV = 3, 4, 11, 12
MEMORY_TEMP, NVLINK_REPLAY, NVLINK_GET_STATE = 82, 161, 165
TEMPERATURE_GPU, TOTAL_CORRECTED, TOTAL_UNCORRECTED, VOLATILE, LOCATION_DRAM = 0, 0, 1, 0, 2


def nvml(case: str) -> dict[str, Any]:
    """Of the GPU with the fault of `case`: fields as [number, scope, value], calls as [name, arguments, value]."""
    errors = UNCORRECTED if case == "memory" else 0
    celsius = HOT if case == "heat" else CELSIUS
    fields: list[list[Any]] = [
        [ECC_SBE_VOL_TOTAL, None, CORRECTED],
        [ECC_DBE_VOL_TOTAL, None, errors],
        [ECC_SBE_VOL_DEV, None, CORRECTED],
        [ECC_DBE_VOL_DEV, None, errors],
        [MEMORY_TEMP, None, MEMORY_CELSIUS],
    ]
    for link in range(LINKS):
        down = case == "link" and link == BAD_LINK
        fields.append([NVLINK_GET_STATE, link, LINK_INACTIVE if down else LINK_ACTIVE])
        fields.append([NVLINK_REPLAY, link, 0])
    calls: list[list[Any]] = [
        ["nvmlDeviceGetTemperature", [TEMPERATURE_GPU], celsius],
        ["nvmlDeviceGetTemperatureV", [TEMPERATURE_GPU], celsius],
    ]
    return {"fields": fields, "calls": calls, "error": "GPU_IS_LOST" if case == "bus" else ""}


# ---------------------------------------------------------------------------------------------------------- DCGM


def _line(field: str, gpu: int, value: int, link: int | None = None) -> str:
    labels = {
        "gpu": str(gpu),
        "UUID": f"GPU-{gpu}",
        "device": f"nvidia{gpu}",
        "modelName": "NVIDIA H100",
        "Hostname": "node-1",
    }
    if link is not None:
        labels["nvlink"] = str(link)
    inside = ",".join(f'{key}="{text}"' for key, text in labels.items())
    return f"DCGM_FI_DEV_{field}{{{inside}}} {value}\n"


def dcgm(case: str) -> str:
    """The page of dcgm-exporter for two GPUs, of which the second has the fault of `case`."""
    page = ""
    for gpu in (0, ILL):
        ill = gpu == ILL
        page += _line("GPU_TEMP", gpu, HOT if ill and case == "heat" else CELSIUS)
        page += _line("MEMORY_TEMP", gpu, MEMORY_CELSIUS)
        page += _line("ECC_SBE_VOL_TOTAL", gpu, CORRECTED)
        page += _line("ECC_DBE_VOL_TOTAL", gpu, UNCORRECTED if ill and case == "memory" else 0)
        page += _line("XID_ERRORS", gpu, FALLEN_OFF if ill and case == "bus" else 0)
        page += _line("FABRIC_MANAGER_STATUS", gpu, 3)
        page += _line("PCIE_REPLAY_COUNTER", gpu, 0)
        for link in range(LINKS):
            down = ill and case == "link" and link == BAD_LINK
            page += _line("NVLINK_GET_STATE", gpu, LINK_INACTIVE if down else LINK_ACTIVE, link)
    return page


# ---------------------------------------------------------------------------------------------------- nvidia-smi

UUIDS = ("GPU-99999999-1111-2222-3333-444444444443", "GPU-99999999-1111-2222-3333-444444444444")
BUSES = ("00000000:61:00.0", "00000000:62:00.0")


def _errors(uncorrectable: int) -> str:
    counts = {
        "sram_correctable": 0,
        "sram_uncorrectable_parity": 0,
        "sram_uncorrectable_secded": 0,
        "dram_correctable": CORRECTED,
        "dram_uncorrectable": uncorrectable,
    }
    return "".join(f"<{name}>{count}</{name}>" for name, count in counts.items())


def _gpu(number: int, case: str) -> str:
    ill = number == ILL
    errors = _errors(UNCORRECTED if ill and case == "memory" else 0)
    return f"""\t<gpu id="{BUSES[number]}">
\t\t<product_name>NVIDIA B200</product_name>
\t\t<product_architecture>Blackwell</product_architecture>
\t\t<minor_number>{number}</minor_number>
\t\t<uuid>{UUIDS[number]}</uuid>
\t\t<gpu_recovery_action>None</gpu_recovery_action>
\t\t<pci><pci_bus_id>{BUSES[number]}</pci_bus_id></pci>
\t\t<ecc_mode><current_ecc>Enabled</current_ecc><pending_ecc>Enabled</pending_ecc></ecc_mode>
\t\t<ecc_errors><volatile>{errors}</volatile><aggregate>{errors}</aggregate></ecc_errors>
\t\t<temperature>
\t\t\t<gpu_temp>{HOT if ill and case == "heat" else CELSIUS} C</gpu_temp>
\t\t\t<memory_temp>{MEMORY_CELSIUS} C</memory_temp>
\t\t</temperature>
\t\t<fabric><state>Completed</state><status>Success</status></fabric>
\t</gpu>
"""


def nvidia_smi(case: str) -> dict[str, Any]:
    """What nvidia-smi prints of two GPUs, of which the second has the fault of `case`: exit code, XML, links."""
    lost = f"Unable to determine the device handle for GPU{ILL}: {BUSES[ILL]}: GPU is lost.  Reboot to recover"
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n'
    body = "".join(_gpu(number, case) for number in (0, ILL))
    above = "\t<driver_version>580.82.07</driver_version>\n\t<cuda_version>13.0</cuda_version>\n"
    xml = f"{head}<nvidia_smi_log>\n{above}\t<attached_gpus>2</attached_gpus>\n{body}</nvidia_smi_log>\n"
    links = ""
    for number in (0, ILL):
        links += f"GPU {number}: NVIDIA B200 (UUID: {UUIDS[number]})\n"
        for link in range(LINKS):
            down = number == ILL and case == "link" and link == BAD_LINK
            links += f"\t Link {link}: {'<inactive>' if down else '50 GB/s'}\n"
    return {"code": 15, "text": lost, "links": ""} if case == "bus" else {"code": 0, "text": xml, "links": links}


# --------------------------------------------------------------------------------------------------------- files


def files() -> dict[str, str]:
    """Name and content of each file."""
    found: dict[str, str] = {}
    for case in CASES:
        found[f"nvml_{case}.json"] = json.dumps(nvml(case), indent=1) + "\n"
        found[f"dcgm_{case}.prom"] = dcgm(case)
        found[f"nvidia_smi_{case}.json"] = json.dumps(nvidia_smi(case), indent=1) + "\n"
    return found


def text_of(name: str) -> str:
    """The content of a file of ``tests/data/vendors``."""
    return (FOLDER / name).read_text()


if __name__ == "__main__":
    for name, text in files().items():
        (FOLDER / name).write_text(text)
