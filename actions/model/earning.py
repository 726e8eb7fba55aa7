"""Whether the record of a rule allows it to act alone.

Judged by the lower end of Wilson's one-sided 95 % interval and not by the share: a share of few cases proves little.
With the shipped settings 20 right statements of 20 are enough (at least 0.88 with that confidence), one wrong one needs
28 cases in all. It is looked at after every case and not once: by luck a rule may pass a little sooner than 95 % says,
and it falls back as soon.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Sequence
from dataclasses import dataclass, field, replace

from tocsin.config.settings import ActionSettings
from tocsin.domain.errors import InputError
from tocsin.domain.interval import Z95_ONE_SIDED, wilson
from tocsin.domain.phrase import Phrase, say

EVERY_RULE = "*"
"""In `earn_waived`: all rules."""
RecordKey = tuple[str, bool]
"""Name of the rule, and whether its GPUs are simulated."""


@dataclass(frozen=True, slots=True)
class RuleCase:
    """One settled case. `subject` is a key without detail, `root` the id of the finding that caused the last decision;
    `at_ms` is the instant at which the first one ended, `last_ms` that of the last."""

    subject: str
    root: str
    at_ms: int
    last_ms: int
    right: bool | None
    reached: bool | None

    def joined(self, later: RuleCase) -> RuleCase:
        """With one more decision about the same; the worst of both."""
        right, reached = _worst(self.right, later.right), _worst(self.reached, later.reached)
        return replace(self, root=later.root, last_ms=later.last_ms, right=right, reached=reached)


def _worst(one: bool | None, other: bool | None) -> bool | None:
    if one is None or other is None:
        return other if one is None else one
    return one and other


@dataclass(frozen=True, slots=True)
class RuleStanding:
    """What the record of one rule amounts to by the settings.

    `settled` cases have a statement that was `right` or wrong, `measured` ones a goal that was `reached` or not.
    `lacking` says in a few words what is missing before the rule may act alone, empty where nothing is; `missing` says
    the same as a phrase.
    """

    settled: int = 0
    right: int = 0
    measured: int = 0
    reached: int = 0
    lacking: str = ""
    missing: Phrase | None = field(default=None, compare=False)


def standing_of(cases: Sequence[RuleCase], settings: ActionSettings) -> RuleStanding:
    """The standing of a rule with `cases`."""
    settled = [one.right for one in cases if one.right is not None]
    measured = [one.reached for one in cases if one.reached is not None]
    found = RuleStanding(len(settled), sum(settled), len(measured), sum(measured))
    missing = _lacking(found, settings)
    return replace(found, lacking="" if missing is None else str(missing), missing=missing)


def _lacking(found: RuleStanding, settings: ActionSettings) -> Phrase | None:
    if found.settled < settings.earn_cases:
        return say("{n} of {wanted} settled cases", n=found.settled, wanted=settings.earn_cases)
    right = "right in {n} of {total} cases, which proves {proven} % of {wanted} %"
    reached = "goal reached in {n} of {total} cases, which proves {proven} % of {wanted} %"
    parts = (
        (right, found.right, found.settled, settings.earn_precision),
        (reached, found.reached, found.measured, settings.earn_goal_share),
    )
    for template, good, count, wanted in parts:
        proven = proven_share(good, count)
        if proven < wanted:
            # Rounded down: 84.9 of 85 must not read as if it were enough.
            figures = {"proven": math.floor(proven * 100), "wanted": f"{wanted * 100:g}"}
            return say(template, n=good, total=count, **figures)
    return None


def proven_share(good: int, count: int) -> float:
    """The share that `good` of `count` prove with 95 % confidence; 0 without any."""
    return wilson(good / count, count, Z95_ONE_SIDED)[0] if count else 0.0


def check_waived(waived: Sequence[str], rules: Collection[str]) -> None:
    """Raises InputError for a name in `waived` that none of `rules` has."""
    unknown = sorted(set(waived) - {*rules, EVERY_RULE})
    if unknown:
        remedy = f"name a rule of tocsin rules list, or {EVERY_RULE} for all"
        raise InputError("actions.earn_waived", unknown[0], "no rule has this name", remedy)


def waived_in_words(waived: Sequence[str]) -> str:
    """What `waived` allows, for people; empty where it allows nothing."""
    if not waived:
        return ""
    named = "every rule" if EVERY_RULE in waived else ", ".join(waived)
    return f"actions.earn_waived: {named} may act without approval and without a record"


def is_waived(rule: str, waived: Collection[str]) -> bool:
    """Whether the settings let `rule` act without a record."""
    return EVERY_RULE in waived or rule in waived
