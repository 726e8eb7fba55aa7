"""The part of the state that comes from the journal: what people said, what runs, and what came of earlier actions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from tocsin.actions.model.questions import Question
from tocsin.actions.model.silences import Silence
from tocsin.domain.decision import Decision, Outcome, OutcomeStatus
from tocsin.domain.finding import ActionKind

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


@dataclass(frozen=True, slots=True)
class Note:
    """Who said something, when and why."""

    actor: str
    at_ms: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Breaker:
    """The breaker is tripped since `at_ms`, by `causes` (``rule|subject`` each); `reason_zh` is `reason` in Chinese."""

    at_ms: int
    causes: tuple[str, ...] = ()
    reason: str = ""
    reason_zh: str = ""


@dataclass(frozen=True, slots=True)
class HoldOff:
    """A person undid or rejected an action on a subject: it is left alone until `until_ms`."""

    until_ms: int
    actor: str
    reason: str = ""


@dataclass(frozen=True, slots=True)
class Cooled:
    """Degrees Celsius, above 0, that a throttle took off at `load`, a ratio; None where the load was not told."""

    celsius: float
    load: float | None


class Known(AbstractSet[str]):
    """A view of a set of keys that only grows: copies of all keys ever known would cost more with every day.

    What it has is what is known now, also where it was handed out earlier.
    """

    def __init__(self, keys: set[str]) -> None:
        self._keys = keys

    def __contains__(self, key: object) -> bool:
        return key in self._keys

    def __iter__(self) -> Iterator[str]:
        # A copy: another thread may add to it meanwhile.
        return iter(self._keys.copy())

    def __len__(self) -> int:
        return len(self._keys)


@dataclass(frozen=True, slots=True)
class Controls:
    """A snapshot.

    `approvals` and `rejections` are by decision id, `hold_offs` by subject key, `started` by idempotency key with the
    instant of the start. `attempts` has the instants of the starts of an action on a subject, by (subject key, action).
    `effects` are decisions that run now or whose effect lasts, by key; `busy` names the action that runs now, by
    subject key without detail. `renewals` counts, by the first key of a cause, the decisions that ended without having
    done anything, so that the next one gets a key of its own. `cancelled` are findings for which a person stepped in.
    `finished` are the keys of decisions that have ended, however they did. `doubtful` are the keys of effects whose
    undoing was begun and never seen to work: what they took may be back in service, or may not. `confirmed` are the
    keys of effects that a post-check has seen. `capping` are the subject keys of `busy` on which nothing but fixed
    caps runs.
    `failures` has the instants at which an action on a subject ran and was not seen to work, by (subject key, action),
    since it last did. `experience` is what came of each kind of action so far. `started`, `cancelled` and `finished`
    only grow and are views: a later look sees later keys. `expires` has the ends of the time boxes of waiting decisions
    that the wall clock has stepped away from, by key. `repaired` has the instants of the newest proven repairs, by
    the key of the GPU or host. `asked` are the keys of all decisions that were made, a view. `questions` are
    the last ones that nobody answered, by `asked_about`. `silences` are those that stand,
    are planned, or ended lately. `cooled` is what throttles in effect bought, by their key.
    """

    paused: Note | None = None
    breaker: Breaker | None = None
    approvals: Mapping[str, Note] = field(default_factory=dict)
    rejections: Mapping[str, Note] = field(default_factory=dict)
    hold_offs: Mapping[str, HoldOff] = field(default_factory=dict)
    started: Mapping[str, int] = field(default_factory=dict)
    attempts: Mapping[tuple[str, ActionKind], tuple[int, ...]] = field(default_factory=dict)
    effects: Mapping[str, Decision] = field(default_factory=dict)
    busy: Mapping[str, str] = field(default_factory=dict)
    renewals: Mapping[str, int] = field(default_factory=dict)
    cancelled: AbstractSet[str] = frozenset()
    finished: AbstractSet[str] = frozenset()
    doubtful: frozenset[str] = frozenset()
    confirmed: frozenset[str] = frozenset()
    failures: Mapping[tuple[str, ActionKind], tuple[int, ...]] = field(default_factory=dict)
    experience: Mapping[ActionKind, Tally] = field(default_factory=dict)
    capping: frozenset[str] = frozenset()
    expires: Mapping[str, int] = field(default_factory=dict)
    repaired: Mapping[str, int] = field(default_factory=dict)
    silences: tuple[Silence, ...] = ()
    asked: AbstractSet[str] = frozenset()
    cooled: Mapping[str, Cooled] = field(default_factory=dict)
    questions: Mapping[str, Question] = field(default_factory=dict)

    def expiry_ms(self, decision: Decision) -> int:
        """When the time box of `decision` ends."""
        return self.expires.get(decision.key, decision.expires_ms)
