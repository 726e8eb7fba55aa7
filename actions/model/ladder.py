"""The next rung: what is tried after an action that ran and did not help."""

from __future__ import annotations

from collections.abc import Callable

from tocsin.actions.model.scope import base_key, hosts_of
from tocsin.actions.model.view import FleetView
from tocsin.domain.clock import DAY
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Finding

LADDERS: dict[Category, tuple[ActionKind, ...]] = {
    Category.THERMAL: (
        ActionKind.THROTTLE,
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.MIGRATE,
        ActionKind.DRAIN,
        ActionKind.RMA_TICKET,
    ),
    Category.POWER: (ActionKind.THROTTLE, ActionKind.MIGRATE, ActionKind.DRAIN, ActionKind.RMA_TICKET),
    Category.HARDWARE: (
        ActionKind.PLACE_ELSEWHERE,
        ActionKind.CHECKPOINT,
        ActionKind.MIGRATE,
        ActionKind.CORDON,
        ActionKind.DRAIN,
        ActionKind.RESET_GPU,
        ActionKind.REBOOT_NODE,
        ActionKind.RMA_TICKET,
    ),
}
"""Rungs by category, from harmless to final (own choice): no reset cures heat. The other categories have one rung."""


RUNGS = frozenset(rung for ladder in LADDERS.values() for rung in ladder)
"""Everything that is on a ladder: asking for it twice does no more than asking once."""

_CURES = frozenset({ActionKind.RESET_GPU, ActionKind.REBOOT_NODE})
"""Rungs that come only behind a drain which was seen: they end all work on the GPU."""


def climbed(
    root: Finding, action: ActionKind, view: FleetView, can: Callable[[ActionKind], bool] = lambda _action: True
) -> ActionKind:
    """`action`, or the rung of the root's ladder that its past asks for.

    A rung counts as spent where it ran and was not seen to work ``actions.escalate_after`` times within a day; what
    failed, or nobody `can` carry out, is no rung that was tried. A node that was drained for a hardware fault which is
    still seen gets the rung behind. A prediction never climbs: nothing has failed yet.
    """
    ladder = LADDERS.get(root.category, ())
    if action not in ladder or any(item.name.startswith(PREDICTION_EVIDENCE) for item in root.evidence):
        return action
    reached = action
    for rung in ladder[ladder.index(action) + 1 :]:
        if not _spent(root, reached, view) or (rung in _CURES and not _is_out(root, view)):
            break
        if can(rung):
            reached = rung
    return reached


def _spent(root: Finding, rung: ActionKind, view: FleetView) -> bool:
    failures = view.controls.failures.get((base_key(root.subject), rung), ())
    recent = [at_ms for at_ms in failures if at_ms > view.now_ms - DAY]
    return len(recent) >= view.policy.settings.escalate_after or (rung is ActionKind.DRAIN and _is_out(root, view))


def _is_out(root: Finding, view: FleetView) -> bool:
    """Whether the root's host was drained for this very cause: that cures nothing, and nobody works there any more."""
    if root.category is not Category.HARDWARE:
        return False
    hosts = hosts_of(root.subject, view)
    return any(
        key in view.controls.confirmed and root.id in effect.findings and hosts_of(effect.subject, view) & hosts
        for key, effect in view.controls.effects.items()
        if effect.action is ActionKind.DRAIN
    )


def evidence_of(root: Finding) -> str:
    """What a return ticket shows: each piece of evidence on a line."""
    return "\n".join(f"{item.name}: {item.text}" for item in root.evidence)
