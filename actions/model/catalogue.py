"""What each kind of action is: how it reads in a sentence, what it takes out of service, and how it is undone."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.finding import ActionKind


class Scope(StrEnum):
    """What an action takes out of service when it is carried out on a GPU."""

    NOTHING = "nothing"
    SUBJECT = "subject"
    """The GPU alone."""
    HOST = "host"
    """Every GPU of the GPU's host: schedulers cordon, drain and reboot nodes."""


@dataclass(frozen=True, slots=True)
class ActionSpec:
    """One row of the table.

    `verb` starts the sentence. `recovery` gives back what an earlier action took. `cures` means that the cause should
    be gone after the settle time, so that the post-check can tell.
    `lasting` means that its effect stays until the inverse ran or a person released the subject. `inverse` is None
    where there is none. `asks_gpu` means that the GPU, or the work on it, has to answer: it cannot work on one that is
    lost to its host.
    """

    verb: str
    scope: Scope = Scope.NOTHING
    recovery: bool = False
    cures: bool = False
    lasting: bool = False
    inverse: ActionKind | None = None
    asks_gpu: bool = False

    @property
    def disruptive(self) -> bool:
        """Whether it takes GPUs out of service, so that the limits count it."""
        return self.scope is not Scope.NOTHING


ACTIONS: dict[ActionKind, ActionSpec] = {
    ActionKind.NOTIFY: ActionSpec("Tell people about"),
    ActionKind.THROTTLE: ActionSpec("Throttle", cures=True, lasting=True, inverse=ActionKind.RESTORE, asks_gpu=True),
    ActionKind.RESTORE: ActionSpec("Restore the limits of", recovery=True),
    ActionKind.PLACE_ELSEWHERE: ActionSpec("Place new work elsewhere than on"),
    ActionKind.DEFRAGMENT: ActionSpec("Defragment", scope=Scope.SUBJECT, cures=True),
    ActionKind.SCALE_OUT: ActionSpec("Scale out", cures=True),
    ActionKind.SCALE_IN: ActionSpec("Scale in", scope=Scope.SUBJECT, cures=True),
    ActionKind.CHECKPOINT: ActionSpec("Checkpoint the work on", asks_gpu=True),
    ActionKind.MIGRATE: ActionSpec("Migrate the work off", scope=Scope.SUBJECT, asks_gpu=True),
    ActionKind.CORDON_GPU: ActionSpec(
        "Keep new work off", scope=Scope.SUBJECT, lasting=True, inverse=ActionKind.UNCORDON_GPU
    ),
    ActionKind.UNCORDON_GPU: ActionSpec("Let work back on", recovery=True),
    ActionKind.CORDON: ActionSpec("Cordon", scope=Scope.HOST, lasting=True, inverse=ActionKind.UNCORDON),
    ActionKind.UNCORDON: ActionSpec("Uncordon", recovery=True),
    ActionKind.DRAIN: ActionSpec("Drain", scope=Scope.HOST, lasting=True, inverse=ActionKind.UNCORDON),
    ActionKind.RESET_GPU: ActionSpec("Reset", scope=Scope.SUBJECT, cures=True, asks_gpu=True),
    ActionKind.REBOOT_NODE: ActionSpec("Reboot", scope=Scope.HOST, cures=True),
    ActionKind.RMA_TICKET: ActionSpec("Open a return ticket for"),
}
"""Every action kind has a row; a test compares."""

DRIVER_VERDICTS: dict[int, ActionKind] = {
    1: ActionKind.RESET_GPU,
    2: ActionKind.REBOOT_NODE,
    3: ActionKind.DRAIN,
    4: ActionKind.DRAIN,
    5: ActionKind.NOTIFY,
    6: ActionKind.RESET_GPU,
    7: ActionKind.REBOOT_NODE,
}
"""NVML field 230 (nvml.h, NVML_GPU_RECOVERY_ACTION_*) to action.

Drain and reset (4) starts with the drain: running work ends first, and the verdict is read again after it. An IMEX
domain (5) is recovered by people.
"""

CONDEMNING = frozenset(
    {
        ActionKind.CORDON_GPU,
        ActionKind.CORDON,
        ActionKind.DRAIN,
        ActionKind.RESET_GPU,
        ActionKind.REBOOT_NODE,
        ActionKind.RMA_TICKET,
    }
)
"""Actions that blame the GPU; a program's own fault never leads to one."""


DISRUPTIVE = frozenset(action for action, properties in ACTIONS.items() if properties.disruptive)


def is_disruptive(action: ActionKind) -> bool:
    """Whether `action` takes GPUs out of service."""
    return ACTIONS[action].disruptive


def is_recovery(action: ActionKind) -> bool:
    """Whether `action` gives back what an earlier one took."""
    return ACTIONS[action].recovery
