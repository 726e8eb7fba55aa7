"""What runbooks show as the product writes it: the sentence of each action, and a verdict of each guard."""

from __future__ import annotations

from tocsin.actions.loop.decide import notice_sentence
from tocsin.actions.model.catalogue import ACTIONS, is_recovery
from tocsin.actions.model.recovery import inverse_of
from tocsin.actions.model.sentences import action_sentence
from tocsin.domain.decision import Decision, Mode
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin_testing.builders import T0

_GPU = Subject(SubjectKind.GPU, "GPU-5d1f0b7c", "node-7", "train")
_HEAT = "node-7 GPU 3: the core is at 93 °C for 10 min, limit 85 °C"
_CAUSES = {
    ActionKind.SCALE_OUT: (
        Subject(SubjectKind.POOL, "inference"),
        "pool inference: mean utilisation 94 % over 15 min, above 90 %, with work waiting or the pool elastic",
    ),
    ActionKind.SCALE_IN: (
        Subject(SubjectKind.POOL, "inference"),
        "pool inference: mean utilisation 12 % over 15 min, below 30 %, and no work waits",
    ),
}


def _sentence(kind: ActionKind) -> str:
    if kind is ActionKind.NOTIFY:
        return notice_sentence(_HEAT, ActionKind.THROTTLE, _GPU, Mode.PROPOSE, "")
    if is_recovery(kind):
        undone = next(one for one, spec in ACTIONS.items() if spec.inverse is kind)
        inverse = inverse_of(
            Decision(
                "hot",
                _GPU,
                undone,
                Mode.ACT,
                Severity.CRITICAL,
                Category.THERMAL,
                T0,
                T0,
                key="k",
                sentence="It is hot.",
            )
        )
        assert inverse is not None
        return inverse.sentence
    subject, cause = _CAUSES.get(kind, (_GPU, _HEAT))
    return action_sentence(kind, subject, cause, "")


ACTION_SENTENCES: dict[str, str] = {kind.value: _sentence(kind) for kind in ActionKind}


GUARD_VERDICTS: dict[str, str] = {
    "mode": "the mode is observe: this is what would have been done",
    "active": "another brain holds the lease, or nobody could be asked: this one only watches",
    "pause": "paused by ann at 2026-11-18T11:06:40.000Z: power works",
    "fresh_data": "1 of 1 GPUs have no reading of the last 120 s",
    "still_live": "the cause was not seen since 2026-11-21 03:54 UTC: it may be over",
    "not_done": "throttle runs on the subject",
    "silence": "snoozed for host node-0 by ann until 2026-11-18T12:06:40.000Z: new fans",
    "proof": "GPU-0-1 has no fresh reading: nothing proves that it is well",
    "evidence": "seen 1 of 3 consecutive times",
    "boot_grace": "started at 2026-11-18T11:06:40.000Z, only watching as yet",
    "cooldown": "the last throttle here was too recent",
    "maintenance": "outside the maintenance windows",
    "planned_maintenance": "maintenance planned for host node-0 by ann until 2026-11-18T12:06:40.000Z: new fans",
    "known_node": "the manager does not list node-0",
    "managed": (
        "2 of 2 GPUs touched are not managed, GPU-0-0 among them: list their pool in "
        "actions.managed_pools or label them tocsin.io/managed=true"
    ),
    "opt_out": "GPU-0-0 is labelled tocsin.io/opt-out=true",
    "hold_off": "gpu:GPU-0-0 is left alone after ann stepped in",
    "place": "no other node of its pool has room for all of 4711 (8 GPUs)",
    "max_concurrent": "5 under action already, at most 5 at once",
    "max_share": "16 of 64 managed GPUs would be out of service, at most 6 (10%)",
    "max_per_host": "host node-0 has 1 under action already, at most 1",
    "max_per_rack": "rack rack-0 has 2 under action already, at most 2",
    "capacity": "pool default would keep 6 of 8 GPUs in service, at least 7 (80%)",
    "attempts": "tried 3 times in 24 h, at most 3",
    "breaker": (
        "the breaker tripped at 2026-11-18T11:06:40.000Z on 3 root causes; a person closes it with tocsin breaker reset"
    ),
    "approval": "waits for a person: tocsin approve 275eb1a7c0f22cc4",
    "time_box": "its time box ended at 2026-11-18T11:06:40.000Z",
    "selection": "another action is needed there now",
    "executor": "no executor carries out cordon",
}
"""By guard a verdict that holds a decision, which tests compare with what the guard says, numbers and ids apart."""
