"""From incidents to intentions: what ought to be done, whatever the guards will say."""

from __future__ import annotations

from collections.abc import Callable, Container, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace
from functools import partial

from tocsin.actions.guards.limits import needs_person, shortfall
from tocsin.actions.guards.place import obstacle
from tocsin.actions.model.catalogue import ACTIONS, CONDEMNING, DRIVER_VERDICTS, Scope, is_disruptive
from tocsin.actions.model.cost import cheapest, in_words, prices, stake_of
from tocsin.actions.model.goals import goal_of
from tocsin.actions.model.ladder import climbed, evidence_of
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.questions import asked_about
from tocsin.actions.model.ranks import own_ranks, ranks_of
from tocsin.actions.model.scope import base_key
from tocsin.actions.model.sentences import action_sentence, cause_in_chinese, deed, eta_clause, in_english, joined
from tocsin.actions.model.view import FleetView
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.decision import (
    PARAMETERS,
    ActionParameters,
    Decision,
    DecisionContext,
    Mode,
    NotifyParameters,
    Rank,
    RankedParameters,
    RmaTicketParameters,
    ScaleOutParameters,
    ranks_in,
)
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.notice import deadline_in
from tocsin.domain.phrase import Phrase, say
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.rules.symptoms import Symptom, is_standing, symptom_of

_CONSEQUENCE = {
    Mode.OBSERVE: "observe mode: it is only recorded",
    Mode.PROPOSE: "it waits for a person's approval",
    Mode.ACT: "it runs once every guard allows",
}
"""How far a mode lets a decision go, as an operator reads it."""

_RECOVERY_METRIC = "gpu_recovery_action"
_OWED = frozenset({_RECOVERY_METRIC, "gpu_row_remap_pending"})
"""What a GPU says of itself until it has been repaired."""
_KINDS = list(ActionKind)
_HARD = frozenset({Category.HARDWARE, Category.POWER, Category.THERMAL, Category.TELEMETRY})
"""Categories of faults of machines: what else may page, such as a maintenance notice, keeps to the budget."""
PAGE_AGAIN_MS = 12 * HOUR
"""A shift, as of the budget of pages."""
LOSS_DIGITS = 6
"""Decimals of an expected loss in GPU-hours that are kept with the decision."""
_BY_AGENTS = frozenset({ActionKind.RESET_GPU, ActionKind.CHECKPOINT, ActionKind.DEFRAGMENT})

_ENDS_WORK = frozenset({ActionKind.RESET_GPU, ActionKind.REBOOT_NODE})
MOST_ENDED = 3
"""Jobs that a sentence names at most."""
MOST_SEARCHED = 20
"""GPUs whose work a place is looked for, before people are asked about the first all the same (own choice)."""
ASK_AGAIN_MS = 12 * HOUR
"""From a question that ended by itself to the next about what is noted of a pool's GPUs, counted from when it was asked
(own choice, a shift)."""
MOST_WAITING = 3
"""Questions about one incident that stands which wait at once: a mode that is changed must not ask them all."""
MOST_BOXES = 24.0
"""Time boxes that a decision waits at most, however often it was made before: a day by default (own choice)."""

Can = Callable[[ActionKind, str], bool]
"""Whether anybody carries out an action in a pool."""


def _anything(_action: ActionKind, _pool: str) -> bool:
    return True


def decide(
    incidents: Sequence[Incident],
    predictions: Sequence[Prediction],
    view: FleetView,
    policy: Policy,
    can: Can = _anything,
) -> list[Decision]:
    """The decisions that the present state asks for, most urgent first.

    Each incident that is more than a note gives one notification, and one action where its root cause calls for
    one: however many members it has; where that is a throttle, each GPU that is hot gets its own, and of what stands
    each finding that holds. Once its root cause has cleared it gives neither another notification nor another action
    for what is left of it, but where a GPU itself says that it owes a repair. A subject gets one disruptive decision at
    most, that of the gravest incident, and none that a GPU which is lost to its host would have to answer. The same
    state gives the same keys, also after a restart.
    """
    expected, lost = _expected(predictions), _lost(incidents)
    pick = partial(choose, view=view, can=can, lost=lost)
    wanted: list[Decision] = []
    for incident in sorted(incidents, key=_urgency):
        if is_standing(incident.root):
            wanted += _about_standing(incident, expected, view, policy, pick)
            continue
        choice = pick(incident)
        prediction = _matching(incident.root, expected)
        meant = None
        # Nothing more is done about a cause that has cleared, nor about its effects that go on.
        if choice.action is not ActionKind.NOTIFY and not incident.cause_cleared:
            meant = _action(incident, choice, prediction, view, policy)
        if incident.alert_level is not AlertLevel.NOTE:
            wanted.append(_notice(incident, meant, prediction, view, policy))
        if meant is not None:
            wanted += [*_replacements(incident, meant, view, policy), meant]
        if incident.cause_cleared:
            wanted += _throttles(incident, pick, None, lost, view, policy)
            wanted += _owed_repairs(incident, view, policy, pick)
        elif choice.action is ActionKind.THROTTLE:
            wanted += _throttles(incident, pick, meant, lost, view, policy)
    return _one_disruptive_each(wanted, view.controls.finished)


