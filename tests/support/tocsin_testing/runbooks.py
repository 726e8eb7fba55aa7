"""The sentence that each action's runbook shows, as the product writes it."""

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
