"""Whatever happens between two calls, the Slurm executor does each thing once and touches nothing of others."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.slurm import comments
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import HOUR, ManualClock
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin_testing.builders import T0
from tocsin_testing.fake_slurm import FakeSlurm, Job

HOST = Subject(SubjectKind.HOST, "node-0", "node-0")
ACTIONS = (ActionKind.DRAIN, ActionKind.CORDON, ActionKind.MIGRATE, ActionKind.CHECKPOINT)
BASE = Decision(
    rule="hot",
    subject=HOST,
    action=ActionKind.DRAIN,
    mode=Mode.ACT,
    severity=Severity.CRITICAL,
    category=Category.THERMAL,
    at_ms=T0,
    expires_ms=T0 + HOUR,
    key="k",
    sentence="node-0 is hot.",
)


class SlurmMachine(RuleBasedStateMachine):
    """Four decisions about one node, a person, restarts, lost answers and a controller that comes and goes."""

    @initialize(policy=st.sampled_from(["wait", "requeue"]), proof=st.sampled_from(["time", "comment"]))
    def begin(self, policy: str, proof: str) -> None:
        jobs = {7: Job("node-0"), 8: Job("node-0", requeue=False), 9: Job("node-0", comment=""), 10: Job("node-1")}
        self.cluster = FakeSlurm(jobs=jobs)
        self.clock = ManualClock(T0)
        self.settings = SlurmSettings.model_validate(
            {"drain_jobs": policy, "checkpoint_proof": proof, "checkpoint_wait_seconds": 20, "snapshot_seconds": 0}
        )
        self.person = False
        self.lost = 0
        self.restart()

    @rule()
    def restart(self) -> None:
        self.executor = SlurmExecutor(self.settings, self.cluster, self.clock)

    @rule(action=st.sampled_from(ACTIONS))
    def execute(self, action: ActionKind) -> None:
        decision = replace(BASE, action=action, key=f"k|{action}")
        result = self.executor.execute(decision)
        assert result.detail
        assert result.ok or not result.pending

    @rule()
    def undo(self) -> None:
        undo = inverse_of(replace(BASE, key="k|drain"))
        assert undo is not None
        before = set(self.cluster.nodes["node-0"].flags)
        result = self.executor.execute(undo)
        if self.person and not self.cluster.down:
            assert not result.ok
            assert self.cluster.nodes["node-0"].flags == before

    @rule(seconds=st.integers(1, 40))
    def time_passes(self, seconds: int) -> None:
        self.clock.advance(seconds * 1000)
        self.cluster.ended()
        self.cluster.schedule()

    @rule()
    def a_person_drains(self) -> None:
        node = self.cluster.nodes["node-0"]
        node.flags.add("DRAIN")
        node.reason, node.by, self.person = "fan, ask Ann", "ann", True

    @rule()
    def a_person_resumes(self) -> None:
        node = self.cluster.nodes["node-0"]
        node.flags.discard("DRAIN")
        node.reason, node.by, self.person = "", "", False

    @rule(down=st.booleans())
    def the_controller(self, down: bool) -> None:
        self.cluster.down = down

    @rule()
    def an_answer_gets_lost(self) -> None:
        self.cluster.lost_answer = True
        self.lost += 1

    @rule()
    def the_job_checkpoints(self) -> None:
        self.cluster.jobs[7].comment = f"tocsin-checkpoint checkpointed={self.clock.now_ms() // 1000}"

    @invariant()
    def the_words_of_a_person_stay(self) -> None:
        if self.person:
            assert self.cluster.nodes["node-0"].reason == "fan, ask Ann"
            assert "DRAIN" in self.cluster.nodes["node-0"].flags

    @invariant()
    def only_jobs_that_opted_in_are_told_and_moved(self) -> None:
        jobs = self.cluster.jobs
        assert jobs[9].signals == []
        assert [jobs[n].state for n in (8, 9, 10)] == ["RUNNING"] * 3
        assert jobs[10].signals == []

    @invariant()
    def nothing_else_is_touched(self) -> None:
        assert all("node-0" in line for line in self.cluster.changes("nodename="))
        assert not any(node.flags for name, node in self.cluster.nodes.items() if name != "node-0")

    @invariant()
    def each_drain_has_its_reason(self) -> None:
        node = self.cluster.nodes["node-0"]
        if "DRAIN" in node.flags and not self.person:
            assert comments.is_own(node.reason)

    @invariant()
    def a_job_is_told_once_by_each_decision(self) -> None:
        told = [line for line in self.cluster.changes("scancel") if line.endswith(" 7")]
        assert len(told) <= len(ACTIONS) + self.lost


SlurmMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=25)
TestSlurmMachine = SlurmMachine.TestCase
