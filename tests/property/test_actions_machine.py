"""No sequence of faults, restarts, kills, failures and steps of the clock makes the loop break a limit.

The machine keeps its own account of what is out of service, and audits each execution as it happens.
"""

from __future__ import annotations

import contextlib
import math
from typing import Any

from hypothesis import example, given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tocsin.actions.loop.notifications import OVER_WHILE_WITHHELD
from tocsin.actions.model.catalogue import ACTIONS, Scope, is_disruptive, is_recovery
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.notifications.channel import Delivery
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import Decision, DecisionState, Mode
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import ActionKind, Category, Subject, SubjectKind
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin_testing.action_world import FakeExecutor, World, fleet, settings
from tocsin_testing.journal_double import KilledError

HOSTS, PER_HOST = 4, 2
UUIDS = [f"GPU-{h}-{i}" for h in range(HOSTS) for i in range(PER_HOST)]
KINDS = [
    ActionKind.CORDON,
    ActionKind.DRAIN,
    ActionKind.RESET_GPU,
    ActionKind.REBOOT_NODE,
    ActionKind.MIGRATE,
    ActionKind.THROTTLE,
    ActionKind.NOTIFY,
]
BACK, AHEAD = 2 * HOUR + 7, 2 * HOUR + 11
"""Steps of the wall clock: odd, so that no instant meets the end of a rest that was set before, to the millisecond."""
uuids = st.sampled_from(UUIDS)
KILLED = ExecutionResult(False, "killed", certain=False)


class AuditingExecutor(FakeExecutor):
    """Lets the machine look at each execution before it is done."""

    def __init__(self, machine: ActionMachine) -> None:
        super().__init__()
        self._machine = machine

    def execute(self, decision: Decision) -> ExecutionResult:
        try:
            self._audit(decision)
        except AssertionError as error:
            # The loop survives whatever an executor raises: the machine looks for it itself.
            self._machine.wrong.append(str(error))
        result = KILLED if self.raises is not None else self.result
        self._machine.account(decision, result)
        return super().execute(decision)

    def _audit(self, decision: Decision) -> None:
        if decision.key in self._machine.going or (self.resumable and decision.key in self._machine.keys):
            self._machine.audit_again(decision)
        else:
            self._machine.audit(decision)


