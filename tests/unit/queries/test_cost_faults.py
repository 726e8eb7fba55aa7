"""Faults of a period: what they hit, and which actions had come before them."""

from __future__ import annotations

from dataclasses import replace

from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.config.settings import CostSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND
from tocsin.domain.decision import Decision, DecisionState, Mode, Outcome, OutcomeStatus, Ruling
from tocsin.domain.event import Event
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.reading import NVLINK_DOMAIN, Owner, Reading
from tocsin.queries.cost import SAME_MS, lost_out
from tocsin.queries.fault_jobs import BUDGET_S, FaultJobs, gpus_of_job
from tocsin.queries.hardware_faults import fabrics_of, hardware_faults
from tocsin.store.memory import MemoryStore
from tocsin_testing.builders import T0, gpu, reading, xid

FAILED, RESTING, UNSEEN = gpu(0), gpu(1), gpu(2)
SPAN = (T0 - DAY, T0 + 1)


def store() -> MemoryStore:
    made = MemoryStore()
    before = [T0 - HOUR - minute * MINUTE for minute in (1, 5, 10)]
    busy = [reading(FAILED, at, utilization_ratio=0.9) for at in before]
    idle = [reading(RESTING, at, utilization_ratio=0.0) for at in before]
    events = [xid(79, one, T0 - HOUR) for one in (FAILED, RESTING, UNSEEN)]
    made.write(Batch(readings=[*busy, *idle], events=events))
    return made


def acted(
    action: ActionKind = ActionKind.DRAIN,
    status: OutcomeStatus = OutcomeStatus.SUCCEEDED,
    at_ms: int = T0 - 5 * HOUR,
    subject: Subject | None = None,
) -> DecisionStatus:
    subject = subject or Subject(SubjectKind.GPU, FAILED.uuid, FAILED.host)
    decision = Decision(
        "rule",
        subject,
        action,
        Mode.ACT,
        Severity.CRITICAL,
        Category.HARDWARE,
        at_ms - MINUTE,
        at_ms + HOUR,
        "key",
        "Do it",
    )
    outcome = Outcome(decision.id, status, "simulated", at_ms, effect={"gpu_temperature_celsius_change": -20.0})
    return DecisionStatus(decision, (), Ruling.ALLOW, DecisionState.DONE, outcome, "", at_ms)


def lost(*statuses: DecisionStatus):  # type: ignore[no-untyped-def]
    return lost_out(store(), statuses, SPAN, CostSettings(), lambda _fault: 4, simulated=False)


def test_faults_say_whether_their_gpu_was_at_work() -> None:
    found = lost()
    assert (found.faults, found.at_work, found.at_rest, found.untold) == (3, 1, 1, 1)
    assert found.hours_each == 4.0 / 2 + 0.25
    assert found.gpus_hit == 4, "those of the job on the one at work"
    assert found.early == []


def of_job(number: int, job: str) -> Reading:
    """A reading a minute before the fault, on the first host or the second."""
    held = gpu(number, host=f"node-{1 + number // 8}")
    return replace(reading(held, T0 - MINUTE, utilization_ratio=0.9), owners=(Owner(7, slurm_job=job),))


def test_the_gpus_of_a_job_are_counted_once_and_on_all_of_its_hosts() -> None:
    made, now_s = MemoryStore(), [0.0]
    made.write(Batch(readings=[of_job(n, "41.0" if n % 2 == 0 else "42.0") for n in range(16)]))
    made.write(Batch(readings=[reading(gpu(0), T0 - 30 * SECOND, utilization_ratio=0.0)]))
    assert gpus_of_job(made, xid(79, gpu(0), T0)) == 8
    assert gpus_of_job(made, xid(79, gpu(0), T0 + HOUR)) == 1, "who held it then nobody knows"
    jobs = FaultJobs(made, lambda: now_s[0])
    first = jobs.look()
    assert first(xid(79, gpu(0), T0)) == 8
    now_s[0] = BUDGET_S
    assert (first(xid(79, gpu(0), T0)), first(xid(79, gpu(1), T0))) == (8, 1), "what is not known yet is the GPU alone"
    assert jobs.look()(xid(79, gpu(1), T0)) == 8


def test_events_of_one_gpu_within_an_hour_are_one_fault() -> None:
    many = [xid(79, FAILED, T0 + minute * MINUTE) for minute in (0, 20, 70, 200)]
    found = hardware_faults([*many, xid(13, FAILED, T0)], SAME_MS, {})
    assert [one.first.at_ms for one in found] == [T0, T0 + 200 * MINUTE]


def test_both_ends_of_a_link_report_one_fault() -> None:
    def firsts(*events: Event) -> list[tuple[str, int]]:
        return [(one.first.gpu, len(one.gpus)) for one in hardware_faults(events, SAME_MS, {})]

    cut, away = xid(74, FAILED, T0), gpu(3, host="node-2")
    assert firsts(cut, xid(74, RESTING, T0 + SECOND)) == [(FAILED.uuid, 2)]
    assert firsts(xid(79, FAILED, T0), xid(74, RESTING, T0 + SECOND)) == [(FAILED.uuid, 2)]
    assert len(firsts(cut, xid(74, RESTING, T0 + 5 * MINUTE))) == 2, "later it is a fault of its own"
    assert len(firsts(cut, xid(48, RESTING, T0 + SECOND))) == 2, "its memory fails by itself"
    assert len(firsts(cut, xid(74, away, T0 + SECOND))) == 2, "no link joins two hosts"
    fabrics = fabrics_of([replace(one, labels={NVLINK_DOMAIN: "rack.0"}) for one in (FAILED, away)])
    assert len(hardware_faults([cut, xid(74, away, T0 + SECOND)], SAME_MS, fabrics)) == 1


def test_a_link_whose_ends_report_again_and_again_is_one_fault() -> None:
    both = [xid(74, one, T0 + n * 20 * MINUTE + late) for n in range(6) for late, one in enumerate((FAILED, RESTING))]
    assert len(hardware_faults(both, SAME_MS, {})) == 1


def test_an_action_that_worked_before_the_fault_counts() -> None:
    found = lost(acted())
    (one,) = found.early
    assert (one.gpu, one.action, one.lead_s, one.idle) == (FAILED.uuid, ActionKind.DRAIN, 4 * 3600.0, False)
    assert one.effect == {"gpu_temperature_celsius_change": -20.0}
    assert found.early_total == 1


def test_an_action_on_the_host_counts_for_each_of_its_gpus() -> None:
    found = lost(acted(subject=Subject(SubjectKind.HOST, FAILED.host, FAILED.host)))
    assert {one.gpu for one in found.early} == {FAILED.uuid, RESTING.uuid, UNSEEN.uuid}
    assert {one.idle for one in found.early} == {False, True, None}


def test_what_failed_came_late_or_saves_nothing_does_not_count() -> None:
    assert lost(acted(status=OutcomeStatus.FAILED)).early == []
    assert lost(acted(at_ms=T0 - 30 * MINUTE)).early == []
    assert lost(acted(at_ms=T0 - 3 * DAY)).early == []
    assert lost(acted(action=ActionKind.NOTIFY)).early == []
    assert lost(replace(acted(), outcome=None)).early == []
