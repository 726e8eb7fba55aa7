"""From incidents to decisions."""

from __future__ import annotations

from dataclasses import replace

import pytest

from tocsin.actions.guards.limits import needs_person
from tocsin.actions.loop.decide import ASK_AGAIN_MS, cause_key, chosen_action, decide
from tocsin.actions.model.catalogue import ACTIONS, CONDEMNING, DRIVER_VERDICTS
from tocsin.actions.model.controls import Controls, HoldOff
from tocsin.actions.model.decision_json import dump_decision
from tocsin.actions.model.decision_log import Ledger
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.questions import Question, asked_about
from tocsin.actions.model.sentences import action_sentence, deed
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE, SECOND, ManualClock, to_minute
from tocsin.domain.decision import Decision, Mode, NotifyParameters, ranks_in
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import (
    PREDICTION_EVIDENCE,
    ActionKind,
    Category,
    Evidence,
    Finding,
    Severity,
    Subject,
    SubjectKind,
)
from tocsin.domain.phrase import say
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Owner
from tocsin_testing.action_world import finding, fleet, incident, settings, subject_of
from tocsin_testing.builders import T0
from tocsin_testing.journal_double import JournalDouble

GPU = Subject(SubjectKind.GPU, "GPU-a", "node-1", "train")
VIEW = FleetView(T0, T0)


def _decide(*roots: Finding, predictions: tuple[Prediction, ...] = (), mode: Mode = Mode.ACT) -> list[Decision]:
    policy = Policy(settings(mode=mode), {"careful": Mode.PROPOSE})
    return decide([incident(root) for root in roots], predictions, VIEW, policy)


def _prediction(**more: object) -> Prediction:
    fields: dict[str, object] = {
        "status": PredictionStatus.CROSSING,
        "metric": "gpu_temperature_celsius",
        "eta_ms": T0 + 3 * HOUR + 10 * MINUTE,
        "eta_low_ms": T0 + 2 * HOUR,
        "eta_high_ms": T0 + 5 * HOUR,
        "coverage": 0.8,
    }
    return Prediction(GPU, "hot", T0, 48 * HOUR, model="m", model_version="1", sentence="s", **(fields | more))  # type: ignore[arg-type]


def test_every_action_kind_has_a_row() -> None:
    assert set(ACTIONS) == set(ActionKind)
    for action, spec in ACTIONS.items():
        assert spec.inverse is None or ACTIONS[spec.inverse].recovery, action
        assert not (spec.recovery and spec.disruptive), action


def test_an_incident_gives_one_notification_and_one_action_for_its_root_alone() -> None:
    peers = [finding(Subject(SubjectKind.GPU, f"GPU-{n}"), rule="sympathetic") for n in range(63)]
    root = finding(GPU)
    decisions = decide([incident(root, *peers)], [], VIEW, Policy(settings()))
    assert [(d.action, d.subject) for d in decisions] == [(ActionKind.NOTIFY, GPU), (ActionKind.CORDON, GPU)]
    assert decisions[1].findings[0] == root.id
    assert len(decisions[1].findings) == 64


def test_nothing_more_is_decided_of_a_cause_that_has_cleared() -> None:
    peers = [finding(Subject(SubjectKind.GPU, f"GPU-{n}"), rule="sympathetic") for n in range(3)]
    whole = incident(finding(GPU), *peers)
    before = decide([whole], [], VIEW, Policy(settings()))
    after = decide([replace(whole, cleared=(whole.root.id,))], [], VIEW, Policy(settings()))
    assert [one.action for one in before] == [ActionKind.NOTIFY, ActionKind.CORDON]
    assert [one.key for one in after] == [before[0].key], "the notification that went out already, and no action"


@pytest.mark.parametrize(
    ("metric", "value", "action", "wanted"),
    [
        ("gpu_recovery_action", 1.0, ActionKind.NOTIFY, ActionKind.RESET_GPU),
        ("gpu_row_remap_pending", 1.0, ActionKind.RESET_GPU, ActionKind.RESET_GPU),
        ("gpu_power_watts", 1.0, ActionKind.RESET_GPU, None),
    ],
)
def test_what_a_gpu_says_it_owes_outlives_the_cause(
    metric: str, value: float, action: ActionKind, wanted: ActionKind | None
) -> None:
    owed = replace(finding(GPU, rule="owed", action=action), metric=metric, value=value)
    left = incident(finding(GPU), owed)
    left = replace(left, cleared=(left.root.id,))
    actions = [one for one in decide([left], [], VIEW, Policy(settings())) if one.action is not ActionKind.NOTIFY]
    assert [one.action for one in actions] == ([] if wanted is None else [wanted])
    assert all((one.findings[0], one.incident) == (owed.id, left.id) for one in actions)


