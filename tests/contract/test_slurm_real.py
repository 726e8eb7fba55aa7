"""Against a real Slurm on loopback: single verbs, and a bad node from the finding to the resume."""

from __future__ import annotations

import pwd
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.view import Confirmations, FleetView, GpuView
from tocsin.actions.slurm.client import CommandResult, CommandRunner, Slurm, SlurmProblem, Trouble
from tocsin.actions.slurm.release import release_all
from tocsin.actions.slurm.rest import RestRunner, runner_of
from tocsin.actions.slurm.signs import NodeComments, ShownFaults
from tocsin.actions.slurm.state import expand
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import HOUR, SystemClock
from tocsin.domain.decision import Decision, DecisionState, Mode, parameters_of
from tocsin.domain.finding import ActionKind, Category, Finding, Severity, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin_testing.action_world import finding, incident, settings, subject_of
from tocsin_testing.journal_double import JournalDouble
from tocsin_testing.slurm_cluster import Cluster, slurm_cluster

pytestmark = pytest.mark.server
CLOCK = SystemClock()


@contextmanager
def new_cluster() -> Iterator[Cluster]:
    with tempfile.TemporaryDirectory(prefix="slurm") as folder, slurm_cluster(Path(folder)) as made:
        yield made


@pytest.fixture(scope="module")
def running() -> Iterator[Cluster]:
    with new_cluster() as made:
        yield made


@pytest.fixture
def cluster(running: Cluster) -> Cluster:
    running.clear()
    return running


def slurm_settings(cluster: Cluster, **more: Any) -> SlurmSettings:
    return SlurmSettings.model_validate(
        {"conf": cluster.conf, "snapshot_seconds": 0, "partitions": {"gpu": "gpu"}, **more}
    )


def executor(cluster: Cluster, **more: Any) -> SlurmExecutor:
    chosen = slurm_settings(cluster, **more)
    return SlurmExecutor(chosen, CommandRunner(chosen), CLOCK)


def client(cluster: Cluster) -> Slurm:
    chosen = slurm_settings(cluster)
    return Slurm(chosen, CommandRunner(chosen), CLOCK)


def decision(action: ActionKind, name: str, kind: SubjectKind = SubjectKind.HOST, **parameters: str) -> Decision:
    now_ms = CLOCK.now_ms()
    return Decision(
        rule="hot",
        subject=Subject(kind, name, name if kind is SubjectKind.HOST else ""),
        action=action,
        mode=Mode.ACT,
        severity=Severity.CRITICAL,
        category=Category.THERMAL,
        at_ms=now_ms,
        expires_ms=now_ms + HOUR,
        key=f"{action}|{name}|{now_ms}",
        sentence=f"{name} 'GPU 0' is hot; $(reboot)",
        parameters=parameters_of(action, parameters),
    )


def to_the_end(cluster: Cluster, made: SlurmExecutor, wanted: Decision) -> ExecutionResult:
    return cluster.until(f"{wanted.action} has ended", lambda: (r := made.execute(wanted)).pending is False and r)


def running_on(cluster: Cluster, job: str) -> str:
    return cluster.field("job", job, "NodeList") if cluster.field("job", job, "JobState") == "RUNNING" else ""


class NotServedError(AssertionError):
    """Something was left to commands."""


class NoCommands:
    """A host without Slurm's commands."""

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        raise NotServedError(" ".join(command))


