"""A small fleet with its loop, for tests of actions: faults come and go, time passes, the brain restarts."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from tocsin.actions.loop.loop import ActionLoop
from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.executor import PRE_CHECK, ExecutionResult
from tocsin.actions.model.ledger_entry import DecisionStatus, StepReport
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.view import Confirmations, FleetView, GpuView
from tocsin.actions.notifications.channel import Delivery
from tocsin.actions.planning.facts import NodeState
from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.decision import Decision, Mode, Ruling, Verdict
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Gpu
from tocsin_testing.builders import T0
from tocsin_testing.journal_double import JournalDouble

TICK = 15 * SECOND


def settings(**more: Any) -> ActionSettings:
    """Everything allowed: act without a record, the pool managed, one confirmation, no grace, wide limits."""
    base: dict[str, Any] = {
        "mode": Mode.ACT,
        "earn_waived": ["*"],
        "managed_pools": ["default"],
        "confirmations": 1,
        "boot_grace_seconds": 0.0,
        "cooldown_seconds": 0.0,
        "settle_seconds": 30.0,
        "goal_seconds": 0.0,
        "breaker_root_causes": 1000,
        "limits": {
            "max_concurrent": 1000,
            "max_concurrent_ratio": 1.0,
            "max_per_host": 1000,
            "max_per_rack": 1000,
            "min_available_ratio": 0.0,
            "attempts_per_day": 1000,
            "attempts_per_host_per_day": 1000,
        },
    }
    limits = base["limits"] | more.pop("limits", {})
    return ActionSettings.model_validate(base | more | {"limits": limits})


def fleet(hosts: int = 4, per_host: int = 2, **more: Any) -> dict[str, Gpu]:
    """GPUs by UUID, two hosts a rack."""
    gpus = [
        Gpu(f"GPU-{h}-{i}", f"node-{h}", index=i, rack=f"rack-{h // 2}", **more)
        for h in range(hosts)
        for i in range(per_host)
    ]
    return {gpu.uuid: gpu for gpu in gpus}


def subject_of(gpu: Gpu) -> Subject:
    """The GPU as a subject."""
    return Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool)


def finding(subject: Subject, at_ms: int = T0, **more: Any) -> Finding:
    """A live thermal finding that asks for a cordon."""
    fields: dict[str, Any] = {
        "rule": "hot",
        "severity": Severity.CRITICAL,
        "category": Category.THERMAL,
        "action": ActionKind.CORDON,
        "started_ms": at_ms,
        "last_ms": at_ms,
        "sentence": "It is too hot.",
    }
    return Finding(subject=subject, **(fields | more))


def incident(root: Finding, *others: Finding) -> Incident:
    """The incident of `root`."""
    return Incident(root, (root, *others), root.started_ms, root.last_ms, root.sentence)


class FakeExecutor:
    """Does what it is told; `done` has the keys in order."""

    name = "fake"
    resumable = False

    def __init__(self) -> None:
        self.done: list[str] = []
        self.result = ExecutionResult(True, "done")
        self.seen: bool | None = True
        self.raises: BaseException | None = None

    def supports(self, action: ActionKind) -> bool:
        return action is not ActionKind.NOTIFY

    def serves(self, decision: Decision) -> bool:
        return True

    def check(self, decision: Decision, view: FleetView) -> Verdict:
        return Verdict(PRE_CHECK, Ruling.ALLOW)

    def execute(self, decision: Decision) -> ExecutionResult:
        self.done.append(decision.key)
        if self.raises is not None:
            raise self.raises
        return self.result

    def verify(self, decision: Decision, view: FleetView) -> bool | None:
        return self.seen

    def inverse(self, decision: Decision) -> Decision | None:
        return inverse_of(decision)


class FakeNotifier:
    """Collects what was delivered."""

    name = "fake"

    def __init__(self) -> None:
        self.told: list[Decision] = []
        self.tries = 0
        self.delivery = Delivery(True, "told", 1)

    def notify(self, decision: Decision) -> Delivery:
        self.tries += 1
        if self.delivery.ok:
            self.told.append(decision)
        return self.delivery


class World:
    """The fleet, its faults and its loop."""

    def __init__(self, actions: ActionSettings | None = None, gpus: dict[str, Gpu] | None = None) -> None:
        self.clock = ManualClock(T0)
        self.journal = JournalDouble(self.clock)
        self.executor = FakeExecutor()
        self.notifier = FakeNotifier()
        self.policy = Policy(actions or settings())
        self.gpus = gpus or fleet()
        self.faults: dict[str, Finding] = {}
        self.stale: set[str] = set()
        self.sick: set[str] = set()
        self.elsewhere: set[str] = set()
        self.nodes: dict[str, NodeState] = {}
        self.active = True
        self.alert_silences = AlertSilences()
        self.values: dict[str, dict[str, float]] = {}
        self.restart()

    def restart(self) -> None:
        """A new brain over the same journal."""
        self.started_ms, self._begun = self.clock.now_ms(), self.clock.monotonic()
        self._confirmations = Confirmations()
        self.loop = ActionLoop(self.journal, [self.executor], self.clock, self.policy, self.notifier)

    def break_gpu(self, uuid: str, **more: Any) -> Finding:
        """A fault begins; a second one of the same rule on the same GPU goes on as it was."""
        made = finding(subject_of(self.gpus[uuid]), self.clock.now_ms(), **more)
        return self.faults.setdefault(f"{made.rule}|{uuid}", made)

    def view(self) -> FleetView:
        """The state now; live findings are seen now."""
        now_ms = self.clock.now_ms()
        live = [replace(f, last_ms=now_ms) for f in self.faults.values()]
        gpus = {
            uuid: GpuView(
                gpu,
                None if uuid in self.stale else now_ms,
                uuid not in self.sick,
                uuid in self.elsewhere or (gpu.host in self.nodes and not self.nodes[gpu.host].schedulable),
                self.values.get(uuid, {}),
            )
            for uuid, gpu in self.gpus.items()
        }
        return FleetView(
            now_ms,
            now_ms - round((self.clock.monotonic() - self._begun) * SECOND),
            gpus,
            {f.id: f for f in live},
            tuple(incident(f) for f in live),
            self._confirmations.update(live, now_ms),
            nodes=self.nodes,
            active=self.active,
            alert_silences=self.alert_silences,
            policy=self.policy,
        )

    def step(self, predictions: list[Prediction] | None = None, advance: int = TICK) -> StepReport:
        """Time passes, then the loop turns once."""
        self.clock.advance(advance)
        view = self.view()
        return self.loop.step(view, view.incidents, predictions or [])

    def only(self, action: ActionKind = ActionKind.CORDON) -> DecisionStatus:
        """The one decision for `action`."""
        found = [status for status in self.loop.statuses() if status.decision.action is action]
        assert len(found) == 1, found
        return found[0]

    def verdict(self, guard: str, action: ActionKind = ActionKind.CORDON) -> Verdict:
        """What one guard said of the one decision for `action`."""
        return next(v for v in self.only(action).verdicts if v.guard == guard)