def _expected(predictions: Sequence[Prediction]) -> Mapping[str, Sequence[Prediction]]:
    """The crossings to come that people are told of, by the key of their subject."""
    return grouped(
        (base_key(prediction.subject), prediction)
        for prediction in predictions
        if prediction.status is PredictionStatus.CROSSING and prediction.eta_ms is not None and not prediction.muted
    )


def _about(incident: Incident, root: Finding, members: tuple[Finding, ...]) -> Incident:
    """What `incident` has about `root` alone."""
    about = replace(incident, root=root, members=members, cleared=())
    return replace(about, sentence=root.sentence, sentence_zh=root.sentence_zh)


def _asked_at_once(incident: Incident, view: FleetView, policy: Policy, pick: Pick) -> list[Wanted]:
    """The findings of an incident that stands for which something is to be done, each alone, and what.

    Whole fleets hold their memory full: people are asked for one at a time. What waits goes on to wait, `MOST_WAITING`
    at most; where no yes to it would do, as its work has no place or it is left alone, one more is asked for beside it:
    what was asked for less often, then what has stood longer. Of GPUs that are noted the next is asked for once a
    person answered, or nothing waits and the last was asked `ASK_AGAIN_MS` ago. What acts alone waits for its guards,
    not for people.
    """
    alone = [_about(incident, found, (found,)) for found in _holding(incident)]
    wanted = [(own, choice) for own in alone if (choice := pick(own)).action is not ActionKind.NOTIFY]
    wanted = _one_for_each_work(wanted, view)
    acting, waiting, left = [], dict[str, Wanted](), list[Wanted]()
    for one in wanted:
        root, action = one[0].root, one[1].action
        key = _key(root, action, view)
        if policy.mode_of(root.rule, action, simulated=_is_simulated(one[0])) is Mode.ACT:
            acting.append(one)
        elif key in view.controls.asked and key not in view.controls.finished:
            waiting[key] = one
        elif key not in view.controls.finished and root.id not in view.controls.cancelled:
            left.append(one)
    waits = sorted(waiting.values(), key=lambda one: one[0].root.started_ms)[:MOST_WAITING]
    if len(waits) == MOST_WAITING or any(not _is_stuck(one, view) for one in waits):
        return [*acting, *waits]
    left = sorted((one for one in left if _may_ask(one[0].root, view, waiting)), key=_turn_in(view))
    # A place is a search: it is looked for until one has it. What has none is asked about only where nothing waits.
    free = [one for one in left[:MOST_SEARCHED] if not _is_stuck(one, view)][:1]
    return [*acting, *waits, *(free or ([] if waits else left[:1]))]


def _may_ask(root: Finding, view: FleetView, stuck: Container[str]) -> bool:
    """Of the GPUs of a pool the next is always there; what is to come, and a pool, does not wait for hours. Beside a
    question that is `stuck`, by key, one more is asked."""
    last = view.controls.questions.get(asked_about(root))
    rests = root.subject.kind is SubjectKind.GPU and root.alert_level is AlertLevel.NOTE and not root.expected
    return not rests or last is None or last.key in stuck or view.now_ms >= last.at_ms + ASK_AGAIN_MS


def _turn_in(view: FleetView) -> Callable[[Wanted], tuple[int, int]]:
    """The order in which people are asked."""

    def turn(one: Wanted) -> tuple[int, int]:
        root, action = one[0].root, one[1].action
        return view.controls.renewals.get(cause_key(root, action), 0), root.started_ms

    return turn


