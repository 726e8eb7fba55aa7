"""Cards: how incidents become them, which decision leads, what is said where none can run, and what stays when over."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import pytest

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.cli.cards import card_lines
from tocsin.client.models import GpuState
from tocsin.client.models_cards import HEADLINE_CHARACTERS, Card, CardState
from tocsin.config.settings import CostSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE, to_iso
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling, Verdict
from tocsin.domain.entry import Entry, EntryKind
from tocsin.domain.finding import (
    PREDICTION_EVIDENCE,
    ActionKind,
    Category,
    Evidence,
    Finding,
    Incident,
    Severity,
    Subject,
    SubjectKind,
)
from tocsin.domain.phrase import say
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.domain.usage import Prices
from tocsin.queries import views
from tocsin.queries.card_life import CardLife, record_payload
from tocsin.queries.card_words import CardCause, no_action
from tocsin.queries.cards import CardInputs, make_cards
from tocsin.queries.fleet_map import snapshot_of
from tocsin.rules.conditions.xid_class import XID_METRIC
from tocsin.rules.symptoms import Symptom
from tocsin_testing.builders import T0, gpu, reading

SIGNS = {"sign"}
APPROVAL = Verdict("approval", Ruling.HOLD, "waits for a person")
FULL = Verdict("max_concurrent", Ruling.HOLD, "3 under action already, at most 3 at once")


def node(number: int) -> Reading:
    owners = (Owner(pid=1, slurm_job="4711.0", user="ann"),)
    return replace(reading(gpu(number), T0, temperature_celsius=50.0), owners=owners)


def about(one: Reading) -> Subject:
    return Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool)


def finding(one: Reading, rule: str = "a-rule", **more: object) -> Finding:
    made = Finding(
        rule, about(one), Severity.CRITICAL, Category.THERMAL, ActionKind.THROTTLE, T0 - HOUR, T0, "it is hot"
    )
    return replace(made, **more)  # type: ignore[arg-type]


def incident(*members: Finding, place: Place | None = None) -> Incident:
    where = place or Place(PlaceKind.GPU, members[0].subject.name)
    return Incident(members[0], members, members[0].started_ms, T0, members[0].sentence, where)


def decided(
    of: Incident, action: ActionKind, *verdicts: Verdict, state: DecisionState = DecisionState.HELD
) -> DecisionStatus:
    root = of.root
    made = Decision(
        root.rule, root.subject, action, Mode.PROPOSE, root.severity, root.category, T0 - MINUTE, T0 + HOUR,
        f"{root.id}|{action}", f"{action} {root.subject.name}.", (root.id,), of.id,
    )  # fmt: skip
    overall = Ruling.HOLD if verdicts else Ruling.ALLOW
    return DecisionStatus(made, verdicts, overall, state, None, "", T0 - MINUTE)


def cards(
    readings: Sequence[Reading],
    incidents: Sequence[Incident] = (),
    statuses: Sequence[DecisionStatus] = (),
    ahead: Sequence[Prediction] = (),
    life: CardLife | None = None,
    now_ms: int = T0,
) -> list[Card]:
    snapshot = snapshot_of(readings, [m for one in incidents for m in one.members], ahead, now_ms, DAY)
    inputs = CardInputs(
        snapshot,
        incidents,
        statuses,
        ahead,
        {},
        SIGNS,
        life or CardLife(),
        Controls(),
        CostSettings(),
        Prices(),
        5 * MINUTE,
    )
    return [one.card for one in make_cards(inputs)]


def test_a_card_says_what_where_and_what_a_yes_starts() -> None:
    hot = node(3)
    one = incident(finding(hot))
    asking = decided(one, ActionKind.THROTTLE, APPROVAL)
    card = cards([hot], [one], [asking])[0]
    assert card.headline == f"{hot.gpu.host} GPU {hot.gpu.index}: too hot"
    assert (card.id, card.state, card.since) == (one.id, CardState.OPEN, to_iso(T0 - HOUR))
    assert card.action is not None
    assert (card.action.decision, card.action.can_approve) == (asking.decision.id, True)
    assert card.next == f"Waits for your approval until {to_iso(T0 + HOUR)[11:16]} UTC"
    assert card.obstacle == ""
    assert (card.touches.gpus, card.touches.job_names, card.touches.owner_names) == (1, ["slurm 4711"], ["ann"])
    assert hot.gpu.uuid not in card.action.sentence


def test_a_card_of_a_hot_host_offers_one_yes_for_all_its_gpus() -> None:
    hot = [node(n) for n in range(4)]
    one = incident(*map(finding, hot), place=Place(PlaceKind.HOST, hot[0].gpu.host))
    asking = [decided(replace(one, root=member), ActionKind.THROTTLE, APPROVAL) for member in one.members]
    asking = [replace(each, decision=replace(each.decision, incident=one.id)) for each in asking]
    action = cards(hot, [one], asking)[0].action
    assert action is not None
    assert (action.can_approve, action.alike) == (True, 3)
    lone = cards(hot, [one], [asking[0], decided(one, ActionKind.DRAIN, FULL)])[0].action
    assert lone is not None
    assert lone.alike == 0


def test_what_a_guard_holds_is_an_obstacle_and_no_action() -> None:
    hot = node(0)
    one = incident(finding(hot))
    card = cards([hot], [one], [decided(one, ActionKind.DRAIN, FULL, APPROVAL)])[0]
    assert card.action is None
    assert card.obstacle == (
        "Drain cannot start now: 3 under action already, at most 3 at once. "
        "It can start once one of these is done, or with a higher `actions.limits.max_concurrent`."
    )
    assert (card.obstacle_zh, card.obstacle_guard) == ("排空 目前不能开始", "max_concurrent")
    told = replace(FULL, said=say("{n} under action already, at most {most} at once", n=3, most=3))
    chinese = cards([hot], [one], [decided(one, ActionKind.DRAIN, told, APPROVAL)])[0]
    assert chinese.obstacle_zh.startswith("排空 目前不能开始：已有 3 个正在处理，同时最多 3 个。待其中之一完成，")
    assert [item.text_zh for item in chinese.evidence if item.kind == "guard"] == [
        "已有 3 个正在处理，同时最多 3 个",
        "",
    ]
    assert [item.name for item in card.evidence if item.kind == "guard"] == ["max_concurrent", "approval"]
    whole = replace(FULL, reason="It is full.")
    stopped = cards([hot], [one], [decided(one, ActionKind.DRAIN, whole, APPROVAL)])[0]
    assert stopped.obstacle.startswith("Drain cannot start now: It is full. It can start once ")
    nothing = cards([hot], [one])[0]
    assert (nothing.action, nothing.next) == (None, "Nothing: watch only")
    assert "look at its cooling" in nothing.obstacle
    assert (nothing.obstacle_zh, nothing.obstacle_guard) == ("无法从这里处理：请检查其散热。", "")


@pytest.mark.parametrize("state", list(DecisionState))
def test_what_a_card_says_by_itself_it_says_in_chinese_as_well(state: DecisionState) -> None:
    hot = node(0)
    one = incident(finding(hot))
    for verdicts in ((), (FULL,), (APPROVAL,)):
        card = cards([hot], [one], [decided(one, ActionKind.DRAIN, *verdicts, state=state)])[0]
        for name in ("headline", "next", "obstacle", "confidence"):
            english, chinese = getattr(card, name), getattr(card, f"{name}_zh")
            assert bool(english) == bool(chinese)
            assert not english or any("\u4e00" <= sign <= "\u9fff" for sign in chinese), (name, chinese)
            assert "drain" not in chinese


@pytest.mark.parametrize("symptom", list(Symptom))
def test_why_nothing_is_done_is_said_in_both_languages(symptom: Symptom) -> None:
    trouble = CardCause(symptom, None, Severity.WARNING, ActionKind.NOTIFY, "", Subject(SubjectKind.FLEET, "fleet"))
    english, chinese = no_action(trouble)
    assert english.endswith(".")
    assert chinese.endswith("。")


def test_the_decision_that_runs_leads_and_the_others_are_evidence() -> None:
    hot = node(0)
    one = incident(finding(hot))
    runs = decided(one, ActionKind.THROTTLE, state=DecisionState.EXECUTING)
    asks = decided(one, ActionKind.DRAIN, APPROVAL)
    for statuses in ([runs, asks], [asks, runs]):
        card = cards([hot], [one], statuses)[0]
        assert (card.state, card.action and card.action.decision) == (CardState.ACTING, runs.decision.id)
        assert [item.decision for item in card.evidence if item.kind == "decision"] == [asks.decision.id]
    checked = replace(runs, state=DecisionState.VERIFYING)
    assert cards([hot], [one], [checked, asks])[0].state is CardState.VERIFYING


def test_incidents_of_one_place_are_one_card_about_the_worst() -> None:
    hot, other = node(0), node(1)
    mild = incident(finding(hot, "mild", severity=Severity.WARNING))
    grave = incident(finding(hot, "grave"))
    elsewhere = incident(finding(other))
    made = cards([hot, other], [mild, grave, elsewhere])
    assert sorted(card.id for card in made) == sorted([grave.id, elsewhere.id])
    card = next(card for card in made if card.id == grave.id)
    assert [item.name for item in card.evidence if item.kind == "finding"] == ["grave", "mild"]


def test_what_is_less_grave_and_shows_nowhere_else_belongs_to_a_wider_cause() -> None:
    one, two = node(0), node(1)
    wide = incident(finding(one), finding(two), place=Place(PlaceKind.HOST, one.gpu.host))
    sign = incident(finding(two, "mild", severity=Severity.WARNING))
    assert [card.id for card in cards([one, two], [sign, wide])] == [wide.id]
    apart = incident(finding(node(2), severity=Severity.WARNING))
    assert len(cards([one, two, node(2)], [sign, wide, apart])) == 2


def test_what_is_left_of_a_wider_cause_stays_on_its_card_when_that_has_ended() -> None:
    one, two = node(0), node(1)
    errors = replace(finding(one, "nvlink", level=AlertLevel.PAGE, started_ms=T0 - 12 * HOUR), last_ms=T0 - HOUR)
    wide = incident(errors, finding(two, started_ms=T0 - 12 * HOUR), place=Place(PlaceKind.HOST, "node-1"))
    sign = incident(finding(two, "mild", severity=Severity.WARNING, started_ms=T0 - 13 * HOUR))
    assert [card.id for card in cards([one, two], [sign, wide])] == [wide.id]
    (after,) = cards([one, two], [sign, replace(wide, cleared=(errors.id,))])
    assert {item.name for item in after.evidence if item.kind == "finding"} >= {"nvlink", "mild"}


def test_a_cause_that_has_ended_hides_nothing_that_came_after_it() -> None:
    one, two = node(0), node(1)
    errors = finding(one, "nvlink", level=AlertLevel.PAGE, category=Category.HARDWARE, started_ms=T0 - 12 * HOUR)
    errors = replace(errors, metric="gpu_nvlink_errors", last_ms=T0 - 10 * HOUR)
    left = finding(two, "left", started_ms=T0 - 12 * HOUR)
    wide = replace(incident(errors, left, place=Place(PlaceKind.HOST, "node-1")), cleared=(errors.id,))
    lost = incident(
        finding(two, "lost", level=AlertLevel.PAGE, category=Category.HARDWARE, metric=XID_METRIC, value=79)
    )
    reboot = decided(lost, ActionKind.REBOOT_NODE, APPROVAL)
    first, second = cards([one, two], [wide, lost], [reboot])
    assert (first.headline, first.level) == ("node-1 GPU 1: fell off its PCIe bus", AlertLevel.PAGE)
    assert (first.since, first.action and first.action.decision) == (to_iso(lost.opened_ms), reboot.decision.id)
    assert (second.id, second.level, second.action) == (wide.id, AlertLevel.WARNING, None)
    # An action that is owed of what has ended keeps its card a page, and still hides nothing that is new.
    mild = incident(finding(two, "mild", severity=Severity.WARNING))
    owed = decided(wide, ActionKind.RESET_GPU, APPROVAL)
    assert [card.id for card in cards([one, two], [wide, mild], [owed])] == [wide.id, mild.id]
    # Of the same GPU alone, what has ended goes with what holds.
    narrow = replace(incident(replace(errors, subject=about(two))), cleared=(replace(errors, subject=about(two)).id,))
    assert [card.id for card in cards([one, two], [narrow, lost])] == [lost.id]


def test_a_lost_gpu_is_a_card_by_itself_beside_an_older_cause_that_holds() -> None:
    one, two = node(0), node(1)
    older = [finding(each, "nvlink", level=AlertLevel.PAGE, started_ms=T0 - 12 * HOUR) for each in (one, two)]
    wide = incident(*older, place=Place(PlaceKind.HOST, "node-1"))
    lost = incident(
        finding(two, "lost", level=AlertLevel.PAGE, category=Category.HARDWARE, metric=XID_METRIC, value=79)
    )
    assert {card.id for card in cards([one, two], [wide, lost])} == {wide.id, lost.id}


def test_load_and_memory_are_one_card_and_notes_only_where_a_yes_starts_something() -> None:
    full = [
        incident(finding(node(n), "memory_full", severity=Severity.INFO, category=Category.MEMORY)) for n in range(3)
    ]
    readings = [node(n) for n in range(3)]
    assert cards(readings, full) == []
    asks = decided(full[1], ActionKind.MIGRATE, APPROVAL)
    only = cards(readings, full, [asks])
    assert [(card.headline.partition(":")[2], card.action and card.action.decision) for card in only] == [
        (" memory is nearly full", asks.decision.id)
    ]
    both = cards(readings, full, [asks, decided(full[0], ActionKind.MIGRATE, APPROVAL)])
    assert len(both) == 1
    assert both[0].headline == "2 places: memory is nearly full"


def test_the_card_of_what_breaks_nothing_keeps_its_id_is_a_note_and_offers_no_one_of_several_decisions() -> None:
    readings = [node(n) for n in range(4)]
    idle = [
        incident(finding(each, f"rule-{n}", severity=Severity.WARNING, category=Category.MEMORY, started_ms=T0 - n))
        for n, each in enumerate(readings)
    ]
    asks = [decided(each, ActionKind.MIGRATE, APPROVAL) for each in idle]
    (card,) = cards(readings, idle, asks[:3])
    assert (card.level, card.health, card.action) == (AlertLevel.NOTE, GpuState.OK, None)
    assert (card.next, card.next_zh) == ("3 decisions wait for your approval", "3 个决策等待批准")
    assert (card.obstacle, card.obstacle_zh) == (
        f"{card.next}, each by itself: tocsin status.",
        f"{card.next_zh}，互相独立。",
    )
    listed = [item.decision for item in card.evidence if item.kind == "decision"]
    assert sorted(listed) == sorted(one.decision.id for one in asks[:3])
    assert {f"({name})" for name in listed} <= {line.split()[-1] for line in card_lines(card)}
    # Whatever comes and goes; where one decision is left it is the action.
    assert {cards(readings, some, asks)[0].id for some in (idle[:2], idle[2:], idle[1:], idle[::-1])} == {card.id}
    (one,) = cards(readings, idle, asks[1:2])
    assert one.action is not None
    assert (one.id, one.action.decision) == (card.id, asks[1].decision.id)


def test_early_signs_are_one_card_until_something_fails() -> None:
    signs = [incident(finding(node(n), "sign", severity=Severity.WARNING)) for n in range(2)]
    readings = [node(n) for n in range(3)]
    assert [card.headline for card in cards(readings, signs)] == ["2 places: too hot"]
    assert cards(readings, signs[:1])[0].headline.startswith("node-1 GPU 0: ")
    failed = incident(finding(node(0)))
    assert {card.id for card in cards(readings, [*signs, failed])} == {failed.id, signs[1].id}


def test_every_decision_that_waits_is_on_one_card() -> None:
    hot = node(0)
    gone = incident(finding(hot))
    giving_back = decided(gone, ActionKind.RESTORE, APPROVAL)
    made = cards([hot], [], [giving_back])
    assert [(card.id, card.action and card.action.decision) for card in made] == [(giving_back.decision.id,) * 2]
    assert "restore" in made[0].headline


@pytest.mark.parametrize(
    ("root", "expected"), [(Category.THERMAL, GpuState.CRITICAL), (Category.APPLICATION, GpuState.WARNING)]
)
def test_a_card_is_as_grave_as_its_gravest_finding_unless_a_program_is_to_blame(
    root: Category, expected: GpuState
) -> None:
    hot = node(0)
    warm = finding(hot, "temperature_high", severity=Severity.WARNING, category=root)
    (card,) = cards([hot], [incident(warm, finding(hot, "thermal_slowdown"))])
    assert (card.health, card.level is AlertLevel.PAGE) == (expected, expected is GpuState.CRITICAL)


def test_silent_gpus_and_forecasts_without_an_incident_have_cards() -> None:
    lost = replace(node(0), values={}, missing={"gpu_power_watts": Missing.LOST})
    well = node(1)
    coming = Prediction(
        about(well), "hardware_fault", T0, 2 * DAY, PredictionStatus.LIKELY, "m", "1", "it may fail", probability=0.4
    )
    made = cards([lost, well], ahead=[coming])
    assert [(card.health, card.probability) for card in made] == [(GpuState.LOST, None), (GpuState.OK, 0.4)]
    assert made[1].headline.endswith("raised risk of a hardware fault")
    likely = cards([well], ahead=[replace(coming, probability=0.5)])[0]
    assert (likely.headline, likely.headline_zh) == (
        "node-1 GPU 1: a hardware fault is expected",
        "node-1 GPU 1: 预计发生硬件故障",
    )
    assert all(card.action is None and card.obstacle for card in made)
    again = cards([lost, well], ahead=[replace(coming, at_ms=T0 + MINUTE)])
    assert [card.id for card in again] == [card.id for card in made], "a forecast that is renewed keeps its card"


@pytest.mark.parametrize(
    ("chance", "said"), [(0.25, "raised risk of a hardware fault"), (0.8, "a hardware fault is expected")]
)
def test_an_incident_of_a_forecast_says_how_likely_it_is(chance: float, said: str) -> None:
    well = node(1)
    told = Evidence(f"{PREDICTION_EVIDENCE}m 1", "it may fail", T0, chance)
    coming = finding(well, "gpu_fault_predicted", category=Category.HARDWARE, evidence=(told,))
    (card,) = cards([well], [incident(coming)])
    assert (card.headline, card.probability) == (f"node-1 GPU 1: {said}", chance)


def test_a_forecast_does_not_say_that_nothing_failed() -> None:
    # Another fault may just have ended at the place.
    coming = Prediction(
        about(node(1)), "hardware_fault", T0, 2 * DAY, PredictionStatus.LIKELY, "m", "1", "it may fail", probability=0.4
    )
    (card,) = cards([node(1)], ahead=[coming])
    assert (card.obstacle, card.confidence) == (
        "It has not happened yet: watch only.",
        "a forecast: it has not happened yet",
    )


def test_what_has_happened_has_no_probability_whatever_is_forecast_of_its_gpu() -> None:
    hot = node(0)
    coming = Prediction(
        about(hot), "hardware_fault", T0, 2 * DAY, PredictionStatus.LIKELY, "m", "1", "it may fail", probability=0.4
    )
    (card,) = cards([hot], [incident(finding(hot))], ahead=[coming])
    assert (card.probability, card.confidence) == (None, "measured")


def test_a_headline_fits_a_line_whatever_the_names() -> None:
    hot = node(0)
    one = incident(finding(hot), finding(node(1)), place=Place(PlaceKind.POWER_ZONE, "x" * 300))
    assert len(cards([hot], [one])[0].headline) == HEADLINE_CHARACTERS


# ---------------------------------------------------------------------- what the journal has


def entry(seq: int, kind: EntryKind, at_ms: int, **payload: object) -> Entry:
    return Entry(seq, 1, at_ms, kind, "tocsin", payload, False, "", "")


def lived(*events: tuple[EntryKind, int, Incident, dict[str, object]]) -> CardLife:
    life = CardLife()
    for seq, (kind, at_ms, one, more) in enumerate(events, start=1):
        card = {} if kind is EntryKind.INCIDENT_CLOSED else {"card": record_payload(one)}
        life.apply(entry(seq, kind, at_ms, id=one.id, **card, **more))
    return CardLife.restored(life.state())


OPENED, CLOSED = EntryKind.INCIDENT_OPENED, EntryKind.INCIDENT_CLOSED


def test_what_is_left_of_a_cause_that_ended_is_no_page_and_says_what_still_holds() -> None:
    hot = node(0)
    root = finding(hot, severity=Severity.CRITICAL, level=AlertLevel.PAGE)
    rest = finding(hot, "b-rule", level=AlertLevel.PAGE, sentence=f"{hot.gpu.uuid}: errors within 24 h: 1.")
    one = incident(root, rest)
    over = replace(one, cleared=(root.id,))
    reset = decided(one, ActionKind.RESET_GPU, state=DecisionState.EXPIRED)
    (before,) = cards([hot], [one], [reset])
    (after,) = cards([hot], [over], [reset])
    assert (before.level, after.level) == (AlertLevel.PAGE, AlertLevel.WARNING)
    assert (
        after.obstacle
        == f"Its cause ended at {to_iso(T0)[11:16]} UTC; what is left: {hot.gpu.host} GPU 0: errors within 24 h: 1."
    )
    owed = decided(one, ActionKind.RESET_GPU, APPROVAL)
    (waits,) = cards([hot], [over], [owed])
    assert (waits.level, waits.obstacle) == (AlertLevel.PAGE, "")


def test_nobody_is_told_what_waiting_costs_once_the_cause_has_ended() -> None:
    hot = node(0)
    root = replace(finding(hot), category=Category.HARDWARE)
    one = incident(root)
    (before,) = cards([hot], [one])
    (after,) = cards([hot], [replace(one, cleared=(root.id,))])
    assert before.waiting_gpu_hours
    assert after.waiting_gpu_hours is None


def test_what_is_over_stays_readable_for_a_day() -> None:
    hot = node(0)
    one = incident(finding(hot))
    life = lived((OPENED, T0 - HOUR, one, {}), (CLOSED, T0, one, {}))
    card = cards([hot], life=life, now_ms=T0 + HOUR)[0]
    assert (card.id, card.state, card.resolved) == (one.id, CardState.RESOLVED, to_iso(T0))
    assert card.proof.startswith("What was found had cleared")
    assert cards([], life=life, now_ms=T0 + DAY + 1) == []


def test_the_same_cause_again_reopens_and_takes_the_place_of_what_was_over() -> None:
    hot = node(0)
    first, second = incident(finding(hot)), incident(finding(hot, started_ms=T0 + HOUR))
    life = lived((OPENED, T0 - HOUR, first, {}), (CLOSED, T0, first, {}), (OPENED, T0 + HOUR, second, {}))
    made = cards([hot], [second], life=life, now_ms=T0 + HOUR)
    assert [(card.id, card.state, card.reopened_from) for card in made] == [(second.id, CardState.REOPENED, to_iso(T0))]
    late = lived((OPENED, T0 - HOUR, first, {}), (CLOSED, T0, first, {}), (OPENED, T0 + DAY + 1, second, {}))
    assert cards([hot], [second], life=late, now_ms=T0 + DAY + 1)[0].state is CardState.OPEN


def test_an_incident_that_became_part_of_another_is_not_over() -> None:
    hot = node(0)
    one, wider = incident(finding(hot)), incident(finding(hot, "nearer"))
    life = lived((OPENED, T0, one, {}), (OPENED, T0, wider, {}), (CLOSED, T0, one, {"into": wider.id}))
    assert dict(life.ended) == {}


def test_entries_of_older_versions_leave_nothing() -> None:
    one = incident(finding(node(0)))
    life = CardLife()
    life.apply(entry(1, OPENED, T0, id=one.id, sentence="it is hot"))
    life.apply(entry(2, OPENED, T0, id="x", card={"rule": 3}))
    life.apply(entry(3, CLOSED, T0, id=one.id))
    assert (dict(life.ended), dict(life.came_again)) == ({}, {})


def test_what_is_counted_as_waiting_is_listed_however_much_came_after_it() -> None:
    hot = node(0)
    old = decided(incident(finding(hot)), ActionKind.DRAIN, APPROVAL)
    later = [
        replace(made, decision=replace(made.decision, at_ms=T0 + n, key=str(n)))
        for n in range(150)
        for made in [decided(incident(finding(hot)), ActionKind.NOTIFY, state=DecisionState.DONE)]
    ]
    listed = views.decisions_out([old, *later], 100)
    assert views.waiting([old, *later]) == sum(one.approvable for one in listed) == 1
    assert [one.at_ms for one in listed[1:4]] == [T0 + 149, T0 + 148, T0 + 147]


def test_a_card_offers_what_mends_its_own_cause_and_what_is_asked_for_now() -> None:
    """The GPU fell off its bus: what its signs asked for stands no more in front of the repair."""
    one = node(0)
    sign = finding(one, "sign", severity=Severity.WARNING)
    bus = finding(one, "xid_bus", category=Category.HARDWARE, metric="gpu_xid_last_code", value=79.0)
    fell = incident(bus, sign)
    reboot = decided(fell, ActionKind.REBOOT_NODE, FULL, APPROVAL)
    passed = Verdict("selection", Ruling.HOLD, "another action is needed there now")
    older = decided(incident(sign), ActionKind.MIGRATE, APPROVAL, passed)
    newer = replace(older, updated_ms=T0)
    for before in (older, newer):
        card = cards([one], [fell], [before, reboot])[0]
        assert card.obstacle.startswith("Reboot node cannot start now: 3 under action"), card.obstacle
    waits = decided(fell, ActionKind.REBOOT_NODE, APPROVAL)
    also = replace(decided(incident(sign), ActionKind.CHECKPOINT, APPROVAL), updated_ms=T0)
    card = cards([one], [fell], [also, waits])[0]
    assert card.action is not None
    assert card.action.kind is ActionKind.REBOOT_NODE
    failed = decided(fell, ActionKind.REBOOT_NODE, state=DecisionState.FAILED)
    assert cards([one], [fell], [newer, failed])[0].obstacle.startswith("Reboot node failed")
