"""What managers tell of work: budgets, priority, jobs, requests, checkpoints; live plans are priced by it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.kubernetes.api import Pod, quantity
from tocsin.actions.kubernetes.budgets import covers
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.kubernetes.observe import work_seen
from tocsin.actions.model.executor import ManagerUnavailable, SeesWorkloads
from tocsin.actions.planning.build import Knowledge, fleet_state_from
from tocsin.actions.planning.facts import WorkloadSeen
from tocsin.actions.planning.state import GpuMode
from tocsin.actions.planning.units import PlanLimits, price, units_of
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import MINUTE, ManualClock, to_iso
from tocsin.domain.reading import Owner, Reading
from tocsin.runtime.brain.managers import WORK_SECONDS, Managers
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0, gpu
from tocsin_testing.fake_slurm import FakeSlurm, Job
from tocsin_testing.kube_recorded import exchanges
from tocsin_testing.kube_site import Site, double_site, owner_of

REPLICA = owner_of("apps/v1", "ReplicaSet", "serve")
BATCH = owner_of("batch/v1", "Job", "train")


@pytest.fixture
def site(tmp_path: Path) -> Any:
    with double_site(tmp_path) as made:
        yield made


def seen(site: Site, **more: Any) -> WorkloadSeen:
    return work_seen(Cluster(site.door), site.settings(**more), T0)


def started(site: Site, title: str, minutes: float) -> None:
    space, name = title.split("/")
    status = {"startTime": to_iso(T0 - round(minutes * MINUTE))}
    path = f"/api/v1/namespaces/{space}/pods/{name}/status"
    site.door.ask("PATCH", path, body={"status": status}, content_type="application/strategic-merge-patch+json")


def test_budgets_tell_what_they_allow_and_which_pods_they_cover(site: Site) -> None:
    node = site.node()
    for name in ("a", "b", "c"):
        site.pod(name, node, app="serve", owner=REPLICA)
    site.pod("alone", node, app="other", owner=BATCH)
    site.budget("keep-two", "serve", at_least=2)
    found = seen(site)
    assert {name: one.allowed for name, one in found.budgets.items()} == {"default/keep-two": 1}
    assert found.facts["pod/default/a"].budgets == ("default/keep-two",)
    assert found.facts["pod/default/alone"].budgets == ()


def test_the_team_of_a_pod_is_the_label_that_the_site_names(site: Site) -> None:
    site.pod("a", site.node(), app="vision", owner=REPLICA)
    assert seen(site, team_label="app").facts["pod/default/a"].team == "vision"
    assert seen(site).facts["pod/default/a"].team == ""


def test_the_recorded_budget_is_read() -> None:
    budget = exchanges()["pdb_get"]["response"]["body"]
    app = budget["spec"]["selector"]["matchLabels"]
    labelled = Pod({"metadata": {"namespace": budget["metadata"]["namespace"], "labels": app}})
    assert covers(budget, labelled)
    assert not covers(budget, Pod({"metadata": {"namespace": "elsewhere", "labels": app}}))


@pytest.mark.parametrize(
    ("selector", "labels", "covered"),
    [
        ({}, {}, True),
        (None, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "In", "values": ["1", "2"]}]}, {"a": "2"}, True),
        ({"matchExpressions": [{"key": "a", "operator": "NotIn", "values": ["1"]}]}, {"a": "1"}, False),
        ({"matchExpressions": [{"key": "a", "operator": "Exists"}]}, {}, False),
        ({"matchExpressions": [{"key": "a", "operator": "DoesNotExist"}]}, {}, True),
        ({"matchLabels": {"a": "1"}, "matchExpressions": [{"key": "b", "operator": "Exists"}]}, {"a": "1"}, False),
    ],
)
def test_selectors_mean_what_kubernetes_means(selector: Any, labels: dict[str, str], covered: bool) -> None:
    budget = {"metadata": {"name": "x", "namespace": "s"}, "spec": {"selector": selector}}
    assert covers(budget, Pod({"metadata": {"namespace": "s", "labels": labels}})) is covered


def test_what_a_move_loses_is_told_by_checkpoint_state_or_start(site: Site) -> None:
    node = site.node()
    at = to_iso(T0 - 10 * MINUTE)
    titles = {
        "noted": site.pod("noted", node, owner=BATCH, annotations={"tocsin.io/checkpoint-at": at}),
        "replica": site.pod("replica", node, owner=REPLICA),
        "stateless": site.pod("stateless", node, owner=BATCH, annotations={"tocsin.io/stateless": "true"}),
        "batch": site.pod("batch", node, owner=BATCH),
        "young": site.pod("young", node, owner=BATCH),
    }
    for name in ("noted", "replica", "stateless", "batch"):
        started(site, titles[name], 90)
    found = seen(site)
    lost = {name: found.facts[f"pod/{title}"].lost_s for name, title in titles.items()}
    assert lost == {"noted": 600.0, "replica": 0.0, "stateless": 0.0, "batch": 5400.0, "young": None}


def test_a_pod_tells_its_job_its_requests_and_whether_it_may_move(site: Site) -> None:
    node = site.node()
    notes = {"tocsin.io/checkpoint": "true", "tocsin.io/checkpoint-every": "900"}
    rank = site.pod("rank-0", node, gpus=2, owner=BATCH, annotations=notes)
    bare = site.pod("bare", node)
    found = seen(site, evict_bare_pods=False)
    uid = site.find_pod(rank)["metadata"]["uid"]
    assert found.facts[f"pod/{uid}"] == found.facts[f"pod/{rank}"]
    told = found.facts[f"pod/{rank}"]
    assert told.gang == "default/job/train"
    assert (told.checkpoint_s, told.checkpoint_every_s) == (60.0, 900.0)
    assert told.movable
    assert not found.facts[f"pod/{bare}"].movable


def test_room_is_what_other_pods_leave() -> None:
    class Door:
        def ask(self, method: str, path: str, **_: object) -> Any:
            if path == "/api/v1/nodes":
                given = {"cpu": "16", "memory": "64Gi"}
                return {"items": [{"metadata": {"name": "n1"}, "status": {"allocatable": given}}]}
            if path == "/api/v1/pods":
                return {"items": [pod("system", {"cpu": "500m", "memory": "1Gi"}), pod("gpu", {"cpu": "4"}, gpus=1)]}
            return {"items": []}

        def close(self) -> None:
            """Nothing is open."""

    def pod(name: str, asked: dict[str, str], gpus: int = 0) -> Any:
        limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
        resources = {"requests": asked, "limits": limits}
        spec = {"nodeName": "n1", "priority": 7, "containers": [{"resources": resources}], "activeDeadlineSeconds": 600}
        status = {"startTime": to_iso(T0 - MINUTE)}
        return {"metadata": {"name": name, "namespace": "s"}, "spec": spec, "status": status}

    found = work_seen(Cluster(Door()), KubernetesSettings(), T0)
    assert found.rooms["n1"].cpus == pytest.approx(15.5)
    assert found.rooms["n1"].memory_bytes == pytest.approx(63 * 2**30)
    told = found.facts["pod/s/gpu"]
    assert (told.priority, told.cpus, told.ends_in_s) == (7, 4.0, 540.0)


@pytest.mark.parametrize(("text", "number"), [("500m", 0.5), ("2", 2.0), ("1Gi", 2.0**30), ("1e3", 1000.0), ("x", 0.0)])
def test_quantities(text: str, number: float) -> None:
    assert quantity(text) == pytest.approx(number)


def slurm(fake: FakeSlurm, **more: Any) -> SlurmExecutor:
    return SlurmExecutor(SlurmSettings.model_validate(more), fake, ManualClock(T0))


def test_the_recorded_jobs_are_read() -> None:
    class Recorded(FakeSlurm):
        def _listed(self, command: Any) -> Any:
            if command[0] == "squeue":
                text = Path("tests/data/slurm/squeue_times.json").read_text()
                return type(super()._listed(["squeue"]))(0, text)
            return super()._listed(command)

    raw = {job["job_id"]: job for job in json.loads(Path("tests/data/slurm/squeue_times.json").read_text())["jobs"]}
    found = slurm(Recorded(), opt_in_comment="").work().facts
    running = [number for number, job in raw.items() if job["job_state"] == "RUNNING"]
    assert running
    for number in running:
        told, job = found[f"slurm/{number}"], raw[number]
        assert told.priority == job["priority"]
        assert told.lost_s == pytest.approx(max(0.0, T0 / 1000 - job["start_time"]))
        limited = job["time_limit"] is not None
        expected = pytest.approx(max(0.0, job["end_time"] - T0 / 1000)) if limited else None
        assert told.ends_in_s == expected


def test_jobs_that_may_not_be_requeued_or_did_not_opt_in_stay() -> None:
    jobs = {
        1: Job("node-0"),
        2: Job("node-0", requeue=False),
        3: Job("node-1", comment=""),
        4: Job("node-1", batch=False),
    }
    found = slurm(FakeSlurm(jobs=jobs)).work().facts
    assert {name: told.movable for name, told in found.items()} == {
        "slurm/1": True,
        "slurm/2": False,
        "slurm/3": False,
        "slurm/4": False,
    }
    assert found["slurm/1"].checkpoint_s == SlurmSettings().checkpoint_wait_seconds
    assert found["slurm/3"].checkpoint_s is None


def test_work_is_on_the_hosts_by_which_readings_name_its_nodes(site: Site) -> None:
    fake = FakeSlurm(jobs={1: Job("node-0"), 2: Job("node-1")})
    found = slurm(fake, host_suffix=".hpc", hosts={"gpu7.hpc": "node-1"}).work().facts
    assert {name: one.hosts for name, one in found.items()} == {"slurm/1": {"node-0.hpc"}, "slurm/2": {"gpu7.hpc"}}
    node = site.node()
    title = site.pod("a", node, owner=BATCH)
    assert seen(site).facts[f"pod/{title}"].hosts == {node}


@pytest.mark.parametrize("proof", ["comment", "file"])
def test_a_job_shows_its_last_checkpoint(proof: str) -> None:
    at = T0 // 1000 - 120
    fake = FakeSlurm(jobs={1: Job("node-0", comment=f"tocsin-checkpoint checkpointed={at}", folder="/w")})
    fake.files["/w/checkpoint.done"] = float(at)
    found = slurm(fake, checkpoint_proof=proof).work().facts["slurm/1"]
    assert found.lost_s == pytest.approx(T0 / 1000 - at)


def test_managers_keep_what_they_saw_and_forget_it_in_time() -> None:
    fake, clock = FakeSlurm(jobs={1: Job("node-0")}), ManualClock(T0)
    executor = SlurmExecutor(SlurmSettings(snapshot_seconds=0.0), fake, clock)
    assert isinstance(executor, SeesWorkloads)
    managers = Managers([executor], clock, OwnMetrics())
    assert not managers.work().facts
    managers.look_at_work()
    assert set(managers.work().facts) == {"slurm/1"}
    fake.down = True
    with pytest.raises(ManagerUnavailable):
        executor.work()
    managers.look_at_work()
    assert managers.work().facts, "one look that failed forgets nothing"
    clock.advance(round((WORK_SECONDS + 1) * 1000))
    assert not managers.work().facts


def test_a_running_fleet_is_priced_by_what_its_manager_tells(site: Site) -> None:
    node = site.node("node-1")
    pod = site.pod("train-0", node, owner=BATCH, annotations={"tocsin.io/checkpoint-at": to_iso(T0 - 30 * MINUTE)})
    other = site.pod("serve-0", node, app="serve", owner=REPLICA)
    site.budget("all-of-them", "serve", at_least=1)
    told = seen(site)
    uids = [site.find_pod(title)["metadata"]["uid"] for title in (pod, other)]
    readings = [
        Reading(gpu(number, host=node), T0, {"gpu_utilization_ratio": 0.5}, {}, (Owner(number + 1, pod_uid=uid),))
        for number, uid in enumerate(uids)
    ]
    known = Knowledge(facts=told.facts, budgets=told.budgets, rooms=told.rooms, restart_s=300.0)
    state = fleet_state_from(readings, [], [], T0, known)
    train = state.works[f"pod/{uids[0]}"]
    paid = price(state, train, PlanLimits())
    assert paid is not None
    assert paid.gpu_hours == pytest.approx((30 * 60 + 300) / 3600)
    _, refused = units_of(state, [GpuMode.EXCLUSIVE], PlanLimits())
    assert [one.reason for one in refused] == ["budget default/all-of-them allows 0 disruptions now"]
