"""Cards: one cause, one card, one action; made of incidents, decisions, forecasts and the journal when read."""

from __future__ import annotations

import hashlib
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from tocsin.actions.model.alert_silences import AlertSilences
from tocsin.actions.model.catalogue import ACTIONS
from tocsin.actions.model.controls import Controls
from tocsin.actions.model.goals import in_words
from tocsin.actions.model.ledger_entry import WAITING, DecisionStatus
from tocsin.actions.model.silences import Cause, cause_of
from tocsin.client.models import GpuState
from tocsin.client.models_cards import Card, CardAction, CardEvidence, CardState, CardTouches
from tocsin.config.settings import CostSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import optional_iso, to_iso
from tocsin.domain.decision import Decision, DecisionState, MigrateParameters, OutcomeStatus, Ruling
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Incident, Severity, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.phrase import in_chinese
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.prediction import Prediction, most_urgent
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.usage import Prices
from tocsin.queries.alike import others, yeses
from tocsin.queries.attention import Ranking
from tocsin.queries.card_groups import Gravity, gravity, is_housekeeping, is_job_crash, of_one_cause
from tocsin.queries.card_life import REMEMBERED_MS, CardLife, CauseRecord, gpus_of, place_key, record_of, where_of
from tocsin.queries.card_silences import marker, sayer
from tocsin.queries.card_standing import BLOCKED, RUNS, standing
from tocsin.queries.card_words import (
    CardCause,
    Names,
    Words,
    action_words,
    as_line,
    choice_of,
    clock,
    expected_cause,
    headline,
    left_over,
    named,
    next_of,
    no_action,
    obstacle_of,
)
from tocsin.queries.fleet_map import FleetMapSnapshot, is_warning
from tocsin.rules.conditions.risk import Risk
from tocsin.rules.episodes import QUIET_MS
from tocsin.rules.schema import RuleSet
from tocsin.rules.symptoms import Symptom, code_of

NAMES_SHOWN = 3
"""Names of each kind of what a card touches."""
FINDINGS_SHOWN = 12
"""Findings among the evidence of a card; the rest is counted."""
_EVERYWHERE = Subject(SubjectKind.FLEET, "fleet")
"""Subject of a card about what is in many places."""


@dataclass(frozen=True)
class CardInputs:
    """What cards are made of, as of `snapshot.now_ms`; `levels` are as of `forecast_levels`, `signs`
    the rules that foretell failures.

    What was last seen more than `fresh_ms` ago is no longer seen.
    """

    snapshot: FleetMapSnapshot
    incidents: Sequence[Incident]
    statuses: Sequence[DecisionStatus]
    predictions: Sequence[Prediction]
    levels: Mapping[str, AlertLevel]
    signs: Collection[str]
    life: CardLife
    controls: Controls
    cost: CostSettings
    price: Prices
    fresh_ms: int
    alert_silences: AlertSilences = field(default_factory=AlertSilences)
    cell: str = ""
    """The brain's cell: each has a card of its own about what is in many places."""


@dataclass(frozen=True)
class MadeCard:
    """A card, the ids by which it is asked for, its own and those of all incidents that it stands for, and its causes
    as silences see them; none of a resolved card. `many` says that they are of many places, and not of one cause."""

    card: Card
    ids: frozenset[str]
    causes: tuple[Cause, ...] = ()
    many: bool = False


def forecast_levels(ruleset: RuleSet) -> dict[str, AlertLevel]:
    """The level of the gravest rule about each target and metric that is forecast."""
    found: dict[str, AlertLevel] = {}
    for rule in ruleset:
        for condition in rule.conditions:
            names = [condition.target] if isinstance(condition, Risk) else []
            names += [ref.key for ref in condition.metrics()] if condition.expects else []
            for name in names:
                level = rule.level or rule.table.severity.level
                found[name] = max(level, found.get(name, level), key=lambda one: one.rank)
    return found


