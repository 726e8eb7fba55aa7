"""What the operator allows: the settings of actions and the mode of each rule."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import Mode

_ORDER = (Mode.OBSERVE, Mode.PROPOSE, Mode.ACT)


def least(*modes: Mode) -> Mode:
    """The most cautious of `modes`."""
    return min(modes, key=_ORDER.index)


def milliseconds(seconds: float) -> int:
    """A duration of the settings in milliseconds."""
    return round(seconds * SECOND)


@dataclass(frozen=True)
class Policy:
    """`rule_modes` maps a rule's name to the mode it asks for.

    A rule that is not there may go as far as the service does. The mode of the service bounds every rule.
    """

    settings: ActionSettings = field(default_factory=ActionSettings)
    rule_modes: Mapping[str, Mode] = field(default_factory=dict)

    def mode_of(self, rule: str) -> Mode:
        """How far decisions of `rule` may go."""
        return least(self.settings.mode, self.rule_modes.get(rule, Mode.ACT))

    @property
    def time_box_ms(self) -> int:
        return milliseconds(self.settings.time_box_seconds)

    @property
    def fresh_ms(self) -> int:
        return milliseconds(self.settings.fresh_seconds)

    @property
    def boot_grace_ms(self) -> int:
        return milliseconds(self.settings.boot_grace_seconds)

    @property
    def hold_off_ms(self) -> int:
        return milliseconds(self.settings.hold_off_seconds)
