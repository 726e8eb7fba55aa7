"""The Slurm executor against a cluster that answers from memory."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from threading import Thread
from typing import Any

import pytest

from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.model.executor import ManagerUnavailable
from tocsin.actions.model.ranks import work_on
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.slurm import comments
from tocsin.actions.slurm.client import CommandResult, SlurmProblem, Trouble
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.domain.decision import Decision, Mode, Ruling, parameters_of
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.reading import Owner
from tocsin_testing.action_world import World
from tocsin_testing.builders import T0
from tocsin_testing.fake_slurm import FakeSlurm, Job, Node
from tocsin_testing.fake_slurmrestd import rest_runner

GPU = Subject(SubjectKind.GPU, "GPU-0-0", "node-0", "default")
HOST = Subject(SubjectKind.HOST, "node-0", "node-0")
POOL = Subject(SubjectKind.POOL, "default", pool="default")


def decision(action: ActionKind, subject: Subject = HOST, key: str = "k", **parameters: str) -> Decision:
    return Decision(
        rule="hot",
        subject=subject,
        action=action,
        mode=Mode.ACT,
        severity=Severity.CRITICAL,
        category=Category.THERMAL,
        at_ms=T0,
        expires_ms=T0 + HOUR,
        key=f"{key}|{action}",
        sentence="node-0 GPU 0 is too hot.",
        findings=("f1",),
        parameters=parameters_of(action, parameters),
    )


class Site:
    """A cluster, its executor and a clock."""

    def __init__(self, cluster: FakeSlurm | None = None, **settings: Any) -> None:
        self.cluster = cluster or FakeSlurm()
        self.clock = ManualClock(T0)
        self.settings = SlurmSettings.model_validate({"partitions": {"default": "gpu"}, **settings})
        self.restart()

    rest = False
    """Whether what slurmrestd serves is asked of it."""

    def restart(self) -> None:
        runner = rest_runner(self.cluster, self.settings, self.clock) if self.rest else self.cluster
        self.executor = SlurmExecutor(self.settings, runner, self.clock)

    def look(self) -> None:
        """As is done beside the loop every few seconds."""
        with suppress(ManagerUnavailable):
            self.executor.nodes()

    def check(self, wanted: Decision) -> tuple[Ruling, str]:
        self.look()
        verdict = self.executor.check(wanted, World().view())
        return verdict.ruling, verdict.reason


@pytest.fixture(params=[False, True], ids=["commands", "slurmrestd"], autouse=True)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each test by either way to the same cluster."""
    monkeypatch.setattr(Site, "rest", request.param)


def test_a_drain_says_why_and_is_done_when_no_work_is_left() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}))
    drain = decision(ActionKind.DRAIN)
    assert site.executor.execute(drain).pending
    node = site.cluster.nodes["node-0"]
    assert node.flags == {"DRAIN"}
    assert node.reason == f"tocsin: node-0 GPU 0 is too hot. [{drain.id}]"
    waits = site.executor.execute(drain)
    assert waits.pending
    assert "waits for 7" in waits.detail
    assert site.cluster.jobs[7].signals == [], "a drain that waits tells nobody"
    site.cluster.jobs.clear()
    site.clock.advance(40 * SECOND)
    done = site.executor.execute(drain)
    assert (done.ok, done.pending, done.effect["drain_seconds"]) == (True, False, 40.0)
    assert len(site.cluster.changes("state=drain")) == 1
    assert site.executor.verify(drain, World().view()) is True


def test_a_drain_that_moves_work_checkpoints_first_and_requeues_after() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), drain_jobs="requeue", checkpoint_wait_seconds=30)
    drain = decision(ActionKind.DRAIN)
    job = site.cluster.jobs[7]
    for _ in range(3):
        assert site.executor.execute(drain).pending
    assert (job.signals, job.state) == (["USR1"], "RUNNING"), "told once, and not ended before its time"
    site.clock.advance(31 * SECOND)
    assert site.executor.execute(drain).pending
    assert job.state == "COMPLETING"
    assert site.executor.execute(drain).pending, "it still ends"
    site.cluster.ended()
    assert site.executor.execute(drain).pending, "its two minutes of waiting are lifted"
    site.cluster.schedule()
    done = site.executor.execute(drain)
    assert (done.pending, job.state, job.node) == (False, "RUNNING", "node-1")
    assert (done.effect["jobs_requeued"], done.effect["checkpoint_seconds"]) == (1.0, 31.0)
    assert (len(site.cluster.changes("scancel")), len(site.cluster.changes("requeue 7"))) == (1, 1)
    assert job.excluded == "", "the drain keeps it away, and ends"