def test_gpus_that_are_still_hot_stay_throttled_when_the_first_of_them_is_not() -> None:
    hot = [
        finding(Subject(SubjectKind.GPU, f"GPU-{n}", "node-1", "train"), rule="hot", action=ActionKind.THROTTLE)
        for n in range(4)
    ]
    left = replace(incident(*hot), cleared=(hot[0].id, hot[3].id))
    throttled = [one for one in decide([left], [], VIEW, Policy(settings())) if one.action is ActionKind.THROTTLE]
    assert [one.subject for one in throttled] == [hot[1].subject, hot[2].subject]


def test_heat_that_is_back_is_throttled_anew_and_told_of_once() -> None:
    subject = Subject(SubjectKind.GPU, "GPU-1", "node-1", "train")
    first = finding(subject, rule="hot", action=ActionKind.THROTTLE)
    back = replace(first, started_ms=first.started_ms + HOUR, last_ms=first.started_ms + HOUR)
    before = decide([incident(first)], [], VIEW, Policy(settings()))
    again = decide([replace(incident(first, back), cleared=(first.id,))], [], VIEW, Policy(settings()))
    assert [one.action for one in again] == [one.action for one in before] == [ActionKind.NOTIFY, ActionKind.THROTTLE]
    assert again[0].key == before[0].key
    assert again[1].key != before[1].key
    assert again[1].findings[0] == back.id


def test_heat_that_throttles_did_not_end_goes_on_up_the_ladder_when_it_is_back() -> None:
    subject = Subject(SubjectKind.GPU, "GPU-1", "node-1", "train")
    first = replace(finding(subject, rule="hot", action=ActionKind.THROTTLE), category=Category.THERMAL)
    back = replace(first, started_ms=first.started_ms + HOUR, last_ms=first.started_ms + HOUR)
    failures = {(subject.key, ActionKind.THROTTLE): (T0 - 1, T0 - 2)}
    view = replace(VIEW, controls=replace(VIEW.controls, failures=failures))
    again = decide([replace(incident(first, back), cleared=(first.id,))], [], view, Policy(settings()))
    assert [one.action for one in again] == [ActionKind.NOTIFY, ActionKind.PLACE_ELSEWHERE]


def test_every_hot_gpu_of_one_cause_gets_its_throttle() -> None:
    hot = [
        finding(Subject(SubjectKind.GPU, f"GPU-{n}", "node-1", "train"), rule="hot", action=ActionKind.THROTTLE)
        for n in range(8)
    ]
    also = replace(hot[3], rule="slow", severity=Severity.WARNING)
    one = incident(hot[0], *hot[1:], also)
    decisions = decide([one], [], VIEW, Policy(settings()))
    throttled = [each for each in decisions if each.action is ActionKind.THROTTLE]
    assert [each.subject.name for each in throttled] == [each.subject.name for each in hot]
    assert [each.findings[0] for each in throttled] == [each.id for each in hot]
    assert {each.incident for each in decisions} == {one.id}
    assert sum(each.action is ActionKind.NOTIFY for each in decisions) == 1


def _hot_host(job: str) -> tuple[list[Finding], FleetView]:
    """Eight hot GPUs of one host, all of them at work on `job`."""
    gpus = fleet(1, 8)
    hot = [finding(subject_of(one), rule="slow", action=ActionKind.THROTTLE) for one in gpus.values()]
    return hot, replace(VIEW, gpus={uuid: GpuView(one, T0, job=job) for uuid, one in gpus.items()})


def test_the_hot_gpus_of_one_job_are_throttled_by_one_decision() -> None:
    hot, view = _hot_host("slurm 7")
    made = [one for one in decide([incident(*hot)], [], view, Policy(settings())) if one.action is ActionKind.THROTTLE]
    assert [len(ranks_in(one.parameters)) for one in made] == [8]
    assert "all 8 GPUs of its job are limited alike" in made[0].sentence