def _is_stuck(one: Wanted, view: FleetView) -> bool:
    root, action = one[0].root, one[1].action
    return _is_left_alone(root.subject, view) or obstacle(action, root.rule, root.subject, None, view) is not None


def _is_left_alone(subject: Subject, view: FleetView) -> bool:
    keys = (base_key(subject), f"host:{subject.host}")
    return any((held := view.controls.hold_offs.get(key)) and view.now_ms < held.until_ms for key in keys)


def _one_for_each_work(wanted: Sequence[Wanted], view: FleetView) -> list[Wanted]:
    """`wanted`, with one move alone of work that is on several GPUs: managers move a job as a whole.

    It is about the GPU of which people were asked already, else the one that has stood longest.
    """

    def known(one: Wanted) -> tuple[bool, bool, int, str]:
        root = one[0].root
        key = _key(root, ActionKind.MIGRATE, view)
        return key not in view.controls.finished, key not in view.controls.asked, root.started_ms, root.id

    moved: set[str] = set()
    others: set[str] = set()
    for own, _ in sorted((one for one in wanted if one[1].action is ActionKind.MIGRATE), key=known):
        works = view.foresight.work_on(own.root.subject) or _job_on(own.root.subject, view)
        if works & moved:
            others.add(own.root.id)
        else:
            moved |= works
    return [one for one in wanted if one[0].root.id not in others]


def _job_on(subject: Subject, view: FleetView) -> frozenset[str]:
    """The one job on a GPU, before planners have looked."""
    member = view.whole(subject.name)
    return frozenset() if member is None else frozenset({member.job} - {""})


def _about_standing(
    incident: Incident, expected: Mapping[str, Sequence[Prediction]], view: FleetView, policy: Policy, pick: Pick
) -> list[Decision]:
    """An action for each finding of an incident that stands, as if it were alone, and one notification for all.

    They share no cause: what is done about one GPU does nothing for the others.
    """
    made: list[Decision] = []
    of_root, prediction = None, _matching(incident.root, expected)
    for own, choice in _asked_at_once(incident, view, policy, pick):
        coming = _matching(own.root, expected)
        meant = replace(_action(own, choice, coming, view, policy), incident=incident.id)
        if incident.alert_level is AlertLevel.NOTE and meant.mode is not Mode.ACT:
            # It wakes nobody, so that nobody looks within the hour: what is asked stays asked for a day.
            meant = replace(meant, expires_ms=max(meant.expires_ms, view.now_ms + DAY))
        made += [*_replacements(own, meant, view, policy), meant]
        of_root = meant if own.root.id == incident.id else of_root
    if incident.alert_level is not AlertLevel.NOTE:
        made.insert(0, _notice(incident, of_root, prediction, view, policy))
    return made


def _throttles(
    incident: Incident,
    pick: Pick,
    first: Decision | None,
    lost: AbstractSet[str],
    view: FleetView,
    policy: Policy,
) -> list[Decision]:
    """Throttles of the other GPUs of an incident: a shared cause of heat is no reason to let all but one run hot.

    Of the root's own GPU too where the root has cleared and heat came back. What throttles did not end is asked for
    what comes after them. None for a GPU that is limited as a rank of the same job as one before it. Each GPU keeps the
    finding of which people were asked, whatever else is found of its heat.
    """
    root_gpu = set() if incident.cause_cleared else {base_key(incident.root.subject)}
    left_out = {*root_gpu, *lost, *_limited(first)}
    by_gpu = grouped(
        (base_key(member.subject), member) for member in _holding(incident) if member.action is ActionKind.THROTTLE
    )

    def order(one: Finding) -> tuple[bool, int, int, str]:
        asked = _key(one, ActionKind.THROTTLE, view) in view.controls.asked
        return not asked, -one.severity.rank, one.started_ms, one.rule

    made = []
    for gpu, found in by_gpu.items():
        if gpu in left_out:
            continue
        root = min(found, key=order)
        own = replace(incident, root=root, members=found, sentence=root.sentence, sentence_zh=root.sentence_zh)
        choice = pick(own)
        if choice.action is ActionKind.NOTIFY:
            continue
        meant = replace(_action(own, choice, None, view, policy), incident=incident.id)
        left_out |= _limited(meant)
        made.append(meant)
    return made


