"""What came of actions so far: how often they worked and what they cost and bought, for the next choice."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from tocsin.domain.decision import Outcome, OutcomeStatus

_WORKED = frozenset({OutcomeStatus.SUCCEEDED, OutcomeStatus.RESTORED})
_SUPPOSED_TRIES, _SUPPOSED_WORKED = 10, 9
"""Before there is experience an action counts as one that worked 9 times in 10 (own choice)."""


@dataclass(frozen=True, slots=True)
class Tally:
    """Outcomes of one kind of action: how many, how many worked, and of each measured effect (count, mean)."""

    tried: int = 0
    worked: int = 0
    effects: Mapping[str, tuple[int, float]] = field(default_factory=dict)

    @property
    def chance(self) -> float:
        """How likely the next one works, 0 to 1."""
        return (self.worked + _SUPPOSED_WORKED) / (self.tried + _SUPPOSED_TRIES)

    def joined(self, outcome: Outcome) -> Tally:
        """With one more outcome; only what worked counts for the effects."""
        worked = outcome.status in _WORKED
        effects = dict(self.effects)
        for name, value in outcome.effect.items() if worked else ():
            count, mean = effects.get(name, (0, 0.0))
            effects[name] = (count + 1, mean + (value - mean) / (count + 1))
        return Tally(self.tried + 1, self.worked + worked, effects)