def make_cards(inputs: CardInputs) -> list[MadeCard]:
    """Every card, the most urgent first, acknowledged ones behind them, then what is hidden, resolved ones last.

    The incidents of one place are one card, about the worst of them. Load, memory in use and fragmentation, which break
    nothing, are one card for the fleet; notes are on it where a yes would start something. A decision that waits for a
    person is on exactly one card.
    """
    maker = _Maker(inputs)
    made = [*maker.of_incidents(), *maker.silent(), *maker.expected(), *maker.left_over(), *maker.resolved()]
    mark = marker(inputs.controls.silences, maker.gpus_on, inputs.snapshot.now_ms)
    say_who = sayer(inputs.alert_silences, inputs.statuses, maker.gpus_on, inputs.snapshot.now_ms)
    marked = (replace(one, card=say_who(mark(one.card, one.causes), one.causes)) for one in made)
    return sorted(marked, key=lambda one: _rank(one.card))


def _rank(card: Card) -> tuple[bool, bool, bool, int, float, float, str, str]:
    urgent = card.health in (GpuState.LOST, GpuState.CRITICAL) or card.level is AlertLevel.PAGE
    group = 0 if urgent else 1 if card.health is GpuState.WARNING or card.probability else 2
    resolved, taken = card.state is CardState.RESOLVED, card.state is CardState.ACKNOWLEDGED
    cost, chance = -(card.waiting_gpu_hours or 0.0), -(card.probability or 0.0)
    return resolved, card.hidden is not None, taken, group, cost, chance, card.place, card.id