class BadNode:
    """A fleet of two nodes of which one runs hot, and the loop over the real cluster."""

    def __init__(self, made: SlurmExecutor) -> None:
        self.gpus = {f"GPU-{h}-{i}": Gpu(f"GPU-{h}-{i}", h, index=i) for h in ("gpu-n1", "gpu-n2") for i in range(2)}
        self.executor = made
        self.finding: Finding | None = None
        self.policy = Policy(settings(settle_seconds=0))
        self.started_ms = CLOCK.now_ms()
        self.loop = ActionLoop(JournalDouble(CLOCK), [made], CLOCK, self.policy)
        self._confirmations = Confirmations()

    def breaks(self) -> None:
        gpu = self.gpus["GPU-gpu-n1-0"]
        self.finding = finding(
            subject_of(gpu), CLOCK.now_ms(), action=ActionKind.DRAIN, sentence="gpu-n1 GPU 0: 91 °C."
        )

    def view(self) -> FleetView:
        now_ms = CLOCK.now_ms()
        live = [] if self.finding is None else [replace(self.finding, last_ms=now_ms)]
        nodes = self.executor.nodes()
        gpus = {
            uuid: GpuView(
                gpu, now_ms, healthy=not live or gpu.host != "gpu-n1", under_action=not nodes[gpu.host].schedulable
            )
            for uuid, gpu in self.gpus.items()
        }
        return FleetView(
            now_ms,
            self.started_ms,
            gpus,
            {f.id: f for f in live},
            tuple(incident(f) for f in live),
            self._confirmations.update(live, now_ms),
            policy=self.policy,
        )

    def state(self, action: ActionKind) -> DecisionState | None:
        """One turn of the loop; where the decision of `action` stands after it."""
        view = self.view()
        self.loop.step(view, view.incidents, [])
        found = [status for status in self.loop.statuses() if status.decision.action is action]
        return found[0].state if found else None


def test_a_bad_node_is_drained_its_work_runs_elsewhere_and_it_is_given_back_after_health(cluster: Cluster) -> None:
    job = cluster.submit("--comment=tocsin-checkpoint")
    cluster.until("the job runs on gpu-n1", lambda: running_on(cluster, job) == "gpu-n1")
    proof = {"checkpoint_proof": "file", "checkpoint_file": f"{cluster.folder}/%j.checkpoint"}
    world = BadNode(executor(cluster, drain_jobs="requeue", **proof))

    world.breaks()
    cluster.until("drained", lambda: world.state(ActionKind.DRAIN) is DecisionState.DONE)

    assert "on gpu-n1" in (cluster.folder / f"{job}.checkpoint").read_text(), "it was told, and wrote its checkpoint"
    state = world.executor.nodes()["gpu-n1"]
    assert (state.schedulable, state.ours, state.work) == (False, True, ())
    assert state.reason.startswith("tocsin: Drain ")
    assert "DRAIN" in cluster.field("node", "gpu-n1", "State")
    assert cluster.until("the job runs elsewhere", lambda: running_on(cluster, job)) == "gpu-n2"
    resumed = cluster.folder / f"{job}.resumed"
    cluster.until("it goes on", lambda: resumed.exists() and resumed.read_text())
    assert resumed.read_text() == (cluster.folder / f"{job}.checkpoint").read_text()
    (drained,) = [s for s in world.loop.statuses() if s.decision.action is ActionKind.DRAIN]
    assert drained.outcome is not None
    assert drained.outcome.effect["jobs_requeued"] == 1.0
    assert drained.outcome.effect["drain_seconds"] > 0

    assert world.state(ActionKind.UNCORDON) is None, "it is not given back while it is bad"
    world.finding = None
    cluster.until("given back", lambda: world.state(ActionKind.UNCORDON) is DecisionState.DONE)
    cluster.until("it takes work", lambda: world.executor.nodes()["gpu-n1"].schedulable)
    assert cluster.field("node", "gpu-n1", "State") == "IDLE"
    cluster.run("scancel", job)


def test_drain_and_resume_keep_the_words_of_others(cluster: Cluster) -> None:
    made = executor(cluster)
    cluster.run("scontrol", "update", "nodename=gpu-n2", "comment=rack 7")
    drain = decision(ActionKind.DRAIN, "gpu-n2")
    assert to_the_end(cluster, made, drain).effect["drain_seconds"] >= 0
    state = made.nodes()["gpu-n2"]
    assert (state.ours, state.schedulable) == (True, False)
    assert state.reason == f"tocsin: gpu-n2 GPU 0 is hot; (reboot) [{drain.id}]"
    undo = inverse_of(drain)
    assert undo is not None
    assert made.execute(undo).ok
    cluster.until("it answers again", lambda: made.nodes()["gpu-n2"].schedulable)
    kept = client(cluster).snapshot().nodes["gpu-n2"].comment
    assert kept.startswith("rack 7"), "what ended for a decision stays marked behind the words of others"


