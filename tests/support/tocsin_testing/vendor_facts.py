"""Answers of an AMD and of an Ascend node, sound and with one fault each, written down from what is known of both.

Nothing of the product is imported: keys, units and texts are those of the Python package amdsmi 7.0.2, of its documents
and of npu-smi outputs that public repositories quote; values are made up. The files of ``tests/data/vendors`` are what
``python -m tocsin_testing.vendor_facts`` writes.
"""

from __future__ import annotations

import copy
import json
from pathlib import Path
from typing import Any

FOLDER = Path(__file__).parents[2] / "data" / "vendors"
CASES = ("healthy", "memory", "link", "bus", "heat")
Answers = dict[str, Any]
Texts = dict[str, str]

NOT_SUPPORTED, IO_ERROR = 2, 12
BLOCKS = (
    *("UMC", "SDMA", "GFX", "MMHUB", "ATHUB", "PCIE_BIF", "HDP", "XGMI_WAFL", "DF", "SMN"),
    *("SEM", "MP0", "MP1", "FUSE", "MCA", "VCN", "JPEG", "IH", "MPIO"),
)
RAS_BLOCKS = frozenset({"UMC", "SDMA", "GFX", "MMHUB", "XGMI_WAFL", "PCIE_BIF"})
AMD_LINKS = 8
MAX_U16, MAX_U64 = 0xFFFF, 0xFFFF_FFFF_FFFF_FFFF

# ---------------------------------------------------------------------------------------------------------- AMD


def mi300x(number: int) -> Answers:
    """An MI300X: no edge sensor, temperatures in millidegrees, power under its newer key, blanks of every form."""
    found: Answers = {
        "amdsmi_get_gpu_asic_info": {
            "market_name": "AMD Instinct MI300X",
            "vendor_id": "0x1002",
            "asic_serial": f"0x{0x7A3D0F1E2C4B0000 + number:016X}",
            "oam_id": number,
            "num_compute_units": 304,
            "target_graphics_version": "gfx942",
        },
        "amdsmi_get_gpu_device_uuid": f"{number:02x}ff74a1-0000-1000-80e7-6d07a3c1{number:04x}",
        "amdsmi_get_gpu_device_bdf": f"0000:{0x1B + 16 * number:02x}:00.0",
        "amdsmi_get_gpu_kfd_info": {"kfd_id": 1234 + number, "node_id": 2 + number, "current_partition_id": 0},
        "amdsmi_get_gpu_compute_partition": "SPX",
        "amdsmi_get_gpu_memory_partition": "NPS1",
        "amdsmi_get_gpu_driver_info": {"driver_name": "amdgpu", "driver_version": "6.14.14"},
        "amdsmi_get_power_info": {
            "socket_power": 612,
            "current_socket_power": 612,
            "average_socket_power": "N/A",
            "gfx_voltage": "N/A",
            "power_limit": 750_000_000,
        },
        "amdsmi_get_power_cap_info": {
            "power_cap": 750_000_000,
            "default_power_cap": 750_000_000,
            "dpm_cap": 2100,
            "min_power_cap": 0,
            "max_power_cap": 750_000_000,
        },
        "amdsmi_get_energy_count": {
            "energy_accumulator": 8_000_000_000,
            "counter_resolution": 15.3,
            "timestamp": 1_795_000_000_000_000_000,
        },
        "amdsmi_get_gpu_vram_usage": {"vram_total": 196_592, "vram_used": 98_296},
        "amdsmi_get_gpu_activity": {"gfx_activity": 93, "umc_activity": 41, "mm_activity": "N/A"},
        "amdsmi_get_gpu_bad_page_info": [],
        "amdsmi_get_gpu_bad_page_threshold": 256,
        "amdsmi_get_gpu_xgmi_link_status": {"status": ["U"] * (AMD_LINKS - 1) + ["X"], "total_links": AMD_LINKS},
        "amdsmi_get_pcie_info": {
            "pcie_static": {"max_pcie_width": 16, "max_pcie_speed": 32_000, "pcie_interface_version": 5},
            "pcie_metric": {
                "pcie_width": 16,
                "pcie_speed": 32_000,
                "pcie_bandwidth": "N/A",
                "pcie_replay_count": 3,
                "pcie_l0_to_recovery_count": 1,
                "pcie_nak_sent_count": 0,
                "pcie_nak_received_count": MAX_U64,
            },
        },
        "amdsmi_get_violation_status": {
            "active_prochot_thrm": False,
            "active_ppt_pwr": True,
            "active_socket_thrm": False,
            "active_hbm_thrm": "N/A",
        },
        "amdsmi_get_gpu_process_list": [
            {"name": "python3", "pid": 41_000 + number, "mem": MAX_U64, "memory_usage": {"vram_mem": 90 << 30}}
        ],
        "amdsmi_get_gpu_total_ecc_count": _errors(7, 0),
    }
    for name, sensors in {"HOTSPOT": (62_000, 100_000, 105_000), "VRAM": (55_000, 105_000, 110_000)}.items():
        for metric, value in zip(("CURRENT", "CRITICAL", "EMERGENCY"), sensors, strict=True):
            found[f"amdsmi_get_temp_metric({name}, {metric})"] = value
    found["amdsmi_get_temp_metric(EDGE, CURRENT)"] = {"error": NOT_SUPPORTED}
    for clock, now, most in (("GFX", 2_100, 2_100), ("MEM", 1_300, 1_300)):
        found[f"amdsmi_get_clock_info({clock})"] = {"clk": now, "min_clk": 132, "max_clk": most, "clk_locked": False}
    for block in BLOCKS:
        known = _errors(7 if block == "UMC" else 0, 0) if block in RAS_BLOCKS else {"error": NOT_SUPPORTED}
        found[f"amdsmi_get_gpu_ecc_count({block})"] = known
    return found