@dataclass
class _Maker:
    inputs: CardInputs
    _claimed: set[str] = field(default_factory=set)
    _listed: set[str] = field(default_factory=set)
    _places: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        given = self.inputs
        self._now = given.snapshot.now_ms
        self._names = Names(given.snapshot.readings)
        self._ranking = Ranking(given.snapshot, given.cost, given.price)
        actions = [one for one in given.statuses if one.decision.action is not ActionKind.NOTIFY]
        self._waiting = [one for one in actions if one.waits_for_person]
        self._yeses = yeses(actions, given.incidents)
        self._by_incident = grouped((one.decision.incident, one) for one in actions)
        self._by_cause = grouped((one.decision.findings[0], one) for one in actions if one.decision.findings)
        self._earlier = grouped((one.where, one) for one in given.life.ended.values())

    def gpus_on(self, subject: Subject) -> list[Gpu]:
        """The GPUs of a GPU or a host that are known."""
        return [one.gpu for one in self._ranking.on(subject)]

    # ------------------------------------------------------------------ open incidents

    def of_incidents(self) -> Iterator[MadeCard]:
        """A card for each cause; one for all early signs and memory that runs full, one for what breaks nothing."""
        broken: list[Incident] = []
        coming: list[Incident] = []
        rest: list[Incident] = []
        for one in self.inputs.incidents:
            if is_job_crash(one):
                broken.append(one)
            elif one.alert_level is AlertLevel.NOTE or is_housekeeping(one):
                rest.append(one)
            elif self._is_sign(one):
                coming += [] if self._is_past(one) else [one]
            elif not self._is_past(one):
                broken.append(one)
        hit = {uuid for one in broken for uuid in gpus_of(one)}
        # Where something has failed its signs are signs no more.
        shown = [bool(gpus_of(one)) and gpus_of(one) <= hit for one in coming]
        broken += [one for one, there in zip(coming, shown, strict=True) if there]
        coming = [one for one, there in zip(coming, shown, strict=True) if not there]
        for found in of_one_cause(broken, self._gravity):
            yield self._of_incidents(found)
        told = [one for one in rest if one.alert_level is not AlertLevel.NOTE or self._asks(one)]
        for found, kind in ((coming, Symptom.FORECAST), (told, Symptom.ALONE)):
            if found:
                yield self._of_many(found, kind)

    def _of_many(self, found: Sequence[Incident], kind: Symptom) -> MadeCard:
        """The card about all of `kind`. It keeps its id whatever comes and goes; of several decisions that are wanted
        none is its action. What breaks nothing is a note."""
        together = len(found) > 1
        made, name = self._of_incidents(found, kind if together else None), _name(f"all {kind}", self.inputs.cell)
        made = replace(made, ids=made.ids | {name}, many=together)
        if not together:
            return made
        decisions = list({one.decision.id: one for each in found for one in self._decisions(each)}.values())
        wanted = [one for one in decisions if standing(one) < BLOCKED]
        runs = made.card.state in (CardState.ACTING, CardState.VERIFYING)
        told: dict[str, Any] = {
            "id": name,
            "since": to_iso(min(one.opened_ms for one in found)),
            "reopened_from": None,
            "state": made.card.state if runs else CardState.OPEN,
        }
        if kind is Symptom.ALONE:
            told |= {"level": AlertLevel.NOTE, "health": GpuState.OK}
        if len(wanted) > 1:
            worst_first = sorted(found, key=self._gravity, reverse=True)
            then, then_zh = choice_of(wanted)
            told |= {"next": then, "next_zh": then_zh, "action": None}
            told |= {"obstacle": f"{then}, each by itself: tocsin status.", "obstacle_zh": f"{then_zh}，互相独立。"}
            told["evidence"] = [*self._findings(worst_first), *self._said(None, decisions)]
        return replace(made, card=made.card.model_copy(update=told))

    def _gravity(self, incident: Incident) -> Gravity:
        """Where its cause has ended and nothing is done about what is left, it wakes nobody."""
        done = any(standing(one) <= BLOCKED for one in self._decisions(incident))
        level = incident.alert_level if done or not incident.cause_cleared else _eased(incident.alert_level)
        return gravity(incident, level)

    def _asks(self, incident: Incident) -> bool:
        return any(status.waits_for_person for status in self._decisions(incident))

    def _is_past(self, incident: Incident) -> bool:
        """Whether it tells of a forecast that has not been renewed: nobody says any more that it will come."""
        root = incident.root
        return root.expected and self._now - root.last_ms > self.inputs.fresh_ms

    def _is_sign(self, incident: Incident) -> bool:
        """Whether nothing has failed: all of it only foretells, or memory is expected to run full."""
        if incident.root.expected:
            return incident.root.category is Category.MEMORY
        return all(member.rule in self.inputs.signs for member in incident.members)

    def _of_incidents(self, found: Sequence[Incident], together: Symptom | None = None) -> MadeCard:
        """One card about the worst of `found`; those that are told `together` are of many places."""
        own = {one.id: self._decisions(one) for one in found}
        self._listed |= {member.subject.key for one in found for member in one.members}
        worst = max(found, key=self._gravity)
        trouble = replace(record_of(worst).trouble, probability=_confidence(worst)[1])
        if together is not None:
            trouble = replace(trouble, subject=_EVERYWHERE, place=None, gpus=len(found))
            if len({one.root.rule for one in found}) > 1:
                trouble = replace(trouble, symptom=together, category=None)
        else:
            self._places |= {record_of(one).where for one in found}
        return self._of_incident(worst, [one for one in found if one is not worst], own, trouble)

    def _decisions(self, incident: Incident) -> list[DecisionStatus]:
        """Decisions about an incident; under an earlier root it had another id."""
        found = {one.decision.id: one for one in self._by_incident.get(incident.id, ())}
        for member in incident.members:
            found |= {one.decision.id: one for one in self._by_cause.get(member.id, ())}
        return list(found.values())

    def _of_incident(
        self,
        worst: Incident,
        others: Sequence[Incident],
        own: Mapping[str, list[DecisionStatus]],
        trouble: CardCause,
    ) -> MadeCard:
        root = worst.root
        # What is left of a place that had a graver cause: what is still done about that one is the card's as well.
        earlier = self._earlier.get(where_of(trouble), ())
        found = (worst, *others)
        told = [status for one in found for status in own[one.id]]
        decisions = list({one.decision.id: one for one in (*told, *self._running(earlier))}.values())
        lead = self._lead(decisions, root.subject, root.id)
        warned = most_urgent(self.inputs.snapshot.warnings.get(root.subject.name, ()))
        health, reopened = self._ranking.state(worst), self.inputs.life.came_again.get(worst.id)
        (words, words_zh), chance = _confidence(worst)
        hours = self._ranking.cost_of_waiting(self._ranking.at_stake(root.subject), worst, warned, health)
        evidence = [*self._findings(found), *self._said(lead, decisions), *self._before(trouble)]
        card = self._card(worst.id, trouble, lead, evidence, health=health, level=worst.alert_level)
        card = self._eased(card, worst, lead)
        return MadeCard(
            card.model_copy(
                update={
                    "since": to_iso(worst.opened_ms),
                    "state": _state(lead, reopened),
                    "touches": self._touches(found),
                    "confidence": words,
                    "confidence_zh": words_zh,
                    "probability": chance,
                    "waiting_gpu_hours": hours,
                    **dict(zip(("waiting_money", "currency"), self._ranking.money(root.subject, hours), strict=True)),
                    "reopened_from": optional_iso(reopened),
                    "simulated": root.simulated,
                }
            ),
            frozenset([one.id for one in found] + [one.id for one in earlier]),
            tuple(cause_of(one) for one in found),
        )

    def _eased(self, card: Card, incident: Incident, lead: DecisionStatus | None) -> Card:
        """Where its cause has ended and nothing is done about what is left, a card says that and wakes nobody."""
        if not incident.cause_cleared or (lead is not None and standing(lead) <= BLOCKED):
            return card
        left, left_zh = left_over(incident, self._names, self._now)
        return card.model_copy(update={"level": _eased(card.level), "obstacle": left, "obstacle_zh": left_zh})

    def _running(self, causes: Iterable[CauseRecord]) -> list[DecisionStatus]:
        """What runs, or is looked at, of what was decided about causes that are over."""
        return [each for one in causes for each in self._by_incident.get(one.id, ()) if each.state in RUNS]

    def _lead(self, decisions: Sequence[DecisionStatus], subject: Subject, root: str = "") -> DecisionStatus | None:
        """The decision that the card is about: what runs before what waits for a yes, before what is held; of several
        that stand alike the one about the finding `root`, then one on `subject`."""
        self._claimed |= {one.decision.id for one in decisions}

        def order(one: DecisionStatus) -> tuple[int, bool, bool, int, str]:
            of_root, made = root in one.decision.findings[:1], one.decision
            return standing(one), not of_root, made.subject.name != subject.name, -one.updated_ms, made.id

        return min(decisions, key=order, default=None)

    def _card(
        self,
        name: str,
        trouble: CardCause,
        lead: DecisionStatus | None,
        evidence: Sequence[CardEvidence],
        *,
        health: GpuState,
        level: AlertLevel,
        head: Words | None = None,
    ) -> Card:
        expires_ms = None if lead is None else self.inputs.controls.expiry_ms(lead.decision)
        english, chinese = head or headline(trouble, self._names)
        then, then_zh = next_of(lead, self._now, expires_ms)
        runs = lead is not None and standing(lead) < BLOCKED
        why, guard = (no_action(trouble), "") if lead is None else obstacle_of(lead, self._names)
        (obstacle, obstacle_zh), guard = (("", ""), "") if runs else (why, guard)
        subject = trouble.subject
        return Card(
            id=name,
            headline=english,
            headline_zh=chinese,
            state=_state(lead, None),
            health=health,
            level=level,
            place=where_of(trouble),
            subject=subject,
            index=self._names.index(subject.name) if subject.kind is SubjectKind.GPU else None,
            next=then,
            next_zh=then_zh,
            action=self._action(lead, expires_ms) if lead is not None and runs else None,
            obstacle=obstacle,
            obstacle_zh=obstacle_zh,
            obstacle_guard=guard,
            evidence=list(evidence),
        )

    def _action(self, status: DecisionStatus, expires_ms: int | None) -> CardAction:
        decision = status.decision
        cost, benefit = _worth(decision)
        return CardAction(
            kind=decision.action,
            sentence=self._names.plain(decision.sentence),
            cause_zh=self._names.plain(decision.parameters.context.cause_zh),
            decision=decision.id,
            cost_gpu_hours=cost,
            benefit_gpu_hours=benefit,
            can_approve=status.waits_for_person,
            until=optional_iso(expires_ms) if status.waits_for_person else None,
            alike=others(status, self._yeses),
        )

    # ------------------------------------------------------------------ what it touches and rests on

    def _touches(self, incidents: Iterable[Incident]) -> CardTouches:
        uuids: dict[str, Reading] = {}
        hosts: dict[str, None] = {}
        named_only: dict[str, str] = {}
        for one in incidents:
            named_only |= {
                member.subject.name: member.subject.host for member in one.members if _is_gpu(member.subject)
            }
            hosts |= dict.fromkeys(member.subject.host for member in one.members if member.subject.host)
            for member in one.members:
                uuids |= {reading.gpu.uuid: reading for reading in self._ranking.on(member.subject)}
        return self._touched(uuids, hosts, named_only)

    def _touched(
        self, known: Mapping[str, Reading], hosts: Mapping[str, None], named_only: Mapping[str, str]
    ) -> CardTouches:
        gpus = {uuid: one.gpu.host for uuid, one in known.items()} | dict(named_only)
        jobs = dict.fromkeys(job for uuid in gpus if (job := self._ranking.jobs.get(uuid)))
        owners = dict.fromkeys(owner.user for one in known.values() for owner in one.owners if owner.user)
        return CardTouches(
            gpus=len(gpus),
            hosts=len(hosts),
            jobs=len(jobs),
            owners=len(owners),
            gpu_names=[self._names.gpu(uuid, host) for uuid, host in list(gpus.items())[:NAMES_SHOWN]],
            host_names=list(hosts)[:NAMES_SHOWN],
            job_names=list(jobs)[:NAMES_SHOWN],
            owner_names=list(owners)[:NAMES_SHOWN],
        )

    def _findings(self, incidents: Sequence[Incident]) -> list[CardEvidence]:
        roots = [one.root for one in incidents]
        known = {one.id for one in roots}
        members = [*roots, *(member for one in incidents for member in one.members if member.id not in known)]
        shown = [
            CardEvidence(
                kind="finding",
                text=self._names.plain(one.sentence),
                text_zh=self._names.plain(one.sentence_zh),
                at=to_iso(one.started_ms),
                name=one.rule,
                xid=code_of(one),
            )
            for one in members[:FINDINGS_SHOWN]
        ]
        if len(members) > FINDINGS_SHOWN:
            rest = len(members) - FINDINGS_SHOWN
            more, more_zh = f"and {rest} more findings", f"另有 {rest} 个发现"
            shown.append(CardEvidence(kind="finding", text=more, text_zh=more_zh))
        return shown

    def _said(self, lead: DecisionStatus | None, decisions: Sequence[DecisionStatus]) -> list[CardEvidence]:
        """What guards answered about the decision that leads, and what other decisions there are."""
        told = []
        for verdict in lead.verdicts if lead is not None and lead.state in WAITING else ():
            if lead is not None and verdict.ruling is not Ruling.ALLOW:
                text = self._names.plain(verdict.reason or str(verdict.ruling))
                chinese = self._names.plain(in_chinese(verdict.said))
                guard, decision = verdict.guard, lead.decision.id
                told.append(CardEvidence(kind="guard", text=text, text_zh=chinese, name=guard, decision=decision))
        return told + [
            CardEvidence(
                kind="decision",
                text=f"{one.state}: {self._names.plain(one.decision.sentence)}",
                text_zh=self._names.plain(one.decision.parameters.context.cause_zh),
                at=to_iso(one.updated_ms),
                name=one.decision.action,
                decision=one.decision.id,
            )
            for one in sorted(decisions, key=lambda one: (standing(one), -one.updated_ms))[: FINDINGS_SHOWN + 1]
            if one is not lead
        ]

    def _before(self, trouble: CardCause) -> list[CardEvidence]:
        """Causes that ended at the same place within the last day."""
        return [
            CardEvidence(
                kind="earlier",
                text=f"{said}, over since {clock(one.ended_ms, self._now)}",
                text_zh=f"{chinese}，{clock(one.ended_ms, self._now)} 起已消失",
                at=to_iso(one.ended_ms),
                name=one.rule,
            )
            for one in self._earlier.get(where_of(trouble), ())
            for said, chinese in [headline(one.trouble, self._names)]
        ]

    # ------------------------------------------------------------------ what no incident tells of

    def silent(self) -> Iterator[MadeCard]:
        """GPUs that are lost or stale and that no incident tells of: one card for those that fell silent together."""
        for state, members in _together(self._ranking.quiet(self._listed)):
            subject, place = _shared(members)
            where = str(place) if place is not None else place_key(subject)
            if where in self._places:
                continue
            self._places.add(where)
            self._listed |= {f"{SubjectKind.GPU}:{one.gpu.uuid}" for one in members}
            yield self._silent_card(state, members, subject, place)

    def _silent_card(
        self, state: GpuState, members: Sequence[Reading], subject: Subject, place: Place | None
    ) -> MadeCard:
        symptom = Symptom.BUS if state is GpuState.LOST else Symptom.DARK
        since_ms = min(one.at_ms for one in members)
        trouble = CardCause(
            symptom, Category.TELEMETRY, Severity.WARNING, ActionKind.NOTIFY, "", subject, place, len(members)
        )
        at = clock(since_ms, self._now)
        text, text_zh = f"no reading since {at}", f"自 {at} 起没有读数"
        seen = CardEvidence(kind="finding", text=text, text_zh=text_zh, at=to_iso(since_ms))
        name = _name("silent", where_of(trouble))
        card = self._card(name, trouble, None, [seen], health=state, level=AlertLevel.WARNING)
        hosts = dict.fromkeys(one.gpu.host for one in members)
        update = {
            "since": to_iso(since_ms),
            "touches": self._touched({one.gpu.uuid: one for one in members}, hosts, {}),
            "confidence": "measured: no reading comes",
            "confidence_zh": "已测得：没有读数",
            "simulated": members[0].gpu.simulated,
        }
        subjects = tuple(Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool) for one in members)
        cause = Cause(name, AlertLevel.WARNING, subjects)
        return MadeCard(card.model_copy(update=update), frozenset({name}), (cause,))

    def expected(self) -> Iterator[MadeCard]:
        """What is only forecast: the most urgent forecast of each subject without another card."""
        unlisted = [
            one
            for one in self.inputs.predictions
            if is_warning(one) and self._level(one) is not AlertLevel.NOTE and one.subject.key not in self._listed
        ]
        for subject, found in grouped((one.subject, one) for one in unlisted).items():
            soonest = most_urgent(found)
            if soonest is None or place_key(subject) in self._places:
                continue
            trouble = expected_cause(soonest)
            told = CardEvidence(
                kind="forecast",
                text=self._names.plain(soonest.sentence),
                text_zh=self._names.plain(soonest.sentence_zh),
                at=to_iso(soonest.at_ms),
            )
            name = _name("forecast", subject.key)
            card = self._card(name, trouble, None, [told], health=GpuState.OK, level=self._level(soonest))
            gpus = self._ranking.at_stake(subject)
            on = {one.gpu.uuid: one for one in self._ranking.on(subject)}
            made = card.model_copy(
                update={
                    "touches": self._touched(on, dict.fromkeys(one.gpu.host for one in on.values()), {}),
                    "confidence": _FORETOLD[0],
                    "confidence_zh": _FORETOLD[1],
                    "probability": soonest.probability,
                    "waiting_gpu_hours": self._ranking.expected_loss(gpus, None, soonest, GpuState.OK),
                    "simulated": soonest.simulated,
                }
            )
            yield MadeCard(made, frozenset({name}), (Cause(name, made.level, (subject,)),))

    def _level(self, prediction: Prediction) -> AlertLevel:
        """That of the rule about what is forecast: where the thing itself is a note, so is that it comes."""
        levels = self.inputs.levels
        of_rule = levels.get(prediction.target, levels.get(prediction.metric, prediction.alert_level))
        return min(of_rule, prediction.alert_level, key=lambda level: level.rank)

    def left_over(self) -> Iterator[MadeCard]:
        """Decisions that wait for a person and whose cause is over or was never one, such as giving back."""
        unclaimed = [one for one in self._waiting if one.decision.id not in self._claimed]
        for subject, found in grouped((one.decision.subject, one) for one in unclaimed).items():
            lead = self._lead(found, subject)
            assert lead is not None
            decision = lead.decision
            where, where_zh = self._names.subject(subject)
            head = (
                f"{where}: {named(decision.action)} is due",
                f"{where_zh}：待执行 {action_words(decision.action)[1]}",
            )
            trouble = CardCause(Symptom.ALONE, decision.category, decision.severity, decision.action, "", subject, None)
            told = self._said(lead, found)
            card = self._card(decision.id, trouble, lead, told, health=GpuState.OK, level=AlertLevel.WARNING, head=head)
            update = {"since": to_iso(decision.at_ms), "simulated": decision.simulated}
            update |= {"confidence": "planned", "confidence_zh": "计划内"}
            cause = Cause(decision.id, AlertLevel.WARNING, (subject,))
            ids = frozenset({decision.id, decision.incident} - {""})
            yield MadeCard(card.model_copy(update=update), ids, (cause,))

    # ------------------------------------------------------------------ what is over

    def resolved(self) -> Iterator[MadeCard]:
        """Causes that ended within the last day at places without an open card: one card for each place.

        It is resolved once nothing runs any more of what was decided about them.
        """
        for where, found in self._earlier.items():
            told = [one for one in found if one.level is not AlertLevel.NOTE]
            fresh = [one for one in told if self._now - one.ended_ms <= REMEMBERED_MS]
            if where in self._places or not fresh:
                continue
            worst = max(fresh, key=lambda one: (one.gravity, one.ended_ms, one.id))
            yield self._of_record(worst, fresh)

    def _of_record(self, worst: CauseRecord, found: Sequence[CauseRecord]) -> MadeCard:
        decisions = [status for one in found for status in self._by_incident.get(one.id, ())]
        lead = self._lead(self._running(found), worst.subject)
        card = self._card(
            worst.id, worst.trouble, lead, self._said(lead, decisions), health=GpuState.OK, level=worst.level
        )
        ended_ms = max(one.ended_ms for one in found)
        hosts = dict.fromkeys(host for one in found for host in one.hosts)
        touches = CardTouches(
            gpus=max(one.gpus for one in found), hosts=len(hosts), host_names=list(hosts)[:NAMES_SHOWN]
        )
        update: dict[str, Any] = {
            "since": to_iso(min(one.opened_ms for one in found)),
            "obstacle": "",
            "obstacle_zh": "",
            "obstacle_guard": "",
            "touches": touches,
            "simulated": worst.simulated,
        }
        if lead is None:
            then, then_zh = as_line(self._after({one.id for one in found}))
            proof, proof_zh = as_line(self._proof(decisions, ended_ms))
            update |= {"resolved": to_iso(ended_ms), "proof": proof, "proof_zh": proof_zh}
            update |= {"next": then, "next_zh": then_zh}
            update["state"] = CardState.RESOLVED
        return MadeCard(card.model_copy(update=update), frozenset(one.id for one in found))

    def _proof(self, decisions: Sequence[DecisionStatus], ended_ms: int) -> Words:
        """The measured figure of the action that worked, else that nothing is found any more."""
        worked = [
            one
            for one in decisions
            if one.outcome is not None
            and one.outcome.status is OutcomeStatus.SUCCEEDED
            and one.outcome.measured is not None
        ]
        newest = max(worked, key=lambda one: one.updated_ms, default=None)
        if newest is None or newest.outcome is None or newest.decision.goal is None:
            at = clock(ended_ms, self._now)
            return f"what was found had cleared at {at}", f"发现的问题已于 {at} 消失"
        action, action_zh = action_words(newest.decision.action)
        figures = in_words(newest.decision.goal, newest.outcome.measured)
        return f"{action} worked: {figures}", f"{action_zh} 有效：{in_chinese(figures) or figures}"

    def _after(self, incidents: set[str]) -> Words:
        """What is still in effect of what was done about a cause that is over."""
        for effect in self.inputs.controls.effects.values():
            if effect.incident in incidents and ACTIONS[effect.action].inverse is not None:
                action, action_zh = action_words(effect.action)
                said = f"{action} stays in effect until it is given back: tocsin undo {effect.id}"
                return said, f"{action_zh} 仍然生效，撤销：tocsin undo {effect.id}"
        return "nothing more is to be done", "无需再处理"


