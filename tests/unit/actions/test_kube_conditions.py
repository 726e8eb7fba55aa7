"""What others say of a node is read in each tool's own polarity, and Tocsin's own word is not."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.kubernetes.api import KubeNode
from tocsin.actions.kubernetes.conditions import About, known_conditions, word_of_others
from tocsin_testing.kube_recorded import exchanges


def _node(*conditions: dict[str, Any], writer: str = "npd") -> KubeNode:
    fields = {f'k:{{"type":"{one["type"]}"}}': {} for one in conditions if "type" in one}
    managed = {"manager": writer, "subresource": "status", "fieldsV1": {"f:status": {"f:conditions": fields}}}
    metadata = {"name": "n1", "managedFields": [managed] if writer else []}
    return KubeNode({"metadata": metadata, "status": {"conditions": list(conditions)}})


def _condition(kind: str, status: str, reason: str = "R", message: str = "it broke.") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


KEPT = {
    "node-problem-detector": {
        "KernelDeadlock", "ReadonlyFilesystem", "XfsShutdown", "CperHardwareErrorFatal", "CorruptDockerOverlay2",
        "KubeletUnhealthy", "ContainerRuntimeUnhealthy", "FrequentKubeletRestart", "FrequentContainerdRestart",
        "FrequentDockerRestart", "FrequentUnregisterNetDevice",
    },
    "AKS": {
        "GPUMissing", "NVLinkStatusInactive", "XIDErrors", "IBLinkFlapping", "GPUClockThrottling",
        "UnhealthyNvidiaDevicePlugin", "FilesystemCorruptionProblem", "KubeletProblem", "ContainerRuntimeProblem",
        "VMEventScheduled",
    },
    "EKS node monitoring agent": {
        "AcceleratedHardwareReady", "ContainerRuntimeReady", "KernelReady", "NetworkingReady", "StorageReady",
    },
    "NVSentinel": {
        "GpuMemWatch", "GpuThermalWatch", "GpuPcieWatch", "GpuPowerWatch", "GpuInforomWatch", "GpuSmWatch",
        "GpuNvlinkWatch", "GpuMcuWatch", "GpuPmuWatch", "GpuDriverWatch", "GpuCpusetWatch", "SysLogsXIDError",
        "SysLogsSXIDError", "SysLogsGPUFallenOff", "NVSwitchFatalError", "NVSwitchDown", "DCGMError", "CSPMaintenance",
    },
}  # fmt: skip
"""What each tool's documentation or source names, written down apart from the table."""
ABOUT_NODES = {
    *KEPT["node-problem-detector"], *(KEPT["EKS node monitoring agent"] - {"AcceleratedHardwareReady"}),
    "FilesystemCorruptionProblem", "KubeletProblem", "ContainerRuntimeProblem", "VMEventScheduled", "CSPMaintenance",
}  # fmt: skip


def test_each_condition_that_a_tool_keeps_has_its_row() -> None:
    rows: dict[str, set[str]] = {}
    for one in known_conditions().values():
        rows.setdefault(one.tool, set()).add(one.type)
    assert rows == KEPT
    assert {one.type for one in known_conditions().values() if one.about is About.NODE} == ABOUT_NODES


def test_every_row_is_whole_and_only_types_that_end_in_ready_are_bad_when_false() -> None:
    rows = known_conditions()
    for kind, one in rows.items():
        assert one.bad == ("False" if kind.endswith("Ready") else "True")
        assert {one.bad, one.good} == {"True", "False"}
        assert one.meaning[0].isupper() or one.meaning.startswith("containerd")
        assert one.provenance
    assert not rows.keys() & {"Ready", "MemoryPressure", "TocsinGpuHealthy", "TocsinGpuFault"}


@pytest.mark.parametrize("kind", sorted(known_conditions()))
def test_each_condition_in_its_own_polarity(kind: str) -> None:
    spec = known_conditions()[kind]
    bad = word_of_others(_node(_condition(kind, spec.bad)))
    assert bad.bad[spec.about] == {kind: f"{spec.tool} sets {kind}={spec.bad} (R: it broke)"}
    assert not bad.good
    good = word_of_others(_node(_condition(kind, spec.good)))
    assert (good.bad, good.good) == ({About.GPU: {}, About.NODE: {}}, {kind})
    unknown = word_of_others(_node(_condition(kind, "Unknown")))
    assert (unknown.bad, unknown.good) == ({About.GPU: {}, About.NODE: {}}, frozenset())


def test_the_recorded_node_says_that_its_kernel_is_well_and_nothing_else() -> None:
    node = KubeNode(exchanges()["ssa_cond_apply_other"]["response"]["body"])
    assert [one["type"] for one in node.conditions] == ["Ready", "GpuHealthy", "KernelDeadlock"]
    word = word_of_others(node)
    assert (word.bad[About.NODE], word.good) == ({}, {"KernelDeadlock"})
    for one in node.raw["status"]["conditions"]:
        one["status"] = "True"
    assert word_of_others(node).bad[About.NODE] == {
        "KernelDeadlock": "node-problem-detector sets KernelDeadlock=True (KernelHasNoDeadlock: kernel has no deadlock)"
    }


def test_what_tocsin_wrote_is_no_evidence_unless_another_writes_it_too() -> None:
    asked = _condition("AcceleratedHardwareReady", "False", "TocsinDrain")
    assert word_of_others(_node(asked, writer="tocsin")).bad[About.GPU] == {}
    assert word_of_others(_node(asked, writer=""), frozenset({"AcceleratedHardwareReady"})).bad[About.GPU] == {}
    assert word_of_others(_node(asked, writer="eks-node-monitoring-agent")).bad[About.GPU]
    theirs = _condition("AcceleratedHardwareReady", "False", "XIDErrorFound")
    assert word_of_others(_node(theirs, writer=""), frozenset({"AcceleratedHardwareReady"})).bad[About.GPU]
    assert word_of_others(_node(asked, writer="")).bad[About.GPU], "nobody is told to have written it"


def test_words_are_one_short_line_and_fall_back_on_the_meaning() -> None:
    long = _condition("XIDErrors", "True", "", "XID\n79 " * 200)
    (words,) = word_of_others(_node(long)).bad[About.GPU].values()
    assert len(words) < 350
    assert "\n" not in words
    bare = {"type": "XIDErrors", "status": "True"}
    assert list(word_of_others(_node(bare)).bad[About.GPU].values()) == [
        "AKS sets XIDErrors=True (The driver reported XIDs)"
    ]


_TEXT = st.text(max_size=12) | st.sampled_from(["KernelDeadlock", "XIDErrors", "KernelReady", "True", "False"])


@given(st.lists(st.fixed_dictionaries({"type": _TEXT, "status": _TEXT, "reason": _TEXT, "message": _TEXT}), max_size=6))
def test_no_condition_is_bad_and_good_and_unknown_types_say_nothing(conditions: list[dict[str, Any]]) -> None:
    raw = {"metadata": {"name": "n1"}, "status": {"conditions": conditions}}
    word = word_of_others(KubeNode(raw))
    named = {kind for found in word.bad.values() for kind in found} | word.good
    assert named <= known_conditions().keys()
    assert named <= {one["type"] for one in conditions}