def _limited(throttle: Decision | None) -> frozenset[str]:
    """The keys of the GPUs that `throttle` is for."""
    ranks = () if throttle is None else ranks_in(throttle.parameters)
    return frozenset(f"{SubjectKind.GPU}:{rank.gpu}" for rank in ranks)


def _owed_repairs(incident: Incident, view: FleetView, policy: Policy, pick: Pick) -> list[Decision]:
    """What GPUs say they need as long as they need it, such as the driver's verdict: no cause's end takes it back."""
    by_gpu = grouped((base_key(one.subject), one) for one in _holding(incident))
    made = []
    for found in by_gpu.values():
        owed = [one for one in found if one.metric in _OWED]
        if not owed:
            continue
        root = min(owed, key=lambda one: (-one.severity.rank, one.started_ms, one.rule))
        own = _about(incident, root, tuple(found))
        choice = pick(own)
        if choice.action is not ActionKind.NOTIFY:
            made.append(replace(_action(own, choice, None, view, policy), incident=incident.id))
    return made


def _holding(incident: Incident) -> list[Finding]:
    """The members that have not cleared."""
    return [one for one in incident.members if not incident.cleared or one.id not in incident.cleared]


def _lost(incidents: Iterable[Incident]) -> frozenset[str]:
    """The keys of the GPUs that are lost to their hosts."""
    members = (member for incident in incidents for member in _holding(incident))
    return frozenset(base_key(member.subject) for member in members if symptom_of(member) is Symptom.BUS)


def chosen_action(incident: Incident) -> ActionKind:
    """What to do about the root cause: the driver's own verdict on the subject before any table.

    What the driver said of a GPU before it lost it takes nothing from what the loss asks for. A program's own fault
    condemns no GPU: such an action becomes a notification.
    """
    verdict, root = _driver_verdict(incident), incident.root
    if verdict is not None and base_key(root.subject) in _lost([incident]):
        return max(
            (one for one in (root.action, verdict) if not ACTIONS[one].asks_gpu), key=_KINDS.index, default=root.action
        )
    if verdict is not None:
        return verdict
    if root.category is Category.APPLICATION and root.action in CONDEMNING:
        return ActionKind.NOTIFY
    return root.action


def is_hard_fault(incident: Incident) -> bool:
    """Whether something is broken now and needs a person: it pages whatever the budget of pages."""
    gravest = incident.alert_level is AlertLevel.PAGE
    return gravest and incident.root.category in _HARD and not incident.root.expected


@dataclass(frozen=True, slots=True)
class Choice:
    """What to do about an incident, and in words why this and nothing else; None where the rule alone says it.

    `priced` has the expected loss of each choice in GPU-hours, where they were compared.
    """

    action: ActionKind
    why: Phrase | None = None
    priced: Mapping[ActionKind, float] = field(default_factory=dict)


Pick = Callable[[Incident], Choice]
"""`choose`, of one state."""
Wanted = tuple[Incident, Choice]
"""A finding alone, and what to do about it."""


def choose(incident: Incident, view: FleetView, can: Can = _anything, lost: AbstractSet[str] = frozenset()) -> Choice:
    """The driver's verdict or the rule's action, or the rung that these have come to; for a fault to come the cheapest.

    The action of a rule about a fault that is only expected is the furthest that may be done: less is done where less
    is expected to be lost by it. Of GPUs that are `lost` to their hosts, by key, nothing is asked that they would have
    to answer, and nothing more is expected.
    """
    action = chosen_action(incident)
    root = incident.root
    gone = base_key(root.subject) in lost
    if gone and (root.expected or ACTIONS[action].asks_gpu):
        return Choice(ActionKind.NOTIFY)
    stake = stake_of(root, view)
    if stake is not None and action is not ActionKind.NOTIFY and _driver_verdict(incident) is None:
        priced = prices(stake, view.policy.settings.cost, view.controls.experience)
        chosen = cheapest(priced, action)
        return Choice(chosen, in_words(priced, chosen), priced)
    pool = root.subject.pool or _pool_of_host(root, view)

    def possible(one: ActionKind) -> bool:
        stuck = obstacle(one, root.rule, root.subject, deadline_in(root.evidence), view)
        return can(one, pool) and not stuck and not (gone and ACTIONS[one].asks_gpu)

    rung = climbed(root, action, view, possible)
    if rung is ActionKind.MIGRATE and root.expected and possible(ActionKind.CHECKPOINT):
        stuck = obstacle(rung, root.rule, root.subject, deadline_in(root.evidence), view)
        if stuck is not None:
            return Choice(ActionKind.CHECKPOINT, stuck)
    return Choice(
        rung, None if rung is action else say("{action} did not end it", action=str(action).replace("_", " "))
    )