class ActionMachine(RuleBasedStateMachine):
    """The loop under everything that may happen to it."""

    @initialize(
        mode=st.sampled_from([Mode.ACT, Mode.ACT, Mode.PROPOSE, Mode.OBSERVE]),
        concurrent=st.integers(1, 4),
        ratio=st.sampled_from([0.25, 0.5, 1.0]),
        host=st.integers(1, 2),
        rack=st.integers(1, 3),
        left=st.sampled_from([0.0, 0.5, 0.75]),
        breaker=st.sampled_from([2, 3, 1000]),
    )
    def begin(self, mode: Mode, concurrent: int, ratio: float, host: int, rack: int, left: float, breaker: int) -> None:
        limits: dict[str, Any] = {
            "max_concurrent": concurrent,
            "max_concurrent_ratio": ratio,
            "max_per_host": host,
            "max_per_rack": rack,
            "min_available_ratio": left,
        }
        self.world = World(settings(mode=mode, limits=limits, breaker_root_causes=breaker), fleet(HOSTS, PER_HOST))
        self.limits = self.world.policy.settings.limits
        self.world.executor = AuditingExecutor(self)
        self.world.restart()
        self.effects: dict[str, Decision] = {}
        self.approved: set[str] = set()
        self.keys: set[str] = set()
        self.going: set[str] = set()
        self.announced: set[str] = set()
        self.wrong: list[str] = []
        self.planned: dict[str, str] = {}
        self.paused = False
        self.tripped = False

    # What happens to the fleet

    @rule(uuid=uuids, kind=st.sampled_from(KINDS), category=st.sampled_from([Category.THERMAL, Category.HARDWARE]))
    def fault(self, uuid: str, kind: ActionKind, category: Category) -> None:
        self.world.break_gpu(uuid, rule=f"{kind}-{category}", action=kind, category=category)

    @rule(where=st.lists(uuids, min_size=2, max_size=5), kind=st.sampled_from(KINDS))
    def outbreak(self, where: list[str], kind: ActionKind) -> None:
        for uuid in where:
            self.fault(uuid, kind, Category.THERMAL)
        self.several_steps()

    @rule(chance=st.randoms(use_true_random=False))
    def heal(self, chance: Any) -> None:
        if self.world.faults:
            del self.world.faults[chance.choice(sorted(self.world.faults))]

    @rule()
    def heal_all(self) -> None:
        self.world.faults.clear()
        self.several_steps()

    @rule(uuid=uuids, which=st.sampled_from(["stale", "sick", "elsewhere"]))
    def toggle(self, uuid: str, which: str) -> None:
        getattr(self.world, which).symmetric_difference_update({uuid})

    # What happens to the loop

    @rule(advance=st.sampled_from([0, 15_000, 30_000, 5 * MINUTE]))
    def step(self, advance: int) -> None:
        self.world.step(advance=advance)
        self._look()

    @rule()
    def several_steps(self) -> None:
        for _ in range(4):
            self.step(15_000)

    @rule(by=st.sampled_from([-BACK, -MINUTE - 17, MINUTE + 13, AHEAD]))
    def clock_steps(self, by: int) -> None:
        self.world.clock.set(self.world.clock.now_ms() + by)

    @rule()
    def restart(self) -> None:
        """A restart shows the same decisions, but what went on where nobody can go on with it."""
        before = self._shown()
        self._start_anew()
        after = self._shown()
        assert before.keys() == after.keys()
        assert all(after[key] == shown or shown[0] is DecisionState.EXECUTING for key, shown in before.items())
        self._look()

    def _start_anew(self) -> None:
        self.world.restart()
        if not self.world.executor.resumable:
            self.going.clear()

    def _shown(self) -> dict[str, Any]:
        return {s.decision.key: (s.state, s.outcome, s.approved_by) for s in self.world.loop.statuses()}

    @rule(entries=st.integers(0, 6))
    def killed_at_an_entry(self, entries: int) -> None:
        self.world.journal.fail_after = len(self.world.journal.log) + entries
        self._until_killed()

    @rule()
    def killed_while_executing(self) -> None:
        self.world.executor.raises = KilledError()
        self._until_killed()

    def _until_killed(self) -> None:
        with contextlib.suppress(KilledError):
            self.world.step()
        self.world.journal.fail_after = None
        self.world.executor.raises = None
        self._start_anew()
        self._look()

    @rule(ok=st.booleans(), certain=st.booleans(), seen=st.sampled_from([True, False, None]))
    def executor_changes(self, ok: bool, certain: bool, seen: bool | None) -> None:
        self.world.executor.result = ExecutionResult(ok, "as told", certain=certain or ok)
        self.world.executor.seen = seen

    @rule(resumable=st.booleans())
    def executor_takes_long(self, resumable: bool) -> None:
        self.world.executor.result = ExecutionResult(True, "goes on", pending=True)
        self.world.executor.resumable = resumable

    @rule(ok=st.booleans())
    def receiver_changes(self, ok: bool) -> None:
        self.world.notifier.delivery = Delivery(ok, "as told", 1)

    # What people do

    @rule()
    def pause_or_resume(self) -> None:
        if self.paused:
            self.world.loop.operator.resume("ann")
        else:
            self.world.loop.operator.pause("ann")
        self.paused = not self.paused

    @rule()
    def approve_all(self) -> None:
        for status in self.world.loop.statuses():
            try:
                self.world.loop.operator.approve(status.decision.id, "ann")
            except TocsinError:
                continue
            self.approved.add(status.decision.id)

    @rule(chance=st.randoms(use_true_random=False))
    def reject_one(self, chance: Any) -> None:
        statuses = self.world.loop.statuses()
        if statuses:
            with contextlib.suppress(TocsinError):
                self.world.loop.operator.reject(chance.choice(statuses).decision.id, "ann")

    @rule(uuid=uuids, whole=st.booleans())
    def release(self, uuid: str, whole: bool) -> None:
        """A person gives a GPU, or its host, back to service: what was done there and is over counts no more."""
        gpu = self.world.gpus[uuid]
        kind, name = (SubjectKind.HOST, gpu.host) if whole else (SubjectKind.GPU, uuid)
        before = set(self.world.loop.controls().effects)
        self.world.loop.operator.release(Subject(kind, name, gpu.host, gpu.pool), "ann")
        for key in before - set(self.world.loop.controls().effects):
            gone = self.effects.pop(key, None)
            assert gone is None or gone.subject.host == gpu.host, "a release reaches its own host alone"

    @rule(uuid=uuids)
    def maintenance_begins_or_ends(self, uuid: str) -> None:
        """A person plans maintenance of a host for now, or ends it."""
        host, calls = self.world.gpus[uuid].host, self.world.loop.silences
        planned = self.planned.pop(host, None)
        if planned is None:
            self.planned[host] = calls.plan(Matcher(MatcherKind.HOST, host), "ann", None, 7 * DAY).id
        else:
            calls.end(SilenceKind.MAINTENANCE, [planned], "ann")

    @rule()
    def lease_is_lost_or_won(self) -> None:
        self.world.active = not self.world.active

    @rule()
    def reset_breaker(self) -> None:
        if self.tripped:
            self.world.loop.operator.reset_breaker("ann")
            self.tripped = False

    # The account and the audit

    def _look(self) -> None:
        """What the machine knows of the journal without the loop's help."""
        kinds = [e.kind for e in self.world.journal.of(EntryKind.BREAKER_TRIPPED, EntryKind.BREAKER_RESET)]
        tripped = bool(kinds) and kinds[-1] == EntryKind.BREAKER_TRIPPED
        assert tripped or not self.tripped, "only a person closes the breaker"
        self.tripped = tripped
        self.announced |= {
            str(e.payload["key"])
            for e in self.world.journal.of(EntryKind.DECISION)
            if e.payload["action"] == ActionKind.NOTIFY
        }

    def _drop_ended(self) -> None:
        """What does not last is back in service once its outcome is on record."""
        for entry in self.world.journal.of(EntryKind.OUTCOME):
            effect = self.effects.get(str(entry.payload["key"]))
            if effect is not None and not ACTIONS[effect.action].lasting:
                del self.effects[effect.key]

    def _reach(self, decision: Decision) -> set[str]:
        scope = ACTIONS[decision.action].scope
        if scope is Scope.HOST:
            return {uuid for uuid, gpu in self.world.gpus.items() if gpu.host == decision.subject.host}
        return {decision.subject.name} if scope is Scope.SUBJECT else set()

    def account(self, decision: Decision, result: ExecutionResult) -> None:
        """What is out of service from now on."""
        self.keys.add(decision.key)
        (self.going.add if result.pending else self.going.discard)(decision.key)
        if is_recovery(decision.action) and result.ok and not result.pending:
            for key, effect in list(self.effects.items()):
                if effect.subject.host == decision.subject.host and ACTIONS[effect.action].inverse is decision.action:
                    del self.effects[key]
        elif is_disruptive(decision.action) and (result.ok or not result.certain):
            self.effects[decision.key] = decision
        elif is_disruptive(decision.action):
            self.effects.pop(decision.key, None)

    def audit_again(self, decision: Decision) -> None:
        """May this go on now."""
        assert not self.paused, "goes on while paused"
        assert self.world.active, "goes on without the lease"
        assert is_recovery(decision.action) or self._breaker_closed(), "goes on while tripped"
        ended = {e.payload["key"] for e in self.world.journal.of(EntryKind.OUTCOME, EntryKind.VERIFICATION)}
        assert decision.key not in ended, "goes on after its end"

    def audit(self, decision: Decision) -> None:
        """May this run now."""
        assert decision.key not in self.keys, "twice on one key"
        assert not self.paused, "acts while paused"
        assert self.world.active, "acts without the lease"
        assert decision.subject.host not in self.planned, "acts on what is in maintenance"
        mode = self.world.policy.settings.mode
        assert mode is not Mode.OBSERVE, "acts in observe"
        assert mode is Mode.ACT or decision.id in self.approved, "acts without approval"
        started = [e.payload["key"] for e in self.world.journal.of(EntryKind.EXECUTION_STARTED)]
        assert started.count(decision.key) == 1, "the start is recorded once and before"
        assert is_recovery(decision.action) or self._breaker_closed(), "acts while tripped"
        if is_disruptive(decision.action):
            self._audit_limits(decision)

    def _breaker_closed(self) -> bool:
        kinds = [e.kind for e in self.world.journal.of(EntryKind.BREAKER_TRIPPED, EntryKind.BREAKER_RESET)]
        return not kinds or kinds[-1] == EntryKind.BREAKER_RESET

    def _audit_limits(self, decision: Decision) -> None:
        self._drop_ended()
        gpus, mine = self.world.gpus, self._reach(decision)
        covered = set().union(*(self._reach(e) for e in self.effects.values()))
        # What others have taken out of a host that goes out as a whole is part of that host.
        subjects = {e.subject.name for e in self.effects.values()} | (self.world.elsewhere - covered - mine)
        subjects.add(decision.subject.name)
        assert len(subjects) <= self.limits.max_concurrent, "absolute limit"
        out = covered | self.world.elsewhere
        # What others have taken out already is not taken out once more.
        assert mine <= out or len(out | mine) <= math.floor(self.limits.max_concurrent_ratio * len(gpus)), "share"
        here = [name for name in subjects if gpus[name].host == decision.subject.host]
        assert len(here) <= self.limits.max_per_host, "host"
        rack = gpus[decision.subject.name].rack
        assert sum(gpus[name].rack == rack for name in subjects) <= self.limits.max_per_rack, "rack"
        usable = set(gpus) - out - self.world.sick - self.world.stale
        left = usable - mine
        assert left == usable or len(left) >= self.limits.min_available_ratio * len(gpus), "capacity"

    @invariant()
    def at_most_one_outcome_each(self) -> None:
        if not hasattr(self, "world"):
            return
        keys = [e.payload["key"] for e in self.world.journal.of(EntryKind.OUTCOME)]
        assert len(keys) == len(set(keys))

    @invariant()
    def every_audit_holds(self) -> None:
        assert not getattr(self, "wrong", [])

    def teardown(self) -> None:
        """Whatever happened, every notification goes out once the receiver answers and nothing is silenced, in any mode
        and while paused.

        One that a kill cut off from its entry goes out again, under the same id.
        """
        if not hasattr(self, "world"):
            return
        self.world.notifier.delivery = Delivery(True, "told", 1)
        self.world.active = True
        while self.planned:
            _, planned = self.planned.popitem()
            self.world.loop.silences.end(SilenceKind.MAINTENANCE, [planned], "ann")
        self.world.step(advance=MINUTE)
        self._look()
        self.world.step(advance=MINUTE)
        sent = self.world.journal.of(EntryKind.NOTIFICATION)
        lost = {str(e.payload["key"]) for e in sent if not e.payload["ok"] or _over_before(e)}
        told = {decision.key for decision in self.world.notifier.told}
        assert self.announced - lost <= told