def test_it_goes_on_after_a_restart_without_doing_anything_twice() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), drain_jobs="requeue", checkpoint_wait_seconds=1)
    drain = decision(ActionKind.DRAIN)
    for _ in range(12):
        site.restart()
        result = site.executor.execute(drain)
        site.cluster.ended()
        site.cluster.schedule()
        site.clock.advance(SECOND)
    assert not result.pending
    for word in ("state=drain", "scancel", "scontrol requeue"):
        assert len(site.cluster.changes(word)) == 1, word


def test_the_world_shows_what_a_lost_answer_did() -> None:
    site = Site()
    site.cluster.lost_answer = True
    cordon = decision(ActionKind.CORDON)
    assert site.executor.execute(cordon).pending
    assert site.executor.execute(cordon).ok
    assert len(site.cluster.changes("state=drain")) == 1


def test_the_drain_of_somebody_else_is_left_alone() -> None:
    site = Site(FakeSlurm({"node-0": Node("idle", {"DRAIN"}, "fan, ann", "ann")}))
    for action in (ActionKind.DRAIN, ActionKind.CORDON):
        ruling, why = site.check(decision(action))
        assert ruling is Ruling.HOLD
        assert "ann: 'fan, ann'" in why
        result = site.executor.execute(decision(action))
        assert (result.ok, result.certain, result.lasting) == (False, True, False)
    assert not site.executor.execute(decision(ActionKind.UNCORDON)).ok
    assert site.cluster.log == []
    assert site.cluster.nodes["node-0"].reason == "fan, ann"


def test_a_reason_of_slurms_own_is_nobodys_decision() -> None:
    site = Site(FakeSlurm({"node-0": Node("down", {"NOT_RESPONDING"}, "Not responding", "slurm")}))
    assert site.check(decision(ActionKind.DRAIN))[0] is Ruling.ALLOW
    site.executor.execute(decision(ActionKind.DRAIN))
    assert site.cluster.nodes["node-0"].reason.startswith("tocsin: ")


def test_a_node_that_a_person_gave_back_is_not_drained_again_for_the_same() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}))
    drain = decision(ActionKind.DRAIN)
    site.executor.execute(drain)
    site.cluster.run(["scontrol", "update", "nodename=node-0", "state=resume"], 1)
    site.restart()
    result = site.executor.execute(drain)
    assert (result.ok, result.lasting) == (False, False)
    assert "someone resumed it" in result.detail
    assert len(site.cluster.changes("state=drain")) == 1


def test_only_what_tocsin_drained_is_given_back() -> None:
    site = Site()
    drain = decision(ActionKind.CORDON)
    site.executor.execute(drain)
    site.clock.advance(60 * SECOND)
    undo = inverse_of(drain)
    assert undo is not None
    result = site.executor.execute(undo)
    node = site.cluster.nodes["node-0"]
    ended = f"tocsin/drained/{drain.id}/{T0} tocsin/resumed/{undo.id}/{T0 + 60 * SECOND}"
    assert (result.ok, node.flags, node.reason, node.comment) == (True, set(), "", ended)
    assert result.effect == {"out_of_service_drain_seconds": 60.0}
    assert site.executor.verify(undo, World().view()) is True
    again = site.executor.execute(undo)
    assert (again.ok, again.lasting) == (True, False)


def test_giving_back_wants_proof_of_health() -> None:
    site = Site()
    site.executor.execute(decision(ActionKind.CORDON))
    site.look()
    undo = decision(ActionKind.UNCORDON)
    world = World()
    assert site.executor.check(undo, world.view()).ruling is Ruling.ALLOW
    world.sick.add("GPU-0-1")
    assert "GPU-0-1 is not healthy" in site.executor.check(undo, world.view()).reason
    world.sick.clear()
    world.stale.add("GPU-0-0")
    assert "no fresh reading" in site.executor.check(undo, world.view()).reason
    world.gpus = {}
    assert "no GPU of node-0 is known" in site.executor.check(undo, world.view()).reason