def _driver_verdict(incident: Incident) -> ActionKind | None:
    key = base_key(incident.root.subject)
    codes = [
        int(member.value)
        for member in _holding(incident)
        if member.metric == _RECOVERY_METRIC and member.value is not None and base_key(member.subject) == key
    ]
    verdicts = [DRIVER_VERDICTS[code] for code in codes if code in DRIVER_VERDICTS]
    return max(verdicts, key=_KINDS.index, default=None)


def _urgency(incident: Incident) -> tuple[int, int, int, str]:
    root = incident.root
    return (-root.severity.rank, -_KINDS.index(chosen_action(incident)), root.started_ms, incident.id)


def cause_key(finding: Finding, action: ActionKind) -> str:
    """The first idempotency key of `action` for `finding`."""
    return f"{finding.rule}|{finding.subject.key}|{action}|{finding.started_ms}"


def _key(finding: Finding, action: ActionKind, view: FleetView) -> str:
    """A decision that ended without having done anything is followed by one with a key of its own."""
    first = cause_key(finding, action)
    renewals = view.controls.renewals.get(first, 0)
    return f"{first}|{renewals + 1}" if renewals else first


def _action(
    incident: Incident, choice: Choice, prediction: Prediction | None, view: FleetView, policy: Policy
) -> Decision:
    root, action = incident.root, choice.action
    eta = eta_clause(prediction, view.now_ms)
    note, ranks = view.foresight.note(root, action), _ranks(action, root.subject, view)
    alike = say("all {n} GPUs of its job are limited alike", n=len(ranks)) if _is_shared(action, ranks) else None
    ended = _ended(action, root, view)
    sentence = action_sentence(
        action,
        root.subject,
        incident.sentence,
        in_english(eta),
        in_english(choice.why, note.words, alike, ended),
        root.sentence,
    )
    parameters = replace(
        note.parameters or PARAMETERS[action](),
        context=_context(incident, prediction, view, eta, choice.why, note.words, alike, ended),
        cause=cause_key(root, action),
        expected_losses={one: round(loss, LOSS_DIGITS) for one, loss in choice.priced.items()},
    )
    if isinstance(parameters, RmaTicketParameters):
        parameters = replace(parameters, evidence=evidence_of(root))
    several = len(ranks) > 1 or (ranks and root.subject.kind is SubjectKind.HOST)
    if several and isinstance(parameters, RankedParameters):
        parameters = replace(parameters, ranks=ranks)
    made = _decision(incident, action, view, policy, _key(root, action, view), sentence, parameters)
    return replace(made, goal=goal_of(made, view), expires_ms=view.now_ms + _time_box_ms(root, action, view, policy))


def _time_box_ms(root: Finding, action: ActionKind, view: FleetView, policy: Policy) -> int:
    """How long the decision may wait: each that follows one on which nobody decided twice as long."""
    renewals = view.controls.renewals.get(cause_key(root, action), 0)
    return int(policy.time_box_ms * min(2.0 ** min(renewals, 16), MOST_BOXES))


def _ranks(action: ActionKind, subject: Subject, view: FleetView) -> tuple[Rank, ...]:
    """The GPUs that `action` is for, where agents may be asked for it: a throttle is for all ranks of a job."""
    if action is ActionKind.THROTTLE:
        return ranks_of(subject, view)
    return own_ranks(subject, view) if action in _BY_AGENTS else ()