def test_what_else_is_found_of_a_hot_gpu_asks_for_nothing_new() -> None:
    hot, view = _hot_host("")
    before = decide([incident(*hot)], [], view, Policy(settings()))
    asked = replace(view, controls=Controls(asked=frozenset(one.key for one in before)))
    also = [replace(one, rule="margin") for one in hot]
    after = decide([incident(*hot, *also)], [], asked, Policy(settings()))
    assert {one.key for one in after} == {one.key for one in before}
    assert len(before) == 9, "a notification and eight throttles"


@pytest.mark.parametrize(
    ("action", "said"),
    [
        (ActionKind.RESET_GPU, "it ends slurm 0 of ann"),
        (ActionKind.REBOOT_NODE, "it ends slurm 0, slurm 1, slurm 2 and 1 more"),
        (ActionKind.CORDON, ""),
    ],
)
def test_what_ends_work_says_whose(action: ActionKind, said: str) -> None:
    gpus = fleet(1, 8)
    of_jobs = {uuid: GpuView(one, T0, job=f"slurm {n % 4}") for n, (uuid, one) in enumerate(gpus.items())}
    root = finding(subject_of(gpus["GPU-0-0"]), action=action)
    if action is ActionKind.RESET_GPU:
        root = replace(root, owners=(Owner(7, slurm_job="0.1", user="ann"),))
    made = decide([incident(root)], [], replace(VIEW, gpus=of_jobs), Policy(settings()))[-1]
    assert said in made.sentence
    assert bool(said) == ("it ends" in made.sentence)


@pytest.mark.parametrize("action", [ActionKind.RESET_GPU, ActionKind.REBOOT_NODE])
def test_what_ends_work_names_that_on_mig_instances_too(action: ActionKind) -> None:
    whole = fleet(1, 1)["GPU-0-0"]
    parts = [replace(whole, uuid=f"MIG-{n}", parent=whole.uuid) for n in range(2)]
    seen = {one.uuid: GpuView(one, T0, job=f"slurm {n}") for n, one in enumerate(parts)}
    view = replace(VIEW, gpus={whole.uuid: GpuView(whole, T0), **seen})
    made = decide([incident(finding(subject_of(whole), action=action))], [], view, Policy(settings()))[-1]
    assert "it ends slurm 0, slurm 1" in made.sentence


def test_what_stands_is_told_of_once_and_each_gpu_has_its_own_action() -> None:
    subjects = [subject_of(one) for one in fleet(1, 4).values()]
    full = [
        replace(finding(one, action=ActionKind.SCALE_OUT, category=Category.MEMORY), level=AlertLevel.NOTE)
        for one in subjects
    ]
    own = [decide([incident(one)], [], VIEW, Policy(settings())) for one in full]
    assert all(len(made) == 1 for made in own), "a note tells nobody"
    together = decide([incident(*full)], [], VIEW, Policy(settings()))
    assert [one.key for one in together] == [made[0].key for made in own]
    assert {one.incident for one in together} == {full[0].id}
    cleared = replace(incident(*full), cleared=tuple(one.id for one in full[:3]))
    assert [one.key for one in decide([cleared], [], VIEW, Policy(settings()))] == [own[3][0].key]


def _full(count: int) -> list[Finding]:
    """GPUs of one incident whose memory is full, the last for longest."""
    found = [
        finding(subject_of(one), action=ActionKind.MIGRATE, category=Category.MEMORY)
        for one in fleet(count, 1).values()
    ]
    return [replace(one, level=AlertLevel.NOTE, started_ms=T0 - n * MINUTE) for n, one in enumerate(found)]


def _asked(full: list[Finding], view: FleetView = VIEW, mode: Mode = Mode.PROPOSE) -> list[int]:
    subjects = [one.subject for one in full]
    decided = decide([incident(*full)], [], view, Policy(settings(mode=mode)))
    box = HOUR if mode is Mode.ACT else DAY
    assert {one.expires_ms for one in decided} == ({T0 + box} if decided else set()), (
        "nobody looks at a note within the hour"
    )
    return [subjects.index(one.subject) for one in decided]


