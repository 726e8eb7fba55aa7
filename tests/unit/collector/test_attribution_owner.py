"""Owners of processes: cgroups of both versions, Kubernetes and container names, Slurm, and processes that go."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.collector.attribution import LOOK_AGAIN_MS, Attribution, AttributionCompanion, Membership, membership
from tocsin.domain.batch import Batch
from tocsin.domain.reading import Missing, Owner, Reading, owner_of_json
from tocsin_testing.builders import T0, gpu

UID = "0f1e2d3c-4b5a-6978-8796-a5b4c3d2e1f0"
SLICE = UID.replace("-", "_")
ID = "ab" * 32


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        pytest.param(
            f"0::/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            Membership(ID, UID),
            id="v2, systemd, containerd",
        ),
        pytest.param(
            f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/crio-{ID}.scope/container",
            Membership(ID, UID),
            id="v2, guaranteed, CRI-O with a cgroup of its own inside",
        ),
        pytest.param(
            f"0::/../../kubepods-besteffort.slice/kubepods-besteffort-pod{SLICE}.slice/cri-containerd-{ID}.scope",
            Membership(ID, UID),
            id="v2, seen from another cgroup namespace",
        ),
        pytest.param(
            f"12:devices:/kubepods/burstable/pod{UID}/{ID}\n11:memory:/kubepods/burstable/pod{UID}/{ID}\n1:name=systemd:/",
            Membership(ID, UID),
            id="v1, cgroupfs",
        ),
        pytest.param(
            f"4:memory:/system.slice/containerd.service/kubepods-burstable-pod{SLICE}.slice:cri-containerd:{ID}",
            Membership(ID, UID),
            id="v1, containerd without systemd cgroups",
        ),
        pytest.param(f"0::/system.slice/docker-{ID}.scope", Membership(ID), id="v2, Docker"),
        pytest.param(f"5:memory:/docker/{ID}\n0::/", Membership(ID), id="v1, Docker"),
        pytest.param(f"0::/machine.slice/libpod-{ID}.scope/container", Membership(ID), id="v2, Podman"),
        pytest.param(
            f"0::/docker/{'cd' * 32}/kubelet/kubepods/pod{UID}/{ID}", Membership(ID, UID), id="v2, a node inside Docker"
        ),
        pytest.param(
            "0::/system.slice/slurmstepd.scope/job_4711/step_0/user/task_2",
            Membership(slurm_job="4711.0"),
            id="v2, Slurm",
        ),
        pytest.param(
            "11:memory:/slurm/uid_1000/job_4711/step_batch/task_0\n9:devices:/slurm/uid_1000/job_4711",
            Membership(slurm_job="4711.batch"),
            id="v1, Slurm, whose controllers differ in depth",
        ),
        pytest.param(
            f"0::/system.slice/slurmstepd.scope/job_88/step_1/user/task_0/docker-{ID}.scope",
            Membership(ID, slurm_job="88.1"),
            id="a container inside a job",
        ),
        pytest.param("0::/user.slice/user-1000.slice/session-3.scope", Membership(), id="a login"),
        pytest.param("0::/", Membership(), id="root"),
        pytest.param("", Membership(), id="nothing"),
        pytest.param("0::/build/job_12/step_3", Membership(), id="a job that is none of Slurm's"),
    ],
)
def test_membership_of_a_cgroup(text: str, expected: Membership) -> None:
    assert membership(text) == expected


@given(st.text(max_size=300))
def test_no_cgroup_text_raises(text: str) -> None:
    membership(text)


class Node:
    """A made-up /proc and /var/log/pods."""

    def __init__(self, folder: Path) -> None:
        self.proc = folder / "proc"
        self.pods = folder / "pods"
        self.pods.mkdir()
        self.proc.mkdir()

    def process(self, pid: int, cgroup: str, *, comm: str = "python3", started: int = 100, environ: str = "") -> None:
        folder = self.proc / str(pid)
        folder.mkdir(exist_ok=True)
        (folder / "cgroup").write_text(cgroup + "\n")
        (folder / "comm").write_text(comm + "\n")
        (folder / "environ").write_bytes(environ.encode())
        before = " ".join(["S", *["1"] * 18])
        (folder / "stat").write_text(f"{pid} (a (b) c) {before} {started} 0 0\n")

    def end(self, pid: int) -> None:
        (self.proc / str(pid) / "stat").unlink()

    def attribution(self) -> Attribution:
        return Attribution(self.proc, self.pods)


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path)


POD = f"0::/kubepods.slice/kubepods-pod{SLICE}.slice/cri-containerd-{ID}.scope"


def test_a_pod_gets_its_names_from_the_kubelets_folders(node: Node) -> None:
    node.process(4711, POD)
    (node.pods / f"team-a_train-llm-0_{UID}").mkdir()
    (node.pods / "not-a-pod").mkdir()
    owner = node.attribution().owner(4711, T0)
    assert owner is not None
    assert (owner.namespace, owner.pod, owner.pod_uid, owner.container) == ("team-a", "train-llm-0", UID, ID)
    assert owner.process == "python3"
    assert owner.label == "team-a/train-llm-0"


def test_a_pod_whose_folder_comes_later_is_found_later(node: Node) -> None:
    node.process(4711, POD)
    attribution = node.attribution()
    first = attribution.owner(4711, T0)
    assert first is not None
    assert first.label == f"pod {UID}"
    (node.pods / f"team-a_late_{UID}").mkdir()
    later = attribution.owner(4711, T0 + LOOK_AGAIN_MS)
    assert later is not None
    assert later.pod == "late"


def test_slurm_is_known_from_the_environment_where_cgroups_do_not_tell(node: Node) -> None:
    node.process(12, "0::/", environ="PATH=/bin\0SLURM_JOB_ID=4711\0SLURM_STEP_ID=4294967294\0")
    owner = node.attribution().owner(12, T0)
    assert owner is not None
    assert owner.slurm_job == "4711.batch"
    assert owner.label == "Slurm job 4711.batch"


def test_a_number_given_anew_is_another_process(node: Node) -> None:
    attribution = node.attribution()
    node.process(12, "0::/", comm="old", started=5)
    node.process(12, "0::/", comm="old", started=5)
    assert getattr(attribution.owner(12, T0), "process", "") == "old"
    node.process(12, "0::/", comm="new", started=6)
    assert getattr(attribution.owner(12, T0 + 1), "process", "") == "new"
    node.end(12)
    assert attribution.owner(12, T0 + 2) is None


def test_readings_get_the_owners_of_their_processes(node: Node) -> None:
    node.process(4711, POD, comm="train")
    node.process(4712, "0::/slurm/uid_1/job_9/step_0", comm="other")
    reading = Reading(
        gpu(0),
        T0,
        {'gpu_process_memory_used_bytes{pid="4711"}': 1.0, "gpu_power_watts": 90.0},
    )
    denied = replace(reading, gpu=gpu(1), values={'gpu_process_sm_utilization_ratio{pid="4712"}': 0.5})
    idle = Reading(gpu(2), T0, {"gpu_power_watts": 60.0})
    gone = Reading(gpu(3), T0, {'gpu_process_memory_used_bytes{pid="99"}': 1.0})
    batch = AttributionCompanion(node.attribution()).enrich(Batch((reading, denied, idle, gone)), T0)
    owners = [[owner.label for owner in reading.owners] for reading in batch.readings]
    assert owners == [[f"pod {UID}"], ["Slurm job 9.0"], [], []]
    assert batch.readings[0].as_json()["owners"] == [batch.readings[0].owners[0].as_json()]


def test_owners_that_a_source_knows_stay(node: Node) -> None:
    node.process(4711, POD)
    known = Owner(0, pod="from-exporter", namespace="x")
    reading = Reading(gpu(0), T0, {'gpu_process_memory_used_bytes{pid="4711"}': 1.0}, owners=(known,))
    batch = Batch((reading,))
    assert AttributionCompanion(node.attribution()).enrich(batch, T0) is batch


def test_an_owner_survives_its_wire_form() -> None:
    owner = Owner(4711, "train", ID, "pod", "ns", UID, "9.0", "alice")
    assert owner_of_json(owner.as_json()) == owner
    assert owner_of_json({"pid": 4, "unknown": 1}) == Owner(4)
    with pytest.raises(ValueError, match="has no pid"):
        owner_of_json({"process": "x"})


def test_processes_that_come_and_go_between_readings_are_noticed(node: Node) -> None:
    companion = AttributionCompanion(node.attribution())
    for pid in (7, 8):
        node.process(pid, "0::/", comm=f"p{pid}")

    def owners(*keys: str) -> list[int]:
        always = {"gpu_power_watts": 1.0, 'gpu_process_steps_total{pid="9"}': 1.0}
        reading = Reading(gpu(0), T0, always | dict.fromkeys(keys, 1.0))
        return [owner.pid for owner in companion.enrich(Batch((reading,)), T0).readings[0].owners]

    seven, eight = (f'gpu_process_memory_used_bytes{{pid="{pid}"}}' for pid in (7, 8))
    assert [owners(seven), owners(seven), owners(seven, eight), owners(eight), owners()] == [[7], [7], [7, 8], [8], []]


def test_a_process_whose_memory_may_not_be_read_has_an_owner(node: Node) -> None:
    node.process(7, "0::/")
    reading = Reading(gpu(0), T0, {}, {'gpu_process_memory_used_bytes{pid="7"}': Missing.DENIED})
    batch = AttributionCompanion(node.attribution()).enrich(Batch((reading,)), T0)
    assert [owner.pid for owner in batch.readings[0].owners] == [7]


def test_a_process_on_several_gpus_is_looked_at_once(node: Node) -> None:
    node.process(7, "0::/")
    attribution = node.attribution()
    asked: list[int] = []
    look = attribution.owner

    def owner(pid: int, now_ms: int) -> Owner | None:
        asked.append(pid)
        return look(pid, now_ms)

    attribution.owner = owner  # type: ignore[method-assign]
    readings = tuple(Reading(gpu(n), T0, {'gpu_process_memory_used_bytes{pid="7"}': 1.0}) for n in range(8))
    batch = AttributionCompanion(attribution).enrich(Batch(readings), T0)
    assert asked == [7]
    assert [[one.pid for one in reading.owners] for reading in batch.readings] == [[7]] * 8