@pytest.mark.parametrize(
    ("job", "why"),
    [
        (Job("node-0", requeue=False), "may not be requeued"),
        (Job("node-0", batch=False), "no batch job"),
        (Job("node-0", comment="mine"), "does not say tocsin-checkpoint"),
        (Job("node-0", required="node-0"), "asks for node-0 by name"),
    ],
)
def test_jobs_that_cannot_be_moved_run_on_and_are_named(job: Job, why: str) -> None:
    site = Site(FakeSlurm(jobs={7: job}), checkpoint_wait_seconds=0)
    result = site.executor.execute(decision(ActionKind.MIGRATE))
    assert (result.ok, result.pending, result.effect["jobs_left"]) == (True, False, 1.0)
    assert "job 7 is left running: " in result.detail
    assert why in result.detail
    assert (job.signals, job.state) == ([], "RUNNING")


def test_a_migration_keeps_the_job_off_the_node_and_leaves_the_node_as_it_is() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), checkpoint_wait_seconds=0)
    migrate = decision(ActionKind.MIGRATE)
    for _ in range(5):
        result = site.executor.execute(migrate)
        site.cluster.ended()
        site.cluster.schedule()
        site.clock.advance(1)
    job = site.cluster.jobs[7]
    assert (result.pending, job.node, job.excluded) == (False, "node-1", "node-0")
    assert site.cluster.nodes["node-0"].flags == set()
    assert site.executor.verify(migrate, World().view()) is True


def test_only_the_jobs_on_the_gpu_are_moved() -> None:
    jobs = {7: Job("node-0", "0"), 8: Job("node-0", "1"), 9: Job("node-1", "0")}
    site = Site(FakeSlurm(jobs=jobs))
    checkpoint = decision(ActionKind.CHECKPOINT, GPU)
    assert not site.executor.execute(checkpoint).ok, "nobody has said which GPU it is"
    site.check(checkpoint)
    site.executor.execute(checkpoint)
    assert [job.signals for job in jobs.values()] == [["USR1"], [], []]
    site.restart()
    site.clock.advance(61 * SECOND)
    assert site.executor.execute(checkpoint).effect["jobs_checkpointed"] == 1.0, "its mark says which job it was"


def test_one_task_of_an_array_is_moved_alone() -> None:
    jobs = {2: Job("node-0", "0", array=2, task=1), 3: Job("node-1", "0", array=2, task=0)}
    site = Site(FakeSlurm(jobs=jobs), checkpoint_wait_seconds=0)
    for _ in range(3):
        site.executor.execute(decision(ActionKind.MIGRATE))
        site.clock.advance(1)
    assert [line.split()[-1] for line in site.cluster.changes("requeue")][-1] == "2_1"
    assert (jobs[2].state, jobs[3].state, jobs[3].signals) == ("COMPLETING", "RUNNING", [])


@pytest.mark.parametrize("proof", ["comment", "file"])
def test_a_job_is_requeued_when_it_has_shown_its_checkpoint(proof: str) -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), checkpoint_proof=proof, checkpoint_file="%w/%j.done")
    migrate, job = decision(ActionKind.MIGRATE), site.cluster.jobs[7]
    job.comment += f" checkpointed={T0 // 1000 - 60}"
    site.cluster.files["/work/7.done"] = T0 / 1000 - 60
    site.executor.execute(migrate)
    site.clock.advance(5 * SECOND)
    assert site.executor.execute(migrate).pending
    assert job.state == "RUNNING", "an older checkpoint is no proof"
    if proof == "comment":
        job.comment = f"tocsin-checkpoint checkpointed={T0 // 1000 + 4}"
    else:
        site.cluster.files["/work/7.done"] = T0 / 1000 + 4
    site.executor.execute(migrate)
    assert job.state == "COMPLETING"


def test_without_proof_a_job_is_left_or_requeued_as_the_settings_say() -> None:
    for choice, state in (("leave", "RUNNING"), ("requeue", "COMPLETING")):
        site = Site(FakeSlurm(jobs={7: Job("node-0")}), checkpoint_proof="comment", without_proof=choice)
        migrate = decision(ActionKind.MIGRATE)
        site.executor.execute(migrate)
        site.clock.advance(61 * SECOND)
        result = site.executor.execute(migrate)
        assert site.cluster.jobs[7].state == state
        assert ("gave no proof" in result.detail) is (choice == "leave")