def test_of_what_stands_people_are_asked_for_one_at_a_time() -> None:
    full = _full(6)
    assert _asked(full) == [5], "what has stood longest"
    assert sorted(_asked(full, mode=Mode.ACT)) == list(range(6)), "what acts alone waits for its guards"


def test_a_note_stays_asked_for_a_day_whatever_the_time_box_is() -> None:
    for seconds, waits in ((600.0, DAY), (3 * DAY / SECOND, 3 * DAY)):
        policy = Policy(settings(mode=Mode.PROPOSE, time_box_seconds=seconds))
        (made,) = decide([incident(*_full(2))], [], VIEW, policy)
        assert made.expires_ms == T0 + waits


def test_what_nobody_decides_keeps_nothing_out() -> None:
    full = _full(6)
    first = {n: cause_key(one, ActionKind.MIGRATE) for n, one in enumerate(full)}
    waits = replace(VIEW, controls=Controls(asked=frozenset({first[1]})))
    assert _asked(full, waits) == [1], "what waits goes on to"
    tried = replace(VIEW, controls=Controls(renewals={first[5]: 1, first[4]: 1}))
    assert _asked(full, tried) == [3]
    done = replace(VIEW, controls=Controls(finished=frozenset({first[5]})))
    assert _asked(full, done) == [4]
    keys = f"gpu:{full[5].subject.name}", f"host:{full[4].subject.host}"
    alone = replace(VIEW, controls=Controls(hold_offs={key: HoldOff(T0 + MINUTE, "ann") for key in keys}))
    assert _asked(full, alone) == [3], "nobody can say yes to those yet"


def _at(full: list[Finding], ago_ms: int, *waiting: int) -> FleetView:
    """Where people were last asked so long ago, about the last of `waiting` or what has ended; those wait."""
    keys = [cause_key(full[n], full[n].action) for n in waiting]
    last = {asked_about(full[0]): Question(keys[-1] if keys else "ended", T0 - ago_ms)}
    return replace(VIEW, controls=Controls(asked=frozenset(keys), questions=last))


def test_where_nobody_answers_the_next_gpu_is_asked_about_a_shift_later() -> None:
    full = _full(6)
    assert _asked(full, _at(full, ASK_AGAIN_MS - 1)) == []
    assert _asked(full, _at(full, ASK_AGAIN_MS)) == [5]
    assert _asked(full, _at(full, MINUTE, 2)) == [2], "what waits goes on to"
    elsewhere = replace(full[0], subject=replace(full[0].subject, pool="other"))
    assert _asked([elsewhere], _at(full, MINUTE)) == [0]
    foretold = replace(full[0], evidence=(Evidence(f"{PREDICTION_EVIDENCE}x", "", T0),))
    assert _asked([foretold], _at(full, MINUTE)) == [0], "what is to come does not wait for hours"
    pool = replace(full[0], subject=Subject(SubjectKind.POOL, "default", "", "default"), action=ActionKind.SCALE_OUT)
    assert _asked([pool], _at(full, MINUTE)) == [0], "of a pool there is no next one"


def test_who_waits_stays_asked_though_no_place_is_free_now(monkeypatch: pytest.MonkeyPatch) -> None:
    full = _full(6)
    stuck = {full[2].subject}
    monkeypatch.setattr(
        "tocsin.actions.loop.decide.obstacle", lambda _a, _r, subject, *_: say("no room") if subject in stuck else None
    )
    assert sorted(_asked(full, _at(full, MINUTE, 2))) == [2, 5], "one with a place is asked about beside it"
    beside = replace(VIEW, controls=replace(_at(full, MINUTE).controls, asked=_at(full, 0, 2).controls.asked))
    assert _asked(full, beside) == [2], "the one that was asked beside it has ended"
    stuck |= {full[5].subject}
    assert sorted(_asked(full, _at(full, ASK_AGAIN_MS, 2, 5))) == [2, 4, 5]
    stuck |= {one.subject for one in full}
    assert sorted(_asked(full, _at(full, ASK_AGAIN_MS, 2))) == [2], "what has no place is no question beside another"
    stuck.clear()
    assert sorted(_asked(full, _at(full, ASK_AGAIN_MS, 2, 5))) == [2, 5]


