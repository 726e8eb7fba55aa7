"""What channels and fault classes are called, in English and Chinese."""

from __future__ import annotations

CHANNELS: dict[str, tuple[str, str]] = {
    "ecc_corrected": ("corrected ECC errors", "可纠正 ECC 错误"),
    "ecc_uncorrected": ("uncorrectable ECC errors", "不可纠正 ECC 错误"),
    "retired_pages": ("retired pages", "退役页"),
    "remap_correctable": ("row remaps after corrected errors", "可纠正错误引起的行重映射"),
    "remap_uncorrectable": ("row remaps after uncorrectable errors", "不可纠正错误引起的行重映射"),
    "pcie_replay": ("PCIe replays", "PCIe 重放"),
    "pcie_errors": ("PCIe errors", "PCIe 错误"),
    "nvlink_crc": ("NVLink CRC errors", "NVLink CRC 错误"),
    "nvlink_replay": ("NVLink replays", "NVLink 重放"),
    "nvlink_recovery": ("NVLink recoveries", "NVLink 恢复"),
    "nvlink_symbol": ("NVLink symbol errors", "NVLink 符号错误"),
    "thermal_slowdown": ("thermal slowdown", "过热降频"),
    "power_brake": ("power brake", "功率制动"),
    "power_cap": ("power cap", "功率封顶"),
    "energy": ("energy used", "能耗"),
    "pcie_bytes": ("PCIe traffic", "PCIe 流量"),
    "nvlink_bytes": ("NVLink traffic", "NVLink 流量"),
    "temperature": ("temperature", "温度"),
    "memory_temperature": ("memory temperature", "显存温度"),
    "thermal_margin": ("thermal margin", "热余量"),
    "power": ("power", "功率"),
    "power_limit": ("power limit", "功率上限"),
    "sm_clock": ("SM clock", "SM 时钟"),
    "memory_clock": ("memory clock", "显存时钟"),
    "utilization": ("utilisation", "利用率"),
    "sm_active": ("SM activity", "SM 活动"),
    "tensor_active": ("tensor activity", "张量核活动"),
    "dram_active": ("memory activity", "显存活动"),
    "memory_used": ("memory use", "显存占用"),
    "processes": ("processes", "进程数"),
    "fan_speed": ("fan speed", "风扇转速"),
    "fragmentation": ("memory fragmentation", "显存碎片"),
    "row_remap_pending": ("a pending row remap", "待生效的行重映射"),
    "memory_failure": ("a failed row remap", "行重映射失败"),
    "ecc_threshold": ("the SRAM error threshold", "SRAM 错误阈值"),
    "banks_worn": ("worn memory banks", "磨损的显存 bank"),
    "repair_pending": ("a pending repair", "待完成的修复"),
    "recovery_action": ("the driver's recovery verdict", "驱动的恢复建议"),
    "pcie_lanes_lost": ("lost PCIe lanes", "丢失的 PCIe 通道"),
    "pcie_speed_lost": ("lost PCIe speed", "降低的 PCIe 速率"),
    "links_down": ("NVLinks that are down", "断开的 NVLink"),
    "fabric_unhealthy": ("the NVLink fabric's health", "NVLink 网络健康"),
    "driver_latency": ("slow answers of the driver", "驱动响应缓慢"),
    "hardware_events": ("faults so far", "已发生的硬件故障"),
    "other_events": ("warnings and programs' XIDs", "告警与程序 XID"),
    "reported": ("gaps in its telemetry", "遥测缺口"),
    "frozen": ("frozen telemetry", "冻结的遥测"),
    "event": ("its XID history", "XID 历史"),
    "burst": ("a burst of faults around it", "周边故障突发"),
    "family": ("lost metric families", "消失的指标族"),
    "thermal": ("its thermal resistance", "热阻"),
    "others": ("faults of GPUs around it", "周边 GPU 的故障"),
    "silent_hours": ("silence", "无数据"),
    "flat_hours": ("values that stand still", "数值不变"),
    "lost": ("that it is lost", "GPU 丢失"),
    "back_hours": ("a return not long ago", "不久前恢复"),
    "backs": ("how often it came back", "多次恢复"),
    "age_days": ("its age", "使用时长"),
    "slot": ("its slot", "槽位"),
}
"""Channels of a plan, and families of features without one; in both languages."""

CLASSES = {
    "memory": ("a memory", "显存"),
    "bus": ("a PCIe bus", " PCIe 总线"),
    "nvlink": ("an NVLink", " NVLink "),
    "firmware": ("a firmware", "固件"),
    "thermal": ("a cooling", "散热"),
    "power": ("a power", "供电"),
    "other": ("a hardware", "硬件"),
}
"""Before "fault", with the article."""


def channel_words(name: str) -> tuple[str, str]:
    """Words for a channel or family of features; its own name where there are none."""
    return CHANNELS.get(name, (name.replace("_", " "), name))