def _eased(level: AlertLevel) -> AlertLevel:
    """That of a cause that has ended: what is left of it is for the working day."""
    return min(level, AlertLevel.WARNING, key=lambda one: one.rank)


def _together(groups: Iterable[tuple[GpuState, Sequence[Reading]]]) -> list[tuple[GpuState, list[Reading]]]:
    """Silent GPUs of hosts as groups that fell silent within QUIET_MS of each other, in one state."""
    made: list[tuple[GpuState, list[Reading]]] = []
    for state, members in sorted(groups, key=lambda one: (one[0].rank, _last_ms(one[1]), one[1][0].gpu.host)):
        last = made[-1] if made else None
        if last and last[0] is state and _last_ms(members) - _last_ms(last[1]) < QUIET_MS:
            last[1].extend(members)
        else:
            made.append((state, list(members)))
    return made


def _last_ms(readings: Iterable[Reading]) -> int:
    return max(one.at_ms for one in readings)


def _shared(members: Sequence[Reading]) -> tuple[Subject, Place | None]:
    """What silent GPUs share: the GPU, its host, the rack of several hosts, else nothing but the fleet."""
    gpu, hosts = members[0].gpu, {one.gpu.host for one in members}
    racks = {one.gpu.rack for one in members}
    if len(members) == 1:
        return Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool), None
    if len(hosts) == 1:
        return Subject(SubjectKind.HOST, gpu.host, gpu.host, gpu.pool), Place(PlaceKind.HOST, gpu.host)
    return _EVERYWHERE, Place(PlaceKind.RACK, gpu.rack) if len(racks) == 1 and gpu.rack else None