def test_what_once_waited_is_not_asked_all_at_once() -> None:
    full = _full(6)
    assert sorted(_asked(full, _at(full, MINUTE, *range(6)))) == [3, 4, 5], "a mode was changed"


def test_what_was_decided_hides_nothing_that_has_no_place(monkeypatch: pytest.MonkeyPatch) -> None:
    full = _full(3)
    monkeypatch.setattr(
        "tocsin.actions.loop.decide.obstacle",
        lambda _a, _r, subject, *_: None if subject == full[2].subject else say("no room"),
    )
    rejected = replace(VIEW, controls=Controls(finished=frozenset({cause_key(full[2], full[2].action)})))
    assert _asked(full, rejected) == [1]


def test_what_a_person_gave_back_is_not_asked_about_again() -> None:
    full = _full(2)
    given = replace(VIEW, controls=Controls(cancelled=frozenset({full[1].id})))
    assert _asked(full, given) == [0]


def test_who_cannot_be_moved_keeps_nothing_out(monkeypatch: pytest.MonkeyPatch) -> None:
    full = _full(6)
    stuck = {full[5].subject, full[4].subject}
    monkeypatch.setattr(
        "tocsin.actions.loop.decide.obstacle", lambda _a, _r, subject, *_: say("no room") if subject in stuck else None
    )
    assert _asked(full) == [3]
    stuck |= {one.subject for one in full}
    assert _asked(full) == [5]


def test_information_does_not_notify() -> None:
    assert _decide(finding(GPU, severity=Severity.INFO, action=ActionKind.NOTIFY)) == []


def test_keys_name_rule_subject_action_and_start_and_do_not_depend_on_now() -> None:
    one = _decide(finding(GPU))
    later = decide([incident(finding(GPU))], [], FleetView(T0 + HOUR, T0 + HOUR), Policy(settings()))
    assert [d.key for d in one] == [f"hot|gpu:GPU-a|notify|{T0}", f"hot|gpu:GPU-a|cordon|{T0}"]
    assert [d.key for d in later] == [d.key for d in one]
    assert [d.id for d in later] == [d.id for d in one]


def test_mode_is_the_lesser_of_rule_and_service() -> None:
    modes = {d.rule: d.mode for d in _decide(finding(GPU, rule="careful"), finding(GPU, rule="bold"))}
    assert modes == {"careful": Mode.PROPOSE, "bold": Mode.ACT}
    assert {d.mode for d in _decide(finding(GPU, rule="careful"), mode=Mode.OBSERVE)} == {Mode.OBSERVE}


def test_time_box_ends_the_decision() -> None:
    assert {d.expires_ms for d in _decide(finding(GPU))} == {T0 + HOUR}


@pytest.mark.parametrize(("renewals", "boxes"), [(0, 1), (1, 2), (4, 16), (5, 24), (2000, 24)])
def test_what_nobody_decided_waits_longer_each_time(renewals: int, boxes: int) -> None:
    first = cause_key(finding(GPU), ActionKind.CORDON)
    view = replace(VIEW, controls=Controls(renewals={first: renewals}))
    made = {one.action: one for one in decide([incident(finding(GPU))], [], view, Policy(settings()))}
    assert made[ActionKind.CORDON].expires_ms == T0 + boxes * HOUR
    assert made[ActionKind.NOTIFY].expires_ms == T0 + HOUR


@pytest.mark.parametrize(("code", "action"), list(DRIVER_VERDICTS.items()))
def test_the_drivers_verdict_outranks_the_table(code: int, action: ActionKind) -> None:
    verdict = finding(GPU, rule="driver", metric="gpu_recovery_action", value=float(code), action=ActionKind.NOTIFY)
    assert chosen_action(incident(finding(GPU), verdict)) is action


def test_a_verdict_about_another_gpu_or_none_at_all_leaves_the_table() -> None:
    other = finding(Subject(SubjectKind.GPU, "GPU-b"), metric="gpu_recovery_action", value=2.0)
    none = finding(GPU, rule="driver", metric="gpu_recovery_action", value=0.0)
    assert chosen_action(incident(finding(GPU), other, none)) is ActionKind.CORDON


