"""Faults of the node beside its GPUs: lines of the kernel log, and counters of PCIe and memory in sysfs."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.collector.host_errors import CORRECTED, HostErrors
from tocsin.collector.kernel_log.companion import KernelLogCompanion
from tocsin.collector.kernel_log.host_lines import host_events
from tocsin.collector.kernel_log.parser import KernelRecord
from tocsin.collector.kernel_log.readers import KmsgReader
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.event import EventKind
from tocsin.domain.node_fault import NodeFault
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.sysfs_tree import SysfsTree, write

BRIDGE = ("pci0000:15", "0000:15:01.0", "0000:16:00.0")
GPU, NIC = "0000:18:00.0", "0000:19:00.0"
FAR = ("pci0000:97", "0000:97:01.0")

CARD = "mlx5_core 0000:19:00.0: "
LINES = {
    CARD + "poll_health:822:(pid 0): Fatal error 3 detected": NodeFault.NIC_LOST,
    CARD + "mlx5_health_try_recover:330:(pid 9): health recovery flow aborted, PCI reads still not working": 11,
    CARD + "device's health compromised - reached miss count": NodeFault.NIC_LOST,
    CARD + "health recovery succeeded": NodeFault.NIC_LOST.over,
    CARD + "Health issue observed, irisc not responding, severity(3) ERROR:": NodeFault.NIC_HEALTH,
    CARD + "Health issue observed, High temperature, severity(4) WARNING:": None,
    CARD + "Port module event[error]: module 0, Cable error, Bad or shorted cable/module": NodeFault.NIC_CABLE,
    CARD + "Port module event: module 0, Cable unplugged": None,
    "mlx5_core 0000:19:00.0 ens1f0: Link down": None,
    CARD + "temp_warn:181:(pid 0): High temperature on sensors with bit set 0 1": NodeFault.NIC_HOT,
    "nvidia 0000:18:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Receiver ID)": 23,
    "pcieport 0000:16:00.0: AER: PCIe Bus Error: severity=Uncorrected (Fatal), type=Data Link Layer, (Receiver ID)": 23,
    "nvme 0000:02:00.0: PCIe Bus Error: severity=Corrected, type=Physical Layer, (Receiver ID)": None,
    "nvidia 0000:18:00.0: AER: device recovery failed": NodeFault.PCIE_FATAL,
    "nvidia 0000:18:00.0: AER: device recovery successful": None,
    "EDAC MC0: 1 UE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 page:0x1f offset:0x0)": 32,
    "EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#0_DIMM#0 (channel:0 page:0x1f)": None,
    "mce: Uncorrected hardware memory error in user-access at 3f1c0de40": NodeFault.MEMORY_UNCORRECTED,
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: be00000000800400": NodeFault.MACHINE_CHECK,
    "mce: [Hardware Error]: CPU 2: Machine Check Exception: 5 Bank 1: bd80000000100134": NodeFault.MACHINE_CHECK,
    "mce: [Hardware Error]: CPU 2: Machine Check: 0 Bank 5: 9c00000000800400": None,
    "{1}[Hardware Error]: event severity: recoverable": NodeFault.MACHINE_CHECK,
    "{1}[Hardware Error]: event severity: corrected": None,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_fault_or_nothing(line: str) -> None:
    found = [event.code for event in host_events(KernelRecord(line, T0))]
    assert found == ([] if LINES[line] is None else [LINES[line]])


@pytest.fixture
def tree(tmp_path: Path) -> SysfsTree:
    """One GPU with a network card behind one bridge, another GPU far from both."""
    made = SysfsTree(tmp_path / "sys")
    made.pci(*BRIDGE, GPU)
    made.pci(*FAR, "0000:9a:00.0")
    made.card("mlx5_0", *BRIDGE, NIC)
    return made


BOTH = gpu(0, pci_bus_id=f"0000{GPU}"), gpu(1, pci_bus_id="00000000:9a:00.0")


def batch() -> Batch:
    return Batch(readings=[reading(one, T0, power_watts=9.0) for one in BOTH])


def test_a_line_goes_to_the_gpu_that_is_nearest_else_to_the_host(tree: SysfsTree, tmp_path: Path) -> None:
    lines = [line for line, code in LINES.items() if code is not None][:1]
    lines += ["nvidia 0000:9a:00.0: AER: device recovery failed", "nvme 0000:02:00.0: AER: device recovery failed"]
    lines += [line for line in LINES if line.startswith("EDAC MC0: 1 UE")]
    log = tmp_path / "kmsg"
    log.write_text("".join(f"3,{n},{n}000000,-;{line}\n" for n, line in enumerate(lines)))
    (tmp_path / "boot").write_text("boot")
    reader = KmsgReader(ManualClock(T0), path=log, boot_id=tmp_path / "boot")
    companion = KernelLogCompanion(reader, OwnMetrics(), host="x", state=tmp_path / "state", sys=tree.root)
    companion.enrich(batch(), T0)
    companion.pump()
    said = [(event.kind, event.gpu, event.host) for event in companion.enrich(batch(), T0).events]
    node = EventKind.NODE_FAULT
    near, far = BOTH[0].uuid, BOTH[1].uuid
    assert said == [(node, near, "node-1"), (node, far, "node-1"), (node, "", "node-1"), (node, "", "node-1")]
    companion.close()


def aer(tree: SysfsTree, address: str, file: str, **counts: int) -> None:
    lines = [f"{name} {number}" for name, number in {"Undefined": 0, "DLP": 0, "UnsupReq": 0, **counts}.items()]
    write(tree.root / "bus/pci/devices" / address, **{file: "\n".join([*lines, "TOTAL_ERR_FATAL 99"])})


def test_counters_that_rise_are_told_with_their_device(tree: SysfsTree) -> None:
    clock = ManualClock(T0)
    companion = HostErrors(tree.root, clock, "node-9")
    memory = tree.root / "devices/system/edac/mc/mc0"
    write(memory / "dimm3", dimm_ue_count=0, dimm_ce_count=5, dimm_label="DIMM_A1")
    write(tree.root / "devices/system/edac/mc/mc1", ue_count=4, ce_count=0)
    for address in (GPU, NIC, BRIDGE[1], FAR[1]):
        aer(tree, address, "aer_dev_fatal", DLP=3)
        aer(tree, address, "aer_dev_nonfatal")
    assert companion.enrich(batch(), T0).events == (), "what was counted before is past"
    aer(tree, NIC, "aer_dev_fatal", DLP=5)
    aer(tree, FAR[1], "aer_dev_fatal", DLP=1)
    aer(tree, GPU, "aer_dev_nonfatal", UnsupReq=7)
    aer(tree, BRIDGE[1], "aer_dev_nonfatal", Undefined=1)
    write(memory / "dimm3", dimm_ue_count=1, dimm_ce_count=5 + CORRECTED)
    before = batch()
    assert companion.enrich(before, T0) is before, "looked at twice a minute"
    clock.advance(30 * SECOND)
    events = companion.enrich(batch(), T0).events
    near, far = BOTH[0].uuid, BOTH[1].uuid
    assert {(event.code, event.gpu, event.message) for event in events} == {
        (23, near, f"PCIe device {NIC}: fatal errors: DLP 2"),
        (23, far, f"PCIe device {FAR[1]}: fatal errors: DLP 1"),
        (22, near, f"PCIe device {BRIDGE[1]}: uncorrectable errors: Undefined 1"),
        (32, "", "memory mc0 DIMM_A1: errors that were not corrected: 1"),
        (31, "", f"memory mc0 DIMM_A1: {CORRECTED} errors corrected within an hour"),
    }
    assert len({event.id for event in events}) == 5
    clock.advance(HOUR)
    write(memory / "dimm3", dimm_ce_count=5 + 2 * CORRECTED - 1)
    assert companion.enrich(batch(), T0).events == ()