def _is_gpu(subject: Subject) -> bool:
    return subject.kind is SubjectKind.GPU


def _state(lead: DecisionStatus | None, reopened_ms: int | None) -> CardState:
    if lead is not None and lead.state is DecisionState.EXECUTING:
        return CardState.ACTING
    if lead is not None and lead.state is DecisionState.VERIFYING:
        return CardState.VERIFYING
    return CardState.OPEN if reopened_ms is None else CardState.REOPENED


_FORETOLD: Words = ("a forecast: it has not happened yet", "预测：尚未发生")


def _confidence(incident: Incident) -> tuple[Words, float | None]:
    """How sure it is; what has happened has no probability, whatever is forecast beside it."""
    root = incident.root
    if not root.expected:
        return (("reported by the driver", "驱动报告") if root.told else ("measured", "已测得")), None
    chance = next((item.value for item in root.evidence if item.name.startswith(PREDICTION_EVIDENCE)), None)
    return _FORETOLD, chance


def _worth(decision: Decision) -> tuple[float | None, float | None]:
    """Expected cost and benefit of a decision in GPU-hours, where choices were compared or a move was planned."""
    parameters = decision.parameters
    losses = parameters.expected_losses
    if decision.action in losses and ActionKind.NOTIFY in losses:
        cost = losses[decision.action]
        return cost, round(losses[ActionKind.NOTIFY] - cost, 3)
    if isinstance(parameters, MigrateParameters):
        return parameters.cost_gpu_hours, parameters.gain_gpu_hours
    return None, None


def _name(kind: str, text: str) -> str:
    """Id of a card that no incident names, in the form of theirs."""
    return hashlib.sha256(f"{kind}|{text}".encode()).hexdigest()[:16]