def _over_before(entry: Entry) -> bool:
    """Whether a notification was over before the maintenance that held it back."""
    outcome = entry.payload.get("outcome")
    return isinstance(outcome, dict) and outcome["detail"] == OVER_WHILE_WITHHELD


ActionMachine.TestCase.settings = hypothesis_settings(max_examples=60, stateful_step_count=30)
TestActionMachine = ActionMachine.TestCase

turns = st.one_of(
    st.tuples(st.just("outbreak"), st.lists(uuids, min_size=2, max_size=6), st.sampled_from(KINDS[:4])),
    st.tuples(st.just("step"), st.sampled_from([15_000, 30_000])),
    st.tuples(st.just("toggle"), uuids, st.sampled_from(["stale", "sick", "elsewhere"])),
    st.tuples(st.just("heal_all")),
    st.tuples(st.just("executor_changes"), st.just(True), st.just(True), st.sampled_from([True, False, None])),
    st.tuples(st.just("clock_steps"), st.sampled_from([-BACK, AHEAD])),
    st.tuples(st.just("executor_takes_long"), st.booleans()),
    st.tuples(st.just("release"), uuids, st.booleans()),
    st.tuples(st.just("maintenance_begins_or_ends"), uuids),
    st.tuples(st.sampled_from(["killed_while_executing", "restart", "lease_is_lost_or_won", "pause_or_resume"])),
)


