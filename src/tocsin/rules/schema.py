"""What a rule file may say, and the set of rules that comes out of it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.decision import Mode
from tocsin.domain.finding import ActionKind, Category, Severity
from tocsin.domain.reading import Gpu
from tocsin.rules.conditions.base import Condition, Duration
from tocsin.rules.past import Wanted
from tocsin.rules.sxid import SxidCatalogue, shipped_sxids
from tocsin.rules.xid import XidCatalogue

# The nearest known word, for error messages.


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """A remedy that names the entry of `known` closest to `word`."""
    close = difflib.get_close_matches(word, sorted(known), n=1, cutoff=0.0)
    return f"did you mean {close[0]}?" if close else "remove it"


CATALOGUE_ACTION = "catalogue"
"""Written as a rule's action, takes the action of the XID catalogue for the number that was seen."""

WORDS = frozenset({"where", "host", "gpu", "model", "pool", "part", "value", "threshold", "duration", "since", "rule"})
"""Words that every rule's sentence may use in braces."""


class Part(BaseModel):
    """Base of the tables of a rule file: an unknown key is an error."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)


class RuleScope(Part):
    """Which GPUs, or pools, a rule is about; all that is given must fit. Patterns are shell-like: ``*A100*``."""

    models: list[str] = Field(default_factory=list)
    """Patterns of which the model must match one; case does not matter."""
    pools: list[str] = Field(default_factory=list)
    """Patterns of which the pool must match one."""
    hosts: list[str] = Field(default_factory=list)
    """Patterns of which the host must match one."""
    labels: dict[str, str] = Field(default_factory=dict)
    """Labels that must be there, with the pattern that the value must match."""
    instances: Literal["include", "exclude", "only"] = "include"
    """Whether MIG instances that report as GPUs of their own are meant."""

    def covers(self, gpu: Gpu) -> bool:
        return (
            (self.instances == "include" or gpu.is_mig is (self.instances == "only"))
            and _matches(gpu.model.lower(), [pattern.lower() for pattern in self.models])
            and _matches(gpu.pool, self.pools)
            and _matches(gpu.host, self.hosts)
            and all(name in gpu.labels and fnmatchcase(gpu.labels[name], p) for name, p in self.labels.items())
        )

    def covers_pool(self, pool: str) -> bool:
        return _matches(pool, self.pools)

    def covers_group(self, pool: str, model: str) -> bool:
        return self.covers_pool(pool) and _matches(model.lower(), [pattern.lower() for pattern in self.models])

    @property
    def everything(self) -> bool:
        return self == RuleScope()


def _matches(text: str, patterns: list[str]) -> bool:
    return not patterns or any(fnmatchcase(text, pattern) for pattern in patterns)


class RuleTable(Part):
    """One of ``[[rules]]``. It holds where every condition of `all` and, if there are any, one of `any` does."""

    name: str = Field(pattern=r"^[a-z][a-z0-9_]*$")
    """Name of the rule, unique in the file."""
    summary: str = ""
    """What it is about and why, for documentation."""
    severity: Severity
    """`info`, `warning` or `critical`."""
    level: AlertLevel | None = None
    """`page` (a person is needed now), `warning` (for the working day) or `note` (for the record); by default what
    `critical`, `warning` and `info` stand for. What is only predicted, or can wait as drift does, is a warning at
    most."""
    foretells: bool = False
    """Whether it is a sign of a failure to come: where too few of its signs are followed by a fault that pages, on the
    same GPU within `foretells_within`, it becomes a note."""
    foretells_within: Duration = 48 * HOUR
    """How long after its sign a failure bears it out."""
    category: Category
    """What kind of trouble it is about."""
    action: ActionKind | Literal["catalogue"]
    """What it proposes; `catalogue` takes the action of the XID catalogue."""
    action_by_value: dict[str, ActionKind] = Field(default_factory=dict)
    """Actions for particular whole values of the first condition, before `action`."""
    mode: Mode = Mode.OBSERVE
    """How far the action may go: `observe`, `propose` or `act`."""
    for_: Annotated[Duration, Field(alias="for")] = 0
    """How long it must hold without a break before a finding opens."""
    samples: int = Field(default=1, ge=1)
    """In how many readings it must hold before a finding opens."""
    clear_for: Duration = 0
    """How long it must not hold before the finding closes."""
    scope: RuleScope = Field(default_factory=RuleScope)
    """Which GPUs or pools it is about."""
    alert: str
    """The sentence of a finding, with words in braces."""
    enabled: bool = True
    """Whether the rule is evaluated."""
    all_: Annotated[list[dict[str, Any]], Field(alias="all")] = Field(default_factory=list)
    """Conditions that must all hold."""
    any_: Annotated[list[dict[str, Any]], Field(alias="any")] = Field(default_factory=list)
    """Conditions of which one must hold."""


class EngineTable(Part):
    """``[engine]``: when values and subjects stop counting."""

    stale_intervals: float = Field(default=3.0, ge=1, allow_inf_nan=False)
    """A reading is stale after this many of its GPU's own intervals."""
    stale_min: Duration = 2 * MINUTE
    """No reading is stale sooner than this."""
    forget: Duration = 7 * DAY
    """A GPU without a reading or event is forgotten after this."""
    forget_part: Duration = 10 * MINUTE
    """A process, link or instance that its GPU no longer reports is forgotten after this."""