def test_within_a_notice_work_is_moved_before_the_node_goes() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), checkpoint_proof="comment", checkpoint_wait_seconds=600)
    migrate = decision(ActionKind.MIGRATE, deadline_ms=str(T0 + 120 * SECOND))
    site.executor.execute(migrate)
    site.clock.advance(100 * SECOND)
    assert site.executor.execute(migrate).pending
    assert site.cluster.jobs[7].state == "RUNNING"
    site.clock.advance(11 * SECOND)
    site.executor.execute(migrate)
    assert site.cluster.jobs[7].state == "COMPLETING", "10 s before the end it goes, with proof or without"


def test_jobs_may_be_held_until_the_node_is_back() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), drain_jobs="requeue", checkpoint_wait_seconds=0, requeue_held=True)
    drain = decision(ActionKind.DRAIN)
    for _ in range(4):
        result = site.executor.execute(drain)
        site.cluster.ended()
        site.clock.advance(1)
    assert not result.pending
    assert (site.cluster.jobs[7].state, site.cluster.jobs[7].why) == ("PENDING", "JobHeldAdmin")
    undo = inverse_of(drain)
    assert undo is not None
    assert "released 7" in site.executor.execute(undo).detail
    assert site.cluster.jobs[7].why == "None"


def cloud(**states: tuple[str, set[str]]) -> FakeSlurm:
    return FakeSlurm({name: Node(state, {"CLOUD", *flags}) for name, (state, flags) in states.items()})


def test_scaling_out_powers_up_what_sleeps_once_and_waits_for_it() -> None:
    asleep = ("idle", {"POWERED_DOWN"})
    site = Site(cloud(c1=asleep, c2=asleep, c3=asleep))
    grow = decision(ActionKind.SCALE_OUT, POOL, gpus="3")
    for _ in range(3):
        site.restart()
        assert site.executor.execute(grow).pending
    assert len(site.cluster.changes("state=power_up")) == 2, "two nodes of two GPUs hold three"
    site.clock.advance(90 * SECOND)
    for name in ("c1", "c2"):
        site.cluster.nodes[name].flags = {"CLOUD"}
    done = site.executor.execute(grow)
    assert (done.pending, done.effect["nodes_up"], done.effect["scale_out_seconds"]) == (False, 2.0, 90.0)
    assert site.executor.verify(grow, World().view()) is True


def test_a_node_that_does_not_come_up_is_said() -> None:
    site = Site(cloud(c1=("idle", {"POWERED_DOWN"})))
    grow = decision(ActionKind.SCALE_OUT, POOL)
    site.executor.execute(grow)
    site.clock.advance(60 * SECOND)
    site.cluster.nodes["c1"].state, site.cluster.nodes["c1"].flags = "down", {"CLOUD", "POWERED_DOWN"}
    result = site.executor.execute(grow)
    assert (result.ok, result.pending) == (False, False)
    assert "lost: c1" in result.detail


def test_where_nothing_sleeps_scaling_out_is_held() -> None:
    site = Site(cloud(c1=("idle", set())))
    grow = decision(ActionKind.SCALE_OUT, POOL)
    assert site.check(grow) == (Ruling.HOLD, "partition gpu has no powered-down cloud node left")
    assert not site.executor.execute(grow).ok


def test_nodes_that_slurm_hides_while_they_sleep_are_named_in_the_settings() -> None:
    site = Site(cloud(c1=("idle", set())), cloud_nodes={"default": "c[1-3]"})
    site.cluster.nodes |= {}
    assert site.check(decision(ActionKind.SCALE_OUT, POOL))[0] is Ruling.ALLOW
    site.cluster.nodes["c2"] = Node("idle", {"CLOUD", "POWERED_DOWN"})
    site.executor.execute(decision(ActionKind.SCALE_OUT, POOL))
    assert site.cluster.changes("nodename=c2 state=power_up")


def test_scaling_in_powers_down_an_idle_node_and_no_other() -> None:
    site = Site(cloud(c1=("mixed", set()), c2=("idle", set()), c3=("idle", {"DRAIN"}), c4=("idle", set())))
    site.cluster.jobs[7] = Job("c1")
    shrink = decision(ActionKind.SCALE_IN, POOL)
    for _ in range(3):
        site.restart()
        assert site.executor.execute(shrink).ok
    assert [line.split()[2] for line in site.cluster.changes("power_down")] == ["nodename=c2"]
    assert site.executor.verify(shrink, World().view()) is True