def test_the_drain_of_an_administrator_is_left_alone(cluster: Cluster) -> None:
    made = executor(cluster)
    cluster.run("scontrol", "update", "nodename=gpu-n2", "state=drain", "reason=fan, ask Ann")
    for action in (ActionKind.DRAIN, ActionKind.UNCORDON):
        result = made.execute(decision(action, "gpu-n2"))
        assert not result.ok
        assert "root: 'fan, ask Ann'" in result.detail
    assert made.nodes()["gpu-n2"].reason == "fan, ask Ann"
    cluster.run("scontrol", "update", "nodename=gpu-n2", "state=resume")


def test_one_task_of_an_array_moves_and_a_job_that_may_not_stays(cluster: Cluster) -> None:
    made = executor(cluster, checkpoint_wait_seconds=0)
    array = cluster.submit("--array=0-1", "--comment=tocsin-checkpoint")
    cluster.until("both tasks run", lambda: cluster.run("squeue", "-h", "-t", "R", "-j", array).count("\n") == 2)
    cluster.run("scontrol", "update", f"jobid={array}_0", "requeue=0")
    result = to_the_end(cluster, made, decision(ActionKind.MIGRATE, "gpu-n1"))
    assert (result.effect["jobs_requeued"], result.effect["jobs_left"]) == (1.0, 1.0)
    assert f"job {array}_0 is left running: it may not be requeued" in result.detail
    where = {f"{array}_0": "gpu-n1", f"{array}_1": "gpu-n2"}
    seen = lambda: {job.ref: job.nodes for job in client(cluster).snapshot().jobs if job.active}  # noqa: E731
    cluster.until("each is where it belongs", lambda: seen() == {ref: (node,) for ref, node in where.items()})
    assert cluster.field("node", "gpu-n1", "State").startswith("MIXED"), "the node itself is as it was"
    cluster.run("scancel", array)
    cluster.until("they are gone", lambda: not seen())


def test_hold_requeue_and_release(cluster: Cluster) -> None:
    slurm = client(cluster)
    number = cluster.submit("--comment=tocsin-checkpoint")
    starts = cluster.folder / f"{number}.starts"
    cluster.until("it has begun", lambda: running_on(cluster, number) and starts.exists())
    (job,) = [each for each in slurm.snapshot().jobs if each.ref == number]
    assert job.gpus == {job.nodes[0]: frozenset({0})}
    slurm.requeue(job, hold=True)
    # As the product does: a job that is still ending is left alone, else its first end would end it in the queue.
    cluster.until("it is held", lambda: cluster.field("job", number, "JobState") == "PENDING")
    assert cluster.field("job", number, "Reason") == "job_requeued_in_held_state"
    slurm.requeue(job)
    slurm.release(job)

    def started_again() -> bool:
        if cluster.field("job", number, "Reason") == "BeginTime":
            slurm.start_soon(job)
        return starts.read_text().count("start") > 1

    cluster.until("it runs again", started_again)
    cluster.clear()
    cluster.until("it is gone", lambda: not any(each.active for each in slurm.snapshot().jobs))
    with pytest.raises(SlurmProblem) as ended:
        slurm.signal(job)
    assert ended.value.trouble is Trouble.UNKNOWN_JOB


@pytest.fixture
def dark_cloud() -> Iterator[Cluster]:
    """A cluster of its own: a node once powered up comes down by Slurm's own time."""
    with new_cluster() as made:
        yield made


