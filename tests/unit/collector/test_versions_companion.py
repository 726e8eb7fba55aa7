"""Versions of a node become labels of its GPUs, and what is not known has its reason."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from tocsin.collector.versions.companion import Versions
from tocsin.domain.batch import Batch
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.versions import MISSING_LABEL, missing_of, versions_of
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu

STATUS = "Package: nvidia-container-toolkit\nStatus: install ok installed\nVersion: 1.17.8-1\n"
DRIVER = "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  575.57.08  Release Build  (x)\nGCC version: 12\n"


def put(root: Path, name: str, content: str) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_text(content)


@pytest.fixture
def node(tmp_path: Path) -> Path:
    put(tmp_path, "sys/kernel/osrelease", "5.15.0-113-generic\n")
    put(tmp_path, "driver/nvidia/version", DRIVER)
    put(tmp_path, "var/lib/dpkg/status", STATUS)
    return tmp_path


def companion(root: Path) -> Versions:
    made = Versions(root, root, root, OwnMetrics())
    made.look()
    return made


def after(made: Versions, *gpus: Gpu) -> list[Gpu]:
    batch = Batch(readings=[Reading(one, T0, {"gpu_power_watts": 300.0}) for one in gpus])
    return [one.gpu for one in made.enrich(batch, T0).readings]


def test_what_the_node_tells_is_on_each_gpu(node: Path) -> None:
    (found,) = after(companion(node), gpu(0))
    assert versions_of(found.labels) == {
        "driver": "575.57.08",
        "kernel": "5.15.0-113-generic",
        "container_toolkit": "1.17.8",
    }


def test_what_could_not_be_read_is_named_with_its_reason(node: Path) -> None:
    (found,) = after(companion(node), gpu(0, labels={"vbios_version": "96.00"}))
    assert missing_of(found.labels) == {
        "cuda": "no version file in /usr/local/cuda",
        "nccl": "no library",
        "cudnn": "no library",
        "fabric_manager": "no package",
        "nic_firmware": "no RDMA card that tells it",
        "cuda_driver": "not told by the source",
        "inforom": "not told by the source",
        "gsp_firmware": "not told by the source",
    }
    (node / "var/lib/dpkg/status").unlink()
    (found,) = after(companion(node), gpu(0))
    assert missing_of(found.labels)["fabric_manager"] == "no package database that can be read"


def test_what_source_or_settings_say_stands(node: Path) -> None:
    (found,) = after(companion(node), gpu(0, labels={"driver_version": "550.1", "kernel_version": "mine", "x": "y"}))
    assert versions_of(found.labels)["driver"] == "550.1"
    assert found.labels["kernel_version"] == "mine"
    assert found.labels["x"] == "y"


def test_a_gpu_stays_the_same_object_until_something_changes(node: Path) -> None:
    """The encoder knows GPUs by identity."""
    made, given = companion(node), gpu(0)
    (first,) = after(made, given)
    made.look()
    assert after(made, given)[0] is first
    assert after(made, gpu(0))[0] is first, "made anew by its source, and no other"
    assert after(made, gpu(0, labels={"x": "y"}))[0] is not first
    put(node, "sys/kernel/osrelease", "6.8.0")
    made.look()
    (second,) = after(made, given)
    assert versions_of(second.labels)["kernel"] == "6.8.0"


def test_instances_are_left_alone(node: Path) -> None:
    child = gpu(1, parent=gpu(0).uuid)
    whole, part = after(companion(node), gpu(0), child)
    assert versions_of(whole.labels)
    assert part is child


def test_cards_with_one_firmware_and_with_several(node: Path) -> None:
    for name, firmware, board in (("mlx5_0", "28.39.1002", "MT_838"), ("mlx5_1", "28.39.1002", "MT_838")):
        put(node, f"class/infiniband/{name}/fw_ver", firmware)
        put(node, f"class/infiniband/{name}/board_id", board)
    assert versions_of(after(companion(node), gpu(0))[0].labels)["nic_firmware"] == "28.39.1002"
    put(node, "class/infiniband/mlx5_2/fw_ver", "22.36.1010")
    said = versions_of(after(companion(node), gpu(0))[0].labels)["nic_firmware"]
    assert said == "22.36.1010 (unknown board), 28.39.1002 (MT_838)"


def test_gpus_of_others_get_what_is_theirs(node: Path) -> None:
    amd, npu = (Gpu(f"{vendor}-1", "node-1") for vendor in ("AMD", "NPU"))
    put(node, "class/infiniband/mlx5_0/fw_ver", "28.39.1002")
    (node / "driver/nvidia/version").unlink()
    put(node, "module/amdgpu/version", "6.12.12")
    first, second = after(companion(node), amd, npu)
    assert versions_of(first.labels) == {
        "driver": "6.12.12",
        "kernel": "5.15.0-113-generic",
        "nic_firmware": "28.39.1002",
    }
    assert versions_of(second.labels) == {"kernel": "5.15.0-113-generic", "nic_firmware": "28.39.1002"}
    assert MISSING_LABEL not in second.labels


def test_it_looks_in_a_thread_of_its_own(node: Path) -> None:
    before = threading.active_count()
    made = Versions(node, node, node, OwnMetrics(), every_seconds=3_600.0)
    made.start()
    assert threading.active_count() == before + 1
    made.close()
    assert threading.active_count() == before