@pytest.mark.parametrize("action", sorted(CONDEMNING))
def test_a_programs_own_fault_condemns_no_gpu(action: ActionKind) -> None:
    assert chosen_action(incident(finding(GPU, category=Category.APPLICATION, action=action))) is ActionKind.NOTIFY


def test_one_disruptive_decision_per_subject_that_of_the_gravest() -> None:
    decisions = _decide(
        finding(GPU, rule="mild", severity=Severity.WARNING, action=ActionKind.REBOOT_NODE),
        finding(GPU, rule="grave", action=ActionKind.CORDON),
        finding(GPU, rule="soft", severity=Severity.WARNING, action=ActionKind.THROTTLE),
    )
    acting = [(d.rule, d.action) for d in decisions if d.action is not ActionKind.NOTIFY]
    assert acting == [("grave", ActionKind.CORDON), ("soft", ActionKind.THROTTLE)]
    assert len(decisions) == 5


def test_a_part_of_a_gpu_is_the_gpu_to_an_action() -> None:
    part = replace(GPU, detail="pid 7")
    decisions = _decide(finding(GPU), finding(part, rule="fragmented", action=ActionKind.DEFRAGMENT))
    assert sum(d.action is not ActionKind.NOTIFY for d in decisions) == 1


def test_a_prediction_of_the_same_metric_is_said_in_the_sentence() -> None:
    root = finding(GPU, metric="gpu_temperature_celsius")
    newest = _prediction()
    older = replace(newest, at_ms=T0 - 1, eta_ms=T0 + HOUR)
    decisions = _decide(root, predictions=(newest, older))
    interval = f"{to_minute(T0 + 2 * HOUR)} to {to_minute(T0 + 5 * HOUR)}"
    text = f"crossing expected at {to_minute(T0 + 3 * HOUR + 10 * MINUTE)} (80% interval: {interval})"
    assert all(text in d.sentence for d in decisions)
    assert decisions[1].parameters.context.prediction == newest.id
    assert decisions[1].sentence == f"Cordon GPU-a on node-1: It is too hot; {text}."


@pytest.mark.parametrize(
    "more",
    [
        {"metric": "gpu_power_watts"},
        {"status": PredictionStatus.NOT_ENOUGH_DATA, "eta_ms": None},
        {"status": PredictionStatus.NO_CROSSING},
        {"eta_ms": T0},
    ],
)
def test_other_predictions_are_not(more: dict[str, object]) -> None:
    root = finding(GPU, metric="gpu_temperature_celsius")
    assert all("expected" not in d.sentence for d in _decide(root, predictions=(_prediction(**more),)))


def test_an_open_interval_is_said_as_such() -> None:
    root = finding(GPU, metric="gpu_temperature_celsius")
    decisions = _decide(root, predictions=(_prediction(eta_high_ms=None),))
    assert "to beyond the horizon" in decisions[0].sentence


def test_simulated_findings_give_simulated_decisions() -> None:
    assert {d.simulated for d in _decide(finding(GPU, simulated=True))} == {True}
    assert {d.simulated for d in _decide(finding(GPU))} == {False}


@pytest.mark.parametrize(
    ("subject", "cause", "words"),
    [
        (Subject(SubjectKind.GPU, "GPU-a", "n1"), "n1 GPU 3: it is hot.", "Throttle n1 GPU 3: it is hot."),
        (Subject(SubjectKind.GPU, "GPU-a", "n1"), "n1 GPU 3 link 2: it drops.", "Throttle n1 GPU 3 link 2: it drops."),
        (Subject(SubjectKind.GPU, "GPU-a", "n1"), "It is hot.", "Throttle GPU-a on n1: It is hot."),
        (Subject(SubjectKind.GPU, "GPU-a", ""), " GPU is hot.", "Throttle GPU-a: GPU is hot."),
        (Subject(SubjectKind.HOST, "n1"), "n1: its log is full.", "Throttle host n1: its log is full."),
        (Subject(SubjectKind.POOL, "web"), "pool web: it idles.", "Throttle pool web: it idles."),
    ],
)
def test_a_subject_is_named_once(subject: Subject, cause: str, words: str) -> None:
    assert action_sentence(ActionKind.THROTTLE, subject, cause, "") == words