def test_scaling_in_powers_down_the_node_that_is_named_and_no_other() -> None:
    site = Site(cloud(c1=("mixed", set()), c2=("idle", set()), c4=("idle", set())), hosts={"four": "c4"})
    site.cluster.jobs[7] = Job("c1")
    busy = decision(ActionKind.SCALE_IN, POOL, node="c1")
    assert site.check(busy) == (Ruling.HOLD, "c1 is no idle cloud node of the pool")
    assert not site.executor.execute(busy).ok
    shrink = decision(ActionKind.SCALE_IN, POOL, key="named", node="four")
    assert site.check(shrink)[0] is Ruling.ALLOW
    for _ in range(2):
        site.restart()
        assert site.executor.execute(shrink).ok
    assert [line.split()[2] for line in site.cluster.changes("power_down")] == ["nodename=c4"]


def test_a_pool_without_a_partition_is_not_its_own() -> None:
    site = Site()
    assert site.executor.serves(decision(ActionKind.SCALE_OUT, POOL))
    other = Subject(SubjectKind.POOL, "other", pool="other")
    assert not site.executor.serves(decision(ActionKind.SCALE_OUT, other))
    assert not site.executor.serves(decision(ActionKind.DRAIN, other))
    assert not Site(partitions={}).executor.supports(ActionKind.SCALE_OUT)


def test_a_reboot_is_off_by_default_and_done_when_the_node_has_booted() -> None:
    assert not Site().executor.supports(ActionKind.REBOOT_NODE)
    site = Site(allow_reboot=True)
    reboot = decision(ActionKind.REBOOT_NODE)
    assert site.executor.execute(reboot).pending
    assert site.executor.execute(reboot).pending
    assert site.cluster.changes("nextstate=RESUME")
    node = site.cluster.nodes["node-0"]
    node.flags, node.boot, node.reason = set(), T0 // 1000 + 30, ""
    site.clock.advance(45 * SECOND)
    done = site.executor.execute(reboot)
    assert (done.ok, done.pending, done.effect) == (True, False, {"reboot_seconds": 45.0})
    assert len(site.cluster.changes("scontrol reboot")) == 1
    assert site.executor.verify(reboot, World().view()) is True


def test_a_drained_node_stays_out_after_its_reboot_and_a_cancelled_one_is_said() -> None:
    site = Site(allow_reboot=True)
    site.executor.execute(decision(ActionKind.CORDON))
    reboot = decision(ActionKind.REBOOT_NODE)
    site.executor.execute(reboot)
    assert site.cluster.changes("nextstate=DOWN")
    site.cluster.nodes["node-0"].flags = {"DRAIN"}
    assert "cancelled" in site.executor.execute(reboot).detail


def test_a_key_that_ran_does_not_run_again_for_a_brain_that_has_forgotten_it() -> None:
    """As one whose journal was restored: what it did stands at the manager alone."""
    site = Site(allow_reboot=True)
    drain, reboot = decision(ActionKind.CORDON), decision(ActionKind.REBOOT_NODE)
    undo = inverse_of(drain)
    assert undo is not None
    node = site.cluster.nodes["node-0"]
    site.executor.execute(drain)
    site.clock.advance(SECOND)
    site.executor.execute(undo)
    site.executor.execute(reboot)
    node.flags, node.boot, node.reason = set(), T0 // 1000 + 30, ""
    later = decision(ActionKind.CORDON, key="later")
    site.clock.advance(60 * SECOND)
    site.restart()
    assert "has rebooted" in site.executor.execute(reboot).detail
    again = site.executor.execute(drain)
    assert (again.ok, again.lasting, node.flags) == (False, False, set())
    assert "was drained for this and given back" in again.detail
    assert site.executor.execute(later).ok
    again = site.executor.execute(undo)
    assert (again.ok, again.lasting, node.flags) == (False, False, {"DRAIN"})
    assert "was given back for this and drained again since" in again.detail
    assert len(site.cluster.changes("state=drain")) == 2
    assert len(site.cluster.changes("state=resume")) == 1
    assert len(site.cluster.changes("scontrol reboot")) == 1


