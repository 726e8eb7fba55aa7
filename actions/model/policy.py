"""What the operator allows: the settings of actions and the mode of each rule, lowered where its record asks for it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.actions.model.catalogue import is_recovery
from tocsin.actions.model.earning import RecordKey, RuleStanding, is_waived, standing_of
from tocsin.config.settings import ActionSettings
from tocsin.domain.clock import SECOND
from tocsin.domain.decision import Mode
from tocsin.domain.finding import ActionKind
from tocsin.domain.phrase import Phrase, say

_ORDER = (Mode.OBSERVE, Mode.PROPOSE, Mode.ACT)


def least(*modes: Mode) -> Mode:
    """The most cautious of `modes`."""
    return min(modes, key=_ORDER.index)


def milliseconds(seconds: float) -> int:
    """A duration of the settings in milliseconds."""
    return round(seconds * SECOND)


@dataclass(frozen=True)
class Policy:
    """`rule_modes` maps a rule's name to the mode it asks for, `standings` what the record of each rule amounts to now.

    A rule that is not in `rule_modes` may go as far as the service does. The mode of the service bounds every rule. The
    loop fills in `standings`; a rule that is not there has no case.
    """

    settings: ActionSettings = field(default_factory=ActionSettings)
    rule_modes: Mapping[str, Mode] = field(default_factory=dict)
    standings: Mapping[RecordKey, RuleStanding] = field(default_factory=dict)

    def mode_set(self, rule: str) -> Mode:
        """How far the settings let `rule` go."""
        return least(self.settings.mode, self.rule_modes.get(rule, Mode.ACT))

    def mode_of(self, rule: str, action: ActionKind, *, simulated: bool) -> Mode:
        """How far decisions of `rule` for `action` may go now: the one place where a record lowers a mode."""
        asked = self.mode_set(rule)
        return Mode.PROPOSE if self.lacking(rule, action, simulated=simulated) else asked

    def lacking(self, rule: str, action: ActionKind, *, simulated: bool) -> Phrase | None:
        """What the record lacks before `rule` acts alone, as a clause; None where nothing keeps it from that, and
        where the settings do not let it act. What gives back needs no record."""
        if self.mode_set(rule) is not Mode.ACT or is_recovery(action) or self.is_waived(rule):
            return None
        missing = self.standing(rule, simulated=simulated).missing
        return None if missing is None else say("rule {rule} has {missing}", rule=rule, missing=missing)

    def standing(self, rule: str, *, simulated: bool) -> RuleStanding:
        """What the record of `rule` amounts to now."""
        return self.standings.get((rule, simulated)) or standing_of((), self.settings)

    def is_waived(self, rule: str) -> bool:
        """Whether the settings let `rule` act without a record."""
        return is_waived(rule, self.settings.earn_waived)

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