def _errors(correctable: int, uncorrectable: int, deferred: int = 0) -> Answers:
    return {
        "correctable_count": correctable,
        "uncorrectable_count": uncorrectable,
        "deferred_count": deferred,
    }


def amd(case: str) -> list[Answers]:
    """Two cards, of which the second has the fault of `case`."""
    cards = [mi300x(0), mi300x(1)]
    ill = cards[1]
    if case == "memory":
        ill["amdsmi_get_gpu_ecc_count(UMC)"] = _errors(9, 2)
        ill["amdsmi_get_gpu_total_ecc_count"] = _errors(9, 2)
    elif case == "link":
        ill["amdsmi_get_gpu_xgmi_link_status"]["status"][3] = "D"
    elif case == "heat":
        ill["amdsmi_get_temp_metric(HOTSPOT, CURRENT)"] = 101_000
    elif case == "bus":
        cards[1] = {call: {"error": IO_ERROR} for call in ill}
    return cards


# ------------------------------------------------------------------------------------------------------- Ascend

_RULE = f"+{'-' * 27}+{'-' * 15}+{'-' * 52}+"
_DOUBLE = _RULE.replace("-", "=")


def npu_table(chips: list[tuple[int, str, str, str, int]], memory: int = 57_347) -> str:
    """``npu-smi info`` of release 25.2.0; a chip is its number, health, bus, power and temperature."""
    lines = [
        f"+{'-' * 96}+",
        f"| {'npu-smi 25.2.0                   Version: 25.2.0':<95}|",
        _RULE,
        "| NPU   Name                | Health        | Power(W)    Temp(C)           Hugepages-Usage(page)|",
        "| Chip                      | Bus-Id        | AICore(%)   Memory-Usage(MB)  HBM-Usage(MB)        |",
        _DOUBLE,
    ]
    for number, health, bus, power, celsius in chips:
        lines += [
            f"| {number:<6}{'910B4-1':<20}| {health:<14}| {power:<12}{celsius:<18}0    / 0             |",
            f"| {0:<26}| {bus:<14}| 27          0    / 0          {memory}/ 65536         |",
            _DOUBLE,
        ]
    lines += [
        _RULE,
        "| NPU     Chip              | Process id    | Process name             | Process memory(MB)      |",
        _DOUBLE,
        *(f"| {number:<8}{0:<18}| {5000 + number:<14}| {'python3':<25}| {54_000:<24}|" for number, *_ in chips),
        _RULE,
    ]
    return "\n".join(lines) + "\n"


def keys(*pairs: tuple[str, object]) -> str:
    """A list of keys as npu-smi pads it."""
    return "".join(f"\t{name:<30} : {value}\n" for name, value in pairs)


def ecc(single: int, double: int) -> str:
    """``-t ecc`` of a chip with HBM."""
    return keys(
        ("NPU ID", 0),
        ("HBM Single Bit Error Count", single),
        ("HBM Double Bit Error Count", double),
        ("HBM Single Bit Aggregate Total Err Cnt", single),
        ("HBM Double Bit Aggregate Total Err Cnt", double),
        ("HBM Single Bit Isolated Pages Count", 0),
        ("HBM Double Bit Isolated Pages Count", 0),
        ("HBM Single Bit Next-Isolated Pages Count", 0),
        ("HBM Double Bit Next-Isolated Pages Count", 0),
    )