def test_a_cancelled_reboot_is_not_asked_for_again_by_the_next_process() -> None:
    site = Site(allow_reboot=True)
    reboot = decision(ActionKind.REBOOT_NODE)
    site.executor.execute(reboot)
    site.cluster.nodes["node-0"].flags = set()
    site.restart()
    assert "cancelled" in site.executor.execute(reboot).detail
    assert len(site.cluster.changes("scontrol reboot")) == 1


def test_a_reboot_that_was_marked_and_never_asked_for_is_asked_for() -> None:
    """The process was killed between the two."""
    site = Site(allow_reboot=True)
    reboot = decision(ActionKind.REBOOT_NODE)
    site.cluster.nodes["node-0"].comment = f"tocsin/reboot/{reboot.id}/{T0}"
    assert site.executor.execute(reboot).pending
    assert len(site.cluster.changes("scontrol reboot")) == 1


def test_a_controller_that_is_down_holds_and_is_asked_once() -> None:
    site = Site()
    site.cluster.down = True
    ruling, why = site.check(decision(ActionKind.DRAIN))
    assert ruling is Ruling.HOLD
    assert "is DOWN" in why
    assert site.cluster.asked == 1, "ping alone: everything else takes nine seconds to fail"
    site.check(decision(ActionKind.DRAIN))
    assert site.cluster.asked == 1, "and the answer counts for a while"
    assert site.executor.execute(decision(ActionKind.DRAIN)).pending
    with pytest.raises(ManagerUnavailable, match="start slurmctld"):
        site.executor.nodes()
    assert site.executor.verify(decision(ActionKind.DRAIN), World().view()) is None


def test_the_pre_check_asks_slurm_nothing_and_goes_by_what_was_seen_last() -> None:
    site = Site()
    drain, view = decision(ActionKind.DRAIN), World().view()
    unseen = site.executor.check(drain, view)
    assert (unseen.ruling, "Slurm has not answered" in unseen.reason) == (Ruling.HOLD, True)
    assert site.cluster.asked == 0
    site.look()
    asked = site.cluster.asked
    site.cluster.down = True
    site.clock.advance(60 * SECOND)
    assert site.executor.check(drain, view).ruling is Ruling.ALLOW
    site.clock.advance(SECOND)
    assert site.executor.check(drain, view).ruling is Ruling.HOLD
    assert site.cluster.asked == asked
    site.look()
    assert "is DOWN" in site.executor.check(drain, view).reason
    site.cluster.down = False
    site.executor.execute(drain)
    assert site.executor.check(drain, view).ruling is Ruling.ALLOW, "what was changed since does not blind it"


def test_the_pre_check_waits_for_nobody_who_asks_slurm(monkeypatch: pytest.MonkeyPatch) -> None:
    site = Site()
    site.look()
    site.clock.advance(10 * SECOND)
    seen: list[Ruling] = []
    run = site.cluster.run

    def hangs(command: Any, seconds: float) -> Any:
        asking = Thread(target=lambda: seen.append(site.executor.check(decision(ActionKind.DRAIN), view).ruling))
        asking.daemon = True
        asking.start()
        asking.join(5.0)
        return run(command, seconds)

    view = World().view()
    monkeypatch.setattr(site.cluster, "run", hangs)
    site.look()
    assert seen
    assert set(seen) == {Ruling.ALLOW}


def test_a_refusal_is_final_and_says_what_to_do() -> None:
    site = Site()
    site.cluster.refuses = "slurm_update error: Invalid user id"
    result = site.executor.execute(decision(ActionKind.DRAIN))
    assert (result.ok, result.pending, result.certain) == (False, False, True)
    assert "AdminLevel=Operator" in result.detail


def test_versions_without_json_are_read_as_text() -> None:
    cluster = FakeSlurm(jobs={7: Job("node-0")})
    cluster.json = False
    site = Site(cluster)
    state = site.executor.nodes()["node-0"]
    assert (state.schedulable, state.ready, state.work) == (True, True, ("7",))
    site.executor.execute(decision(ActionKind.CORDON))
    site.clock.advance(6 * SECOND)
    state = site.executor.nodes()["node-0"]
    assert (state.schedulable, state.ours) == (False, True)