def test_a_cloud_node_is_powered_up_and_down(dark_cloud: Cluster) -> None:
    cluster = dark_cloud
    made = executor(cluster)
    assert not made.nodes()["cloud-1"].ready
    grow = decision(ActionKind.SCALE_OUT, "gpu", SubjectKind.POOL)
    assert made.execute(grow).pending
    log = cluster.folder / "power.log"
    cluster.until("it is switched on", lambda: log.exists() and "resume cloud-1" in log.read_text())
    assert made.execute(grow).pending
    cluster.boot("cloud-1", "-b")
    result = to_the_end(cluster, made, grow)
    assert (result.ok, result.effect["nodes_up"]) == (True, 1.0)
    assert log.read_text().count("resume") == 1
    assert made.nodes()["cloud-1"].schedulable
    assert made.execute(decision(ActionKind.SCALE_IN, "gpu", SubjectKind.POOL)).effect == {"nodes_down": 1.0}
    cluster.until("it is on its way down", lambda: "POWERING_DOWN" in cluster.field("node", "cloud-1", "State"))


def test_a_reboot_waits_for_the_node(cluster: Cluster) -> None:
    made = executor(cluster, allow_reboot=True)
    number = cluster.submit("--exclude=gpu-n1,cloud-1")
    cluster.until("it runs", lambda: running_on(cluster, number) == "gpu-n2")
    reboot = decision(ActionKind.REBOOT_NODE, "gpu-n2")
    assert made.execute(reboot).pending
    assert "waits for its reboot" in made.execute(reboot).detail
    assert "REBOOT" in cluster.field("node", "gpu-n2", "State")
    cluster.run("scontrol", "cancel_reboot", "gpu-n2")
    assert "cancelled" in made.execute(reboot).detail
    cluster.run("scancel", number)
    cluster.until("it is gone", lambda: not cluster.run("squeue", "-h").strip())


def test_text_says_what_json_says(cluster: Cluster) -> None:
    number = cluster.submit("--comment=tocsin-checkpoint", "--array=4")
    cluster.until("it runs", lambda: running_on(cluster, f"{number}_4"))
    newer, older = client(cluster), client(cluster)
    older._json = False
    one, other = newer.snapshot(), older.snapshot()
    assert [(n.name, n.base, n.flags, n.partitions, n.gpus, n.comment) for n in one.nodes.values()] == [
        (n.name, n.base, n.flags, n.partitions, n.gpus, n.comment) for n in other.nodes.values()
    ]
    live = lambda seen: [job for job in seen.jobs if job.active]  # noqa: E731
    assert live(one) == live(other)
    assert live(one)[0].ref == f"{number}_4"
    cluster.run("scancel", number)


def test_a_real_slurmrestd_says_what_the_commands_say(cluster: Cluster) -> None:
    number = cluster.submit("--comment=tocsin-checkpoint", "--array=4")
    cluster.until("it runs", lambda: running_on(cluster, f"{number}_4"))
    cluster.run("scontrol", "update", "nodename=gpu-n2", "state=drain", "reason=fan, ask Ann", "comment=rack 7")
    chosen = slurm_settings(cluster, rest_url=cluster.rest or cluster.serve_rest())
    with closing(RestRunner(chosen, CLOCK, NoCommands())) as runner:
        slurm = Slurm(chosen, runner, CLOCK)
        one, other = slurm.snapshot(), client(cluster).snapshot()
        assert one.nodes == other.nodes
        assert one.nodes["gpu-n2"].reason == "fan, ask Ann"
        live = lambda seen: [job for job in seen.jobs if job.active]  # noqa: E731
        assert live(one) == live(other) != []
        with pytest.raises(NotServedError, match="state=drain"):
            slurm.drain("gpu-n1", "tocsin: x", "")
    made = SlurmExecutor(chosen, runner_of(chosen, CLOCK), CLOCK)
    with closing(made):
        assert made.execute(decision(ActionKind.CORDON, "gpu-n1")).ok, "this version reads alone; commands change"
        assert "DRAIN" in cluster.field("node", "gpu-n1", "State")
        assert not made.execute(decision(ActionKind.DRAIN, "gpu-n2")).ok, "Ann's drain is seen by this way too"
    cluster.run("scontrol", "update", "nodename=gpu-n2", "comment=")
    cluster.run("scancel", number)