UNDONE_IN_VAIN: list[tuple[Any, ...]] = [
    ("outbreak", ["GPU-0-0", "GPU-1-0"], ActionKind.DRAIN),
    ("outbreak", ["GPU-0-0", "GPU-0-0"], ActionKind.CORDON),
    ("toggle", "GPU-0-0", "stale"),
    ("outbreak", ["GPU-0-0", "GPU-0-0"], ActionKind.CORDON),
    ("executor_changes", True, True, False),
    ("clock_steps", 2 * HOUR),
    ("heal_all",),
    ("clock_steps", 2 * HOUR),
    ("step", 30_000),
    ("outbreak", ["GPU-1-0", "GPU-0-0"], ActionKind.CORDON),
]
"""A drain is undone, nobody sees that it worked, and the node is then cordoned anew: it may have been back."""


OUT_ALREADY: list[tuple[Any, ...]] = [
    ("outbreak", ["GPU-0-0", "GPU-0-0"], ActionKind.CORDON),
    ("outbreak", ["GPU-0-0", "GPU-2-0"], ActionKind.RESET_GPU),
    *[("step", 15_000)] * 5,
    ("toggle", "GPU-2-0", "elsewhere"),
]
"""A node is out and the share with it; others take a GPU out that waits for its reset."""


OUT_BY_OTHERS: list[tuple[Any, ...]] = [
    ("outbreak", ["GPU-0-0", "GPU-0-0"], ActionKind.CORDON),
    *[("step", 15_000)] * 2,
    ("executor_changes", True, True, False),
    ("toggle", "GPU-0-1", "elsewhere"),
    ("heal_all",),
    ("outbreak", ["GPU-0-0", "GPU-0-0"], ActionKind.CORDON),
    ("step", 15_000),
]
"""A cordon is undone, nobody sees that it worked, and others take out another GPU of the node that is cordoned anew."""