def test_nodes_as_the_manager_shows_them() -> None:
    cluster = FakeSlurm({"n1": Node("mixed"), "n2": Node("down", {"NOT_RESPONDING"}, "Not responding", "slurm")})
    cluster.jobs[3] = Job("n1")
    site = Site(cluster, hosts={"gpu-two": "n2"}, host_suffix=".example.org")
    states = site.executor.nodes()
    assert set(states) == {"n1.example.org", "gpu-two"}
    assert (states["n1.example.org"].work, states["gpu-two"].ready) == (("3",), False)
    # Named as the agents' owners of a Slurm job are, so that a rank that no reading shows is missed.
    assert states["n1.example.org"].held_by == {work_on("n1.example.org", [Owner(1, slurm_job="3.0")]).job}
    for host, node in (("n1.example.org", "n1"), ("gpu-two", "n2")):
        site.executor.execute(decision(ActionKind.CORDON, Subject(SubjectKind.HOST, host, host), key=host))
        assert "DRAIN" in cluster.nodes[node].flags


def test_an_unknown_node_is_held_and_refused() -> None:
    site = Site(FakeSlurm({}))
    assert site.check(decision(ActionKind.DRAIN)) == (Ruling.HOLD, "Slurm knows no node node-0")
    assert not site.executor.execute(decision(ActionKind.DRAIN)).ok


def test_a_dry_run_looks_and_changes_nothing() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), dry_run=True, drain_jobs="requeue")
    result = site.executor.execute(decision(ActionKind.DRAIN))
    assert (result.ok, result.lasting, result.pending) == (True, False, False)
    assert "dry run, would have run: scontrol update nodename=node-0 state=drain" in result.detail
    assert "scancel --batch --signal=USR1 7" in result.detail
    assert site.cluster.log == []
    assert site.cluster.asked > 0


def test_simulated_decisions_never_reach_the_cluster() -> None:
    site = Site()
    simulated = replace(decision(ActionKind.DRAIN), simulated=True)
    assert site.executor.check(simulated, World().view()).ruling is Ruling.DENY
    assert site.cluster.asked == 0


def test_the_words_of_others_in_comments_stay() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0", admin="billed to Ann")}))
    site.cluster.nodes["node-0"].comment = "rack 7"
    site.executor.execute(decision(ActionKind.CORDON))
    site.executor.execute(decision(ActionKind.CHECKPOINT))
    assert site.cluster.nodes["node-0"].comment.startswith("rack 7 tocsin/drain/")
    assert site.cluster.jobs[7].admin.startswith("billed to Ann tocsin/checkpoint/")
    assert comments.find(site.cluster.jobs[7].admin, "checkpoint") is not None


def test_two_decisions_about_one_job_tell_it_at_most_once_each() -> None:
    site = Site(FakeSlurm(jobs={7: Job("node-0")}), drain_jobs="requeue", checkpoint_proof="comment")
    drain, checkpoint = decision(ActionKind.DRAIN), decision(ActionKind.CHECKPOINT)
    site.executor.execute(drain)
    site.clock.advance(10 * SECOND)
    site.executor.execute(checkpoint)
    assert len(site.cluster.jobs[7].signals) == 1, "a request that is under way serves both"
    for _ in range(20):
        site.clock.advance(30 * SECOND)
        site.executor.execute(drain)
        site.executor.execute(checkpoint)
    assert len(site.cluster.jobs[7].signals) == 2


class Hanging(FakeSlurm):
    """A cluster where one file system never answers."""

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        if command[0] == "stat" and command[-1].startswith("/stale"):
            raise SlurmProblem(Trouble.TIMED_OUT, command, "no end within 10 s")
        return super().run(command, seconds)


def test_a_folder_that_hangs_holds_up_no_other_job() -> None:
    jobs = {1: Job("node-0", folder="/stale"), 2: Job("node-0", gpus="1")}
    how = {"checkpoint_proof": "file", "checkpoint_wait_seconds": 60, "without_proof": "requeue"}
    site = Site(Hanging(jobs=jobs), drain_jobs="requeue", **how)
    for _ in range(5):
        site.executor.execute(decision(ActionKind.DRAIN))
        site.clock.advance(60 * SECOND)
    assert site.cluster.jobs[2].signals == ["USR1"]
    assert site.cluster.changes("scontrol requeue 2")