@pytest.mark.parametrize(
    ("action", "what"), [(ActionKind.RESET_GPU, "n1 GPU 3: Host n1: "), (ActionKind.DRAIN, "host n1: ")]
)
def test_a_cause_on_a_whole_host_leaves_the_gpu_its_name(action: ActionKind, what: str) -> None:
    subject, own = Subject(SubjectKind.GPU, "GPU-a", "n1"), "n1 GPU 3: XID 119."
    cause = f"Host n1: 8 GPUs show the same. First: {own}"
    assert action_sentence(action, subject, cause, "", told=own).startswith(
        f"{ACTIONS[action].verb} {what}8 GPUs show the same"
    )
    assert deed(action, subject, cause, own) == f"{ACTIONS[action].verb.lower()} {what.partition(':')[0]}"


def test_what_fails_days_after_the_root_pages_anew_and_once_a_shift() -> None:
    root = finding(GPU, severity=Severity.WARNING, action=ActionKind.NOTIFY)

    def key(*hours: int) -> str:
        starts = [T0 + one * HOUR for one in hours]
        late = [finding(GPU, at_ms, rule="slowdown", severity=Severity.CRITICAL) for at_ms in starts]
        decided = decide([incident(root, *late)], [], VIEW, Policy(settings()))
        (told,) = [one for one in decided if one.action is ActionKind.NOTIFY]
        return told.key

    told = f"hot|gpu:GPU-a|notify|{T0}"
    assert [key(), key(1), key(1, 5)] == [told, f"{told}|page", f"{told}|page"]
    assert [key(1, 49), key(1, 49, 50), key(50, 62)] == [f"{told}|page|4", f"{told}|page|4", f"{told}|page|5"]


def test_people_are_told_where_a_yes_is_wanted_though_the_mode_is_act() -> None:
    gpus = fleet(1, 4)
    lonely = replace(VIEW, gpus={uuid: GpuView(gpu, VIEW.now_ms) for uuid, gpu in gpus.items()})
    lonely = replace(lonely, policy=Policy(settings(limits={"min_available_ratio": 0.8})))
    drain = finding(subject_of(gpus["GPU-0-0"]), action=ActionKind.DRAIN)
    told, meant = decide([incident(drain)], [], lonely, lonely.policy)
    assert needs_person(meant, lonely, VIEW.now_ms)
    assert "it waits for a person's approval" in told.sentence
    assert isinstance(told.parameters, NotifyParameters)
    assert told.parameters.proposes == meant.id


SIGN = (Evidence(f"{PREDICTION_EVIDENCE}hazard 3", "a fault is likely", T0, 0.9),)


def _lost(**more: object) -> Finding:
    """GPU fell off its bus."""
    fields: dict[str, object] = {"rule": "xid_bus", "category": Category.HARDWARE, "action": ActionKind.DRAIN}
    return finding(GPU, metric="gpu_xid_last_code", value=79.0, **(fields | more))


@pytest.mark.parametrize(
    "beside",
    [
        finding(GPU, rule="hot", action=ActionKind.THROTTLE),
        finding(GPU, rule="full", category=Category.MEMORY, action=ActionKind.MIGRATE),
        finding(GPU, rule="ecc", category=Category.HARDWARE, action=ActionKind.RESET_GPU),
        finding(GPU, rule="signs", severity=Severity.WARNING, category=Category.HARDWARE, action=ActionKind.CHECKPOINT),
        finding(GPU, rule="coming", category=Category.HARDWARE, action=ActionKind.PLACE_ELSEWHERE, evidence=SIGN),
    ],
)
def test_nothing_is_asked_of_a_lost_gpu_that_it_would_have_to_answer(beside: Finding) -> None:
    """A checkpoint of work on a GPU that fell off its bus helps nobody: the loss alone has an action."""

    def acting(*roots: Finding) -> list[tuple[str, ActionKind]]:
        return [(one.rule, one.action) for one in _decide(*roots) if one.action is not ActionKind.NOTIFY]

    assert acting(beside) == [(beside.rule, beside.action)]
    assert acting(beside, _lost()) == [("xid_bus", ActionKind.DRAIN)]
    elsewhere = replace(beside, subject=Subject(SubjectKind.GPU, "GPU-b", "node-1", "train"))
    assert (beside.rule, beside.action) in acting(elsewhere, _lost())