def _mapping(*cells: object) -> str:
    return "\t" + "".join(f"{cell!s:<31}" for cell in cells) + "\n"


def health(word: str, code: str = "NA", words: str = "NA") -> str:
    """``-t health``."""
    return keys(("Health Status", word), ("Error Code", code), ("Error Information", words))


def ascend(case: str) -> Texts:
    """Two NPUs of one chip, of which the second has the fault of `case`; text by arguments."""
    codes = {"memory": "80E01801", "link": "81078603"}
    word = "Alarm" if case in codes else "OK"
    rows = [(0, "OK", "0000:D8:00.0", "131.1", 48), (1, word, "0000:D9:00.0", "127.6", 95 if case == "heat" else 46)]
    texts = {
        "info": npu_table(rows[:1] if case == "bus" else rows),
        "info -m": _mapping("NPU ID", "Chip ID", "Chip Logic ID", "Chip Name")
        + "".join(_mapping(n, 0, n, "Ascend 910B4") + _mapping(n, 1, "-", "Mcu") for n in (0, 1)),
    }
    for number in (0, 1):
        ill = number == 1
        place = f"-i {number} -c 0"
        texts[f"info -t board {place}"] = keys(
            ("NPU ID", number),
            ("Chip ID", 0),
            ("Chip Type", "Ascend"),
            ("Chip Name", "910B4"),
            ("VDie ID", f"42C711D4 20B03704 4A10C8D4 14CC040A D210200{number}"),
            ("PCIe Bus Info", f"0000:{0xD8 + number:02X}:00.0"),
            ("Firmware Version", "7.1.0.7.220"),
        )
        texts[f"info -t health {place}"] = health(word if ill else "OK", codes.get(case, "NA") if ill else "NA")
        texts[f"info -t ecc {place}"] = ecc(4, 1 if ill and case == "memory" else 0)
        texts[f"info -t common {place}"] = keys(
            ("NPU ID", number),
            ("Chip ID", 0),
            ("HBM Usage Rate(%)", 87),
            ("Aicore Usage Rate(%)", 27),
            ("Aicore Freq(MHZ)", 1650),
            ("Aicore curFreq(MHZ)", 1650),
            ("Aicore Count", 20),
            ("Temperature(C)", 46),
            ("NPU Real-time Power(W)", 127.6),
            ("Chip Name", "mcu"),
            ("Temperature(C)", 38),
            ("NPU Real-time Power(W)", 310.0),
        )
        texts[f"info -t memory {place}"] = keys(
            ("NPU ID", number), ("HBM Clock Speed(MHz)", 1600), ("HBM Temperature(C)", 51)
        )
        texts[f"info -t usages {place}"] = keys(
            ("NPU ID", number),
            ("HBM Capacity(MB)", 65536),
            ("HBM Usage Rate(%)", 87),
            ("HBM Bandwidth Usage Rate(%)", 31),
        )
        texts[f"info -t pcie-err {place}"] = keys(
            ("TX Error Count", 0), ("RX Error Count", 2), ("Lcrc Error Count", 1), ("Ecrc Error Count", 0)
        )
    return texts


def plugin_config(*faults: tuple[int, str, str]) -> str:
    """``DeviceInfoCfg`` of the device plugin's ConfigMap; a fault is card, code and level."""
    entries = [
        {
            "fault_type": "CardUnhealthy",
            "npu_name": f"Ascend910-{card}",
            "large_model_fault_level": level,
            "fault_level": level,
            "fault_handling": level,
            "fault_code": code,
        }
        for card, code, level in faults
    ]
    devices = {
        "huawei.com/Ascend910": "Ascend910-0,Ascend910-1",
        "huawei.com/Ascend910-Unhealthy": "",
        "huawei.com/Ascend910-NetworkUnhealthy": "",
        "huawei.com/Ascend910-Fault": json.dumps(entries),
    }
    return json.dumps({"DeviceInfo": {"DeviceList": devices, "UpdateTime": 1_795_000_000}, "CheckCode": "0" * 64})


# -------------------------------------------------------------------------------------------------------- files


def files() -> dict[str, str]:
    """Name and content of each file."""
    found: dict[str, str] = {}
    for case in CASES:
        found[f"amd_{case}.json"] = json.dumps(amd(case), indent=1) + "\n"
        found[f"ascend_{case}.json"] = json.dumps(ascend(case), indent=1) + "\n"
    return found


def recorded(name: str) -> Any:
    """The content of a file of ``tests/data/vendors``."""
    return copy.deepcopy(json.loads((FOLDER / name).read_text()))


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for name, text in files().items():
        (FOLDER / name).write_text(text)