GIVEN_BACK_AND_TAKEN: list[tuple[Any, ...]] = [
    ("outbreak", ["GPU-0-1", "GPU-0-1"], ActionKind.CORDON),
    ("maintenance_begins_or_ends", "GPU-0-0"),
    ("heal_all",),
    *[("outbreak", ["GPU-0-0", "GPU-0-0"], ActionKind.CORDON)] * 2,
    ("outbreak", ["GPU-0-0", "GPU-1-0"], ActionKind.CORDON),
]
"""Once maintenance ends, a node is to be given back for one of its GPUs and cordoned for another."""


@hypothesis_settings(max_examples=150)
@example(concurrent=2, ratio=0.25, host=2, rack=2, left=0.0, sequence=GIVEN_BACK_AND_TAKEN)
@example(concurrent=1, ratio=0.25, host=1, rack=1, left=0.0, sequence=OUT_BY_OTHERS)
@example(concurrent=1, ratio=0.25, host=1, rack=1, left=0.75, sequence=UNDONE_IN_VAIN)
@example(concurrent=2, ratio=0.25, host=1, rack=1, left=0.0, sequence=OUT_ALREADY)
@given(
    concurrent=st.integers(1, 4),
    ratio=st.sampled_from([0.25, 0.5, 1.0]),
    host=st.integers(1, 2),
    rack=st.integers(1, 3),
    left=st.sampled_from([0.0, 0.5, 0.75]),
    sequence=st.lists(turns, min_size=8, max_size=20),
)
def test_limits_hold_in_a_fleet_that_falls_apart(
    concurrent: int, ratio: float, host: int, rack: int, left: float, sequence: list[tuple[Any, ...]]
) -> None:
    machine = ActionMachine()
    machine.begin(Mode.ACT, concurrent, ratio, host, rack, left, 1000)
    for name, *arguments in sequence:
        getattr(machine, name)(*arguments)
    machine.at_most_one_outcome_each()
    machine.every_audit_holds()
    machine.teardown()
    machine.every_audit_holds()