def _ended(action: ActionKind, root: Finding, view: FleetView) -> Phrase | None:
    """Whose work `action` ends, that of MIG instances too; None where it ends none, or nobody knows of any."""
    if action not in _ENDS_WORK:
        return None
    subject = root.subject
    if ACTIONS[action].scope is Scope.HOST and subject.host:
        subject = Subject(SubjectKind.HOST, subject.host, subject.host)
    gone = {rank.gpu: rank.host for rank in own_ranks(subject, view)}
    there = (one for host in sorted({*gone.values()}) for one in view.parts_by_host.get(host, ()))
    jobs = sorted({one.job for one in there if not gone.keys().isdisjoint((one.gpu.uuid, one.gpu.parent))} - {""})
    users = sorted({owner.user for owner in root.owners} - {""})
    if not jobs:
        return None
    if len(jobs) == 1 and len(users) == 1:
        return say("it ends {job} of {user}", job=jobs[0], user=users[0])
    if len(jobs) <= MOST_ENDED:
        return say("it ends {job}", job=", ".join(jobs))
    return say("it ends {job} and {n} more", job=", ".join(jobs[:MOST_ENDED]), n=len(jobs) - MOST_ENDED)


def _is_shared(action: ActionKind, ranks: Sequence[Rank]) -> bool:
    """Whether others are limited for the sake of one GPU."""
    return action is ActionKind.THROTTLE and len(ranks) > 1


def _replacements(incident: Incident, meant: Decision, view: FleetView, policy: Policy) -> list[Decision]:
    """Scale-outs of elastic pools that would fall below what must stay in service, were `meant` carried out.

    The guards hold `meant` itself until the new GPUs are there.
    """
    made = []
    for pool, lacking in shortfall(meant, view, view.now_ms).items() if is_disruptive(meant.action) else ():
        if not lacking or pool not in policy.settings.elastic_pools or meant.action is ActionKind.SCALE_IN:
            continue
        subject = Subject(SubjectKind.POOL, pool, pool=pool)
        cause = cause_key(incident.root, ActionKind.SCALE_OUT)
        why = f"{lacking} GPUs are needed before {meant.sentence[0].lower()}{meant.sentence[1:].rstrip('.')}"
        first = say("{n} GPUs are needed before {action}", n=lacking, action=str(meant.action).replace("_", " "))
        context = DecisionContext(pool=pool, cause_zh=cause_in_chinese(incident.sentence_zh, first))
        made.append(
            replace(
                meant,
                subject=subject,
                action=ActionKind.SCALE_OUT,
                key=_key(incident.root, ActionKind.SCALE_OUT, view),
                sentence=action_sentence(ActionKind.SCALE_OUT, subject, why, ""),
                goal=None,
                parameters=ScaleOutParameters(context=context, cause=cause, gpus=lacking, before=meant.key),
            )
        )
    return made


def _notice(
    incident: Incident, meant: Decision | None, prediction: Prediction | None, view: FleetView, policy: Policy
) -> Decision:
    root, simulated = incident.root, _is_simulated(incident)
    proposed = ActionKind.NOTIFY if meant is None else meant.action
    mode = policy.mode_of(root.rule, proposed, simulated=simulated)
    unearned = policy.lacking(root.rule, proposed, simulated=simulated)
    eta = eta_clause(prediction, view.now_ms)
    stuck = obstacle(proposed, root.rule, root.subject, deadline_in(root.evidence), view)
    if meant is not None and mode is Mode.ACT and needs_person(meant, view, view.now_ms):
        mode = Mode.PROPOSE
    said = "" if stuck is None else str(stuck)
    sentence = notice_sentence(
        incident.sentence, proposed, root.subject, mode, in_english(eta), said, in_english(unearned), root.sentence
    )
    parameters = NotifyParameters(context=_context(incident, prediction, view, eta), intended=proposed)
    if meant is not None and mode is Mode.PROPOSE and not stuck:
        # So that whoever is told can say yes: the id of the decision that waits for it.
        parameters = replace(parameters, proposes=meant.id)
    key = cause_key(root, ActionKind.NOTIFY) + _page_again(incident)
    return _decision(incident, ActionKind.NOTIFY, view, policy, key, sentence, parameters)


def _page_again(incident: Incident) -> str:
    """What tells a page of an incident from what people were told of its root before.

    It may have begun as a warning. A root that stays for days takes up what fails much later: that pages anew, and what
    comes and goes pages once in PAGE_AGAIN_MS.
    """
    if incident.alert_level is not AlertLevel.PAGE:
        return ""
    root = incident.root
    newest = max((one.started_ms for one in incident.members if one.alert_level is AlertLevel.PAGE), default=0)
    if later := max(0, newest - root.started_ms) // PAGE_AGAIN_MS:
        return f"|page|{later}"
    return "" if root.alert_level is AlertLevel.PAGE else "|page"