class Correction(Part):
    """Replaces what a catalogue says of a number."""

    code: int = Field(ge=1, le=999_999)
    """The number."""
    class_: Annotated[str | None, Field(alias="class")] = None
    """Its class."""
    severity: Severity | None = None
    """Its severity."""
    action: ActionKind | None = None
    """What it calls for."""
    cause_rank: int | None = Field(default=None, ge=0)
    """Its place between cause, 0, and effect, 99."""
    reason: str = Field(min_length=1)
    """Who says so, and why; kept as the row's provenance."""


class XidTable(Correction):
    """One ``[[xid]]``: replaces what the catalogue says of a number."""

    code: int = Field(ge=1, le=65_535)
    """The number."""
    category: Category | None = None
    """Its category."""


class SxidTable(Correction):
    """One ``[[sxid]]``: replaces what the catalogue says of an NVSwitch number."""


class RuleFile(Part):
    """The whole file."""

    defaults: bool = False
    """Whether the shipped rules apply too; a rule of the same name replaces the shipped one."""
    engine: EngineTable = Field(default_factory=EngineTable)
    """When values and subjects stop counting."""
    modes: dict[str, Mode] = Field(default_factory=dict)
    """Modes by rule name, in place of those of the rules."""
    xid: list[XidTable] = Field(default_factory=list)
    """Corrections to the XID catalogue."""
    sxid: list[SxidTable] = Field(default_factory=list)
    """Corrections to the SXid catalogue."""
    rules: list[RuleTable] = Field(default_factory=list)
    """The rules."""


@dataclass(frozen=True)
class Rule:
    """A checked rule: `table` as written, its conditions, and the sheet that its subjects are in."""

    table: RuleTable
    all_: tuple[Condition, ...]
    any_: tuple[Condition, ...]
    sheet: str

    @property
    def name(self) -> str:
        return self.table.name

    @property
    def conditions(self) -> tuple[Condition, ...]:
        """All conditions, in the order in which they speak for a finding."""
        return (*self.all_, *self.any_)

    @property
    def told(self) -> bool:
        """Whether it rests on reported events alone."""
        return all(condition.told for condition in self.conditions)

    @property
    def expects(self) -> bool:
        """Whether it may hold by predictions alone."""
        return all(each.expects for each in self.all_) and (not self.any_ or any(each.expects for each in self.any_))

    @property
    def level(self) -> AlertLevel:
        """How soon a person should hear of it: nobody is woken by what is only predicted, or by what can wait."""
        level = self.table.level or self.table.severity.level
        can_wait = self.expects or not all(condition.wakes for condition in self.conditions)
        return AlertLevel.WARNING if can_wait and level is AlertLevel.PAGE else level

    def meaning(self) -> str:
        every = [condition.meaning() for condition in self.all_]
        some = " or ".join(condition.meaning() for condition in self.any_)
        if every and some:
            return f"{' and '.join(every)} and ({some})"
        return " and ".join(every) or some


@dataclass(frozen=True)
class RuleSet:
    """Rules in the order of the file, without those that are switched off; names are unique."""

    rules: tuple[Rule, ...]
    engine: EngineTable
    xids: XidCatalogue
    sxids: SxidCatalogue = field(default_factory=shipped_sxids)

    @property
    def foretelling(self) -> dict[str, int]:
        """The rules that foretell failures, by name, with the milliseconds within which one bears a sign out."""
        return {rule.name: rule.table.foretells_within for rule in self.rules if rule.table.foretells}

    def __iter__(self) -> Iterator[Rule]:
        return iter(self.rules)

    def __len__(self) -> int:
        return len(self.rules)

    @property
    def recalling(self) -> frozenset[str]:
        """The names of rules that judge by more of the past than a start goes through."""
        return frozenset(rule.name for rule in self.rules if any(one.recall_ms for one in rule.conditions))

    @property
    def wanted(self) -> Wanted:
        """What conditions with a `recall_ms` need of the past, beside what a start goes through."""
        asking = [one for rule in self.rules for one in rule.conditions if one.recall_ms]
        metrics = {ref.key for one in asking for ref in one.metrics()}
        return Wanted(tuple(sorted(metrics)), max((one.recall_ms for one in asking), default=0))