def test_a_real_slurmrestd_refuses_another_user(cluster: Cluster) -> None:
    place = (cluster.rest or cluster.serve_rest()).removeprefix("unix:")
    cluster.folder.chmod(0o755)
    asked = f"""
import os
import httpx2
http = httpx2.Client(transport=httpx2.HTTPTransport(uds="{place}"))
os.setuid({pwd.getpwnam("nobody").pw_uid})
print(http.get("http://localhost/slurm/v0.0.38/ping").status_code)
"""
    done = subprocess.run([sys.executable, "-c", asked], capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout.strip() == "401", done.stderr


def test_faults_stand_in_the_comment_and_the_words_of_others_stay(cluster: Cluster) -> None:
    cluster.run("scontrol", "update", "nodename=gpu-n2", "comment=rack 7,  row B")
    shown = NodeComments(client(cluster))
    fault = ShownFaults(("0123456789abcdef",), "GPU 3 fell off the bus.")
    assert shown.show({"gpu-n2": fault}, {"gpu-n2": True}).written == 1
    made = executor(cluster)
    assert made.execute(decision(ActionKind.CORDON, "gpu-n2")).ok
    comment = client(cluster).snapshot().nodes["gpu-n2"].comment
    assert "[tocsin: GPU 3 fell off the bus. (card 0123456789abcdef)] tocsin/drain/" in comment
    assert shown.show({"gpu-n2": fault}, {"gpu-n2": True}).written == 0
    released = {one.node: one for one in release_all(client(cluster), forget=True)}
    assert released["gpu-n2"].taken == ("drain", "comment")
    node = client(cluster).snapshot().nodes["gpu-n2"]
    assert (node.comment, node.drained) == ("rack 7, row B", False)
    cluster.run("scontrol", "update", "nodename=gpu-n2", "comment=")


def test_host_lists_are_slurms(cluster: Cluster) -> None:
    for text in ("gpu-n[1-2],cloud-1", "a[1-3,07],b-[9-11]"):
        assert list(expand(text)) == cluster.run("scontrol", "show", "hostnames", text).split()


def test_what_slurm_refuses_is_classified(cluster: Cluster) -> None:
    slurm = client(cluster)
    with pytest.raises(SlurmProblem) as unknown:
        slurm.drain("gpu-n9", "tocsin: x", "")
    assert unknown.value.trouble is Trouble.UNKNOWN_NODE
    slurm.resume("gpu-n1", "")
    missing = slurm_settings(cluster, conf="/nonexistent/slurm.conf", ping_seconds=0.5)
    with pytest.raises(SlurmProblem) as lost:
        Slurm(missing, CommandRunner(missing), CLOCK).snapshot()
    assert lost.value.trouble in (Trouble.TIMED_OUT, Trouble.NO_CONFIG), "Slurm itself would try for a minute"
    absent = slurm_settings(cluster, command=["/nonexistent/ssh"])
    with pytest.raises(SlurmProblem, match=r"slurm\.command"):
        Slurm(absent, CommandRunner(absent), CLOCK).ping()


def test_commands_go_through_a_shell_where_the_prefix_is_one(cluster: Cluster) -> None:
    chosen = slurm_settings(cluster, command=["sh", "-c", 'eval "$*"', "sh"], remote_shell=True)
    slurm = Slurm(chosen, CommandRunner(chosen), CLOCK)
    slurm.mark_node("gpu-n1", "a; $(false) `false` \\ b")
    assert slurm.snapshot().nodes["gpu-n1"].comment == "a; $(false) `false` \\ b"
    slurm.mark_node("gpu-n1", "")