def _decision(
    incident: Incident,
    action: ActionKind,
    view: FleetView,
    policy: Policy,
    key: str,
    sentence: str,
    parameters: ActionParameters,
) -> Decision:
    root, simulated = incident.root, _is_simulated(incident)
    return Decision(
        rule=root.rule,
        subject=root.subject,
        action=action,
        mode=policy.mode_of(root.rule, action, simulated=simulated),
        severity=root.severity,
        category=root.category,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + policy.time_box_ms,
        key=key,
        sentence=sentence,
        findings=(root.id, *(member.id for member in incident.members if member.id != root.id)),
        incident=incident.id,
        parameters=parameters,
        simulated=simulated,
        level=incident.alert_level,
        hard_fault=is_hard_fault(incident),
    )


def _is_simulated(incident: Incident) -> bool:
    return incident.root.simulated or any(member.simulated for member in incident.members)


def _context(
    incident: Incident, prediction: Prediction | None, view: FleetView, *clauses: Phrase | None
) -> DecisionContext:
    """`clauses` are what the sentence of the decision says beside the cause."""
    root = incident.root
    pods, jobs = _work_on(root, view)
    return DecisionContext(
        host=root.subject.host,
        pool=root.subject.pool or _pool_of_host(root, view),
        metric=root.metric,
        pods=pods,
        jobs=jobs,
        deadline_ms=deadline_in(root.evidence),
        prediction="" if prediction is None else prediction.id,
        eta_ms=None if prediction is None else prediction.eta_ms,
        forecast_zh="" if prediction is None else prediction.sentence_zh,
        cause_zh=cause_in_chinese(incident.sentence_zh, *clauses),
    )


def _pool_of_host(root: Finding, view: FleetView) -> str:
    """The pool of all GPUs of the root's host; empty where they are of several or unknown."""
    pools = {member.gpu.pool for member in view.by_host.get(root.subject.host or root.subject.name, ())}
    return pools.pop() if len(pools) == 1 else ""


def _work_on(root: Finding, view: FleetView) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Pods and jobs that hold the root's GPU; for a whole host those that its manager lists there."""
    pods = {f"{owner.namespace}/{owner.pod}" for owner in root.owners if owner.pod and owner.namespace}
    jobs = {owner.slurm_job.partition(".")[0] for owner in root.owners if owner.slurm_job}
    node = view.nodes.get(root.subject.name) if root.subject.kind is SubjectKind.HOST else None
    if node is not None:
        pods |= {name for name in node.work if "/" in name}
        jobs |= {name for name in node.work if "/" not in name}
    return tuple(sorted(pods)), tuple(sorted(jobs))


def _matching(root: Finding, expected: Mapping[str, Sequence[Prediction]]) -> Prediction | None:
    """The newest prediction about the finding's own metric, else about its subject where it names no metric."""
    same = [p for p in expected.get(base_key(root.subject), ()) if not root.metric or p.metric == root.metric]
    return max(same, key=lambda p: (p.at_ms, p.id), default=None)


def _one_disruptive_each(decisions: list[Decision], finished: AbstractSet[str]) -> list[Decision]:
    """`decisions`, without any that would disrupt a subject for which a graver one is there, or repeat a key.

    A graver one that has ended, done or refused, stands in nobody's way.
    """
    taken: set[str] = set()
    keys: set[str] = set()
    kept = []
    for decision in decisions:
        subject = base_key(decision.subject)
        if decision.key in keys or (is_disruptive(decision.action) and subject in taken):
            continue
        keys.add(decision.key)
        if is_disruptive(decision.action) and decision.key not in finished:
            taken.add(subject)
        kept.append(decision)
    return kept


def notice_sentence(
    cause: str,
    proposed: ActionKind,
    subject: Subject,
    mode: Mode,
    eta: str,
    stuck: str = "",
    unearned: str = "",
    told: str = "",
) -> str:
    """What happened, what is intended, and how far the mode lets it go, or why nothing can start it: `stuck`.

    `unearned` is what the record of the rule lacks where that keeps it from acting alone; `told` what is said of
    `subject` alone.
    """
    if proposed is ActionKind.NOTIFY:
        return joined(cause, eta)
    then = f"it cannot start now: {stuck}" if stuck else _CONSEQUENCE[mode] + (f": {unearned}" if unearned else "")
    return joined(cause, eta, f"intended: {deed(proposed, subject, cause, told)}, {then}")