@pytest.mark.parametrize(("code", "action"), [(1, "drain"), (2, "reboot_node"), (4, "drain"), (7, "reboot_node")])
def test_no_reset_is_a_verdict_on_a_lost_gpu(code: int, action: str) -> None:
    verdict = finding(GPU, rule="driver", metric="gpu_recovery_action", value=float(code), action=ActionKind.NOTIFY)
    assert chosen_action(incident(_lost(), verdict)) == action


def test_a_lost_gpu_among_hot_ones_is_not_throttled() -> None:
    hot = [finding(Subject(SubjectKind.GPU, f"GPU-{n}"), action=ActionKind.THROTTLE) for n in "cab"]
    made = decide([incident(*hot), incident(_lost())], [], VIEW, Policy(settings()))
    throttled = {one.subject.name for one in made if one.action is ActionKind.THROTTLE}
    assert throttled == {"GPU-b", "GPU-c"}


def _asked_in(ledger: Ledger, journal: JournalDouble) -> Decision:
    (made,) = decide([incident(*_full(1))], [], VIEW, Policy(settings(mode=Mode.PROPOSE)))
    ledger.apply(journal.append(EntryKind.DECISION, dump_decision(made)))
    assert ledger.controls().questions == {asked_about(made): Question(made.key, T0)}
    return made


@pytest.mark.parametrize(
    ("kind", "more", "answered"),
    [
        (EntryKind.APPROVAL, {}, True),
        (EntryKind.REJECTION, {"reason": "no"}, True),
        (EntryKind.HOLD_OFF, {"subject": "gpu:x", "until_ms": T0 + HOUR, "cancelled": [_full(1)[0].id]}, True),
        (EntryKind.HOLD_OFF, {"subject": "gpu:x", "until_ms": T0 + HOUR, "cancelled": ["another"]}, False),
        (EntryKind.VERDICT, {"verdicts": [], "overall": "deny", "state": "rejected", "reason": "denied"}, False),
        (
            EntryKind.VERDICT,
            {"verdicts": [], "overall": "hold", "state": "expired", "reason": "its cause ended"},
            False,
        ),
        (EntryKind.VERDICT, {"verdicts": [], "overall": "hold"}, False),
    ],
)
def test_a_question_is_the_last_one_until_it_is_answered(
    kind: EntryKind, more: dict[str, object], answered: bool
) -> None:
    journal, ledger = JournalDouble(ManualClock(T0)), Ledger()
    made = _asked_in(ledger, journal)
    ledger.apply(journal.append(kind, {"decision": made.id, "key": made.key, **more}))
    assert ledger.controls().questions == ({} if answered else {asked_about(made): Question(made.key, T0)})
    assert Ledger.restored(ledger.state()).controls().questions == ledger.controls().questions


def test_the_answer_to_an_older_question_does_not_count_for_the_last() -> None:
    journal, ledger = JournalDouble(clock := ManualClock(T0)), Ledger()
    first = _asked_in(ledger, journal)
    clock.advance(HOUR)
    ledger.apply(journal.append(EntryKind.DECISION, dump_decision(replace(first, key="another"))))
    ledger.apply(journal.append(EntryKind.APPROVAL, {"decision": first.id, "key": first.key}))
    assert ledger.controls().questions == {asked_about(first): Question("another", T0 + HOUR)}


@pytest.mark.parametrize(
    ("mode", "action"),
    [(Mode.ACT, ActionKind.MIGRATE), (Mode.OBSERVE, ActionKind.MIGRATE), (Mode.PROPOSE, ActionKind.NOTIFY)],
)
def test_what_asks_nobody_is_no_question(mode: Mode, action: ActionKind) -> None:
    journal, ledger = JournalDouble(ManualClock(T0)), Ledger()
    (made,) = decide([incident(*_full(1))], [], VIEW, Policy(settings(mode=Mode.PROPOSE)))
    other = replace(
        made,
        mode=mode,
        action=action,
        parameters=NotifyParameters() if action is ActionKind.NOTIFY else made.parameters,
    )
    ledger.apply(journal.append(EntryKind.DECISION, dump_decision(other)))
    assert ledger.controls().questions == {}
