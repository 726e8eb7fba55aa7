"""What acknowledgements, snoozes and planned maintenance make of cards."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from types import SimpleNamespace

from tocsin.actions.model.controls import Controls
from tocsin.actions.model.ledger_entry import DecisionStatus
from tocsin.actions.model.silences import Silence
from tocsin.client.models_cards import Card, CardState
from tocsin.client.models_silences import AcknowledgeRequest
from tocsin.config.settings import CostSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE, to_iso
from tocsin.domain.decision import Decision, DecisionState, Mode, Ruling
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.reading import Gpu, Missing, Reading
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin.domain.usage import Prices
from tocsin.queries.card_life import CardLife
from tocsin.queries.cards import CardInputs, MadeCard, make_cards
from tocsin.queries.fleet_map import snapshot_of
from tocsin.queries.silences import SilenceService
from tocsin_testing.builders import T0, gpu, reading

ONE, TWO = (replace(gpu(n), rack="r1", host=f"node-{n}") for n in range(2))
READINGS = [reading(one, T0, temperature_celsius=50.0) for one in (ONE, TWO)]


def finding(one: Gpu, rule: str = "hot", severity: Severity = Severity.CRITICAL) -> Finding:
    subject = Subject(SubjectKind.GPU, one.uuid, one.host, one.pool)
    return Finding(rule, subject, severity, Category.THERMAL, ActionKind.CORDON, T0 - HOUR, T0, "it is hot")


def incident(*members: Finding) -> Incident:
    return Incident(members[0], members, T0 - HOUR, T0, "it is hot", Place(PlaceKind.GPU, members[0].subject.name))


def silence(kind: SilenceKind, matcher: Matcher, *causes: str, **more: object) -> Silence:
    made = Silence("s1", kind, matcher, T0 - HOUR, T0 + HOUR, T0 - HOUR, "ann", "why", frozenset(causes))
    return replace(made, **more)  # type: ignore[arg-type]


def ack(*causes: str, **more: object) -> Silence:
    return silence(SilenceKind.ACKNOWLEDGEMENT, Matcher(MatcherKind.CARD, "c"), *causes, **more)


def cards(
    incidents: Sequence[Incident],
    *silences: Silence,
    statuses: Sequence[DecisionStatus] = (),
    readings: Sequence[Reading] = READINGS,
    now_ms: int = T0,
) -> list[Card]:
    return [one.card for one in made(incidents, *silences, statuses=statuses, readings=readings, now_ms=now_ms)]


def made(
    incidents: Sequence[Incident],
    *silences: Silence,
    statuses: Sequence[DecisionStatus] = (),
    readings: Sequence[Reading] = READINGS,
    now_ms: int = T0,
) -> list[MadeCard]:
    members = [m for one in incidents for m in one.members]
    inputs = CardInputs(
        snapshot_of(readings, members, (), now_ms, DAY), incidents, statuses, (), {}, (), CardLife(),
        Controls(silences=silences), CostSettings(), Prices(), 5 * MINUTE,
    )  # fmt: skip
    return make_cards(inputs)


def test_an_acknowledged_card_says_by_whom_and_until_when_and_comes_behind_the_others() -> None:
    first, second = incident(finding(ONE)), incident(finding(TWO, severity=Severity.WARNING))
    assert [card.id for card in cards([first, second])] == [first.id, second.id]
    made = cards([first, second], ack(first.id))
    assert [card.id for card in made] == [second.id, first.id]
    taken = made[1]
    assert (taken.state, taken.acknowledged_by, taken.hidden) == (CardState.ACKNOWLEDGED, "ann", None)
    assert taken.acknowledged_until == to_iso(T0 + HOUR)
    assert cards([first], ack(first.id), now_ms=T0 + HOUR)[0].state is CardState.OPEN, "its end is reached"


def test_what_is_new_on_the_card_was_not_acknowledged() -> None:
    first, second = incident(finding(ONE)), incident(finding(ONE, "other"))
    assert cards([first, second], ack(first.id))[0].state is CardState.OPEN
    both = [ack(first.id, until_ms=T0 + HOUR), ack(second.id, id="s2", until_ms=T0 + 2 * HOUR, actor="bob")]
    taken = cards([first, second], *both)[0]
    assert (taken.acknowledged_by, taken.acknowledged_until) == ("ann", to_iso(T0 + HOUR)), "who ends first"


def test_a_root_that_was_a_member_is_known_again() -> None:
    root, member = finding(ONE), finding(ONE, "other")
    assert cards([incident(member, root)], ack(root.id, member.id))[0].state is CardState.ACKNOWLEDGED
    assert cards([incident(finding(ONE, "deeper"), root)], ack(root.id))[0].state is CardState.OPEN


def test_while_an_action_runs_the_card_says_so() -> None:
    one = incident(finding(ONE))
    made = Decision(
        "hot", one.root.subject, ActionKind.CORDON, Mode.ACT, Severity.CRITICAL, Category.THERMAL, T0, T0 + HOUR, "k",
        "Cordon.", (one.id,), one.id,
    )  # fmt: skip
    runs = DecisionStatus(made, (), Ruling.ALLOW, DecisionState.EXECUTING, None, "", T0)
    card = cards([one], ack(one.id), statuses=[runs])[0]
    assert (card.state, card.acknowledged_by) == (CardState.ACTING, "ann")


def test_a_place_hides_what_lies_wholly_in_it() -> None:
    inside, across = incident(finding(ONE)), incident(finding(TWO), finding(ONE))
    for matcher, hidden in (
        (Matcher(MatcherKind.HOST, "node-0"), {inside.id}),
        (Matcher(MatcherKind.RACK, "r1"), {inside.id, across.id}),
        (Matcher(MatcherKind.RACK, "r2"), set()),
    ):
        found = cards([inside, across], silence(SilenceKind.MAINTENANCE, matcher))
        assert {card.id for card in found if card.hidden} == hidden
        assert all(card.state is CardState.OPEN for card in found)


def test_a_snooze_ends_when_it_gets_worse_and_maintenance_does_not() -> None:
    mild, grave = incident(finding(ONE, severity=Severity.WARNING)), incident(finding(ONE))
    where = Matcher(MatcherKind.HOST, "node-0")
    snooze, plan = silence(SilenceKind.SNOOZE, where), silence(SilenceKind.MAINTENANCE, where)
    shown = [[card.hidden is not None for card in cards([one], by)] for one in (mild, grave) for by in (snooze, plan)]
    assert shown == [[True], [True], [False], [True]]
    paged = replace(snooze, level=AlertLevel.PAGE)
    assert cards([grave], paged)[0].hidden is not None
    hidden = cards([mild], snooze)[0].hidden
    assert hidden is not None
    assert (hidden.id, hidden.by, hidden.until, hidden.reason) == ("s1", "ann", to_iso(T0 + HOUR), "why")


def test_silent_gpus_of_a_place_are_hidden_too() -> None:
    lost = [replace(one, values={}, missing={"gpu_power_watts": Missing.LOST}) for one in READINGS]
    plan = silence(SilenceKind.MAINTENANCE, Matcher(MatcherKind.HOST, "node-0"))
    assert [bool(card.hidden) for card in cards([], plan, readings=[lost[0], READINGS[1]])] == [True]
    assert [bool(card.hidden) for card in cards([], plan, readings=lost)] == [False], "they fell silent together"


def test_a_card_of_many_places_is_taken_on_as_a_whole_or_by_the_id_of_one_part() -> None:
    full = [
        incident(replace(finding(one, f"full-{n}", Severity.WARNING), category=Category.MEMORY))
        for n, one in enumerate((ONE, TWO))
    ]
    (card,) = made(full)
    taken: list[tuple[str, list[str]]] = []

    def acknowledge(name: str, ids: list[str], *_: object, **__: object) -> Silence:
        taken.append((name, ids))
        return silence(SilenceKind.ACKNOWLEDGEMENT, Matcher(MatcherKind.CARD, name), *ids)

    brain = SimpleNamespace(
        actions=SimpleNamespace(silences=SimpleNamespace(acknowledge=acknowledge)),
        clock=SimpleNamespace(now_ms=lambda: T0),
    )
    service = SilenceService(brain, lambda: [card], lambda _: card)  # type: ignore[arg-type]
    asked = AcknowledgeRequest(for_seconds=3600)
    names = [service.acknowledge(name, asked, "ann", personal=True).name for name in (card.card.id, full[0].id)]
    assert names == [card.card.id, full[0].id]
    assert [set(ids) for _, ids in taken] == [{one.id for one in full}, {full[0].id}]
    assert cards(full, ack(*taken[0][1]))[0].state is CardState.ACKNOWLEDGED
    assert cards(full, ack(*taken[1][1]))[0].state is CardState.OPEN
