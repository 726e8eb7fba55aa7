"""What every kind of condition is: a checked description that a rule file holds, and a probe that judges all rows."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Annotated, ClassVar

from pydantic import BaseModel, BeforeValidator, ConfigDict

from tocsin.domain.errors import InputError
from tocsin.domain.finding import ActionKind, Evidence
from tocsin.domain.metrics import METRICS, MetricSpec, nearest, split_variant
from tocsin.plugins import Kind, load_all, plugins
from tocsin.rules.frame import EventLog, Forecasts, Frame
from tocsin.rules.past import Past
from tocsin.rules.sheet import GPU_SHEET, MetricColumn, Sheet, VariantSheet
from tocsin.rules.sxid import SxidCatalogue
from tocsin.rules.table import Bools, Ints
from tocsin.rules.units import parse_duration
from tocsin.rules.xid import XidCatalogue, XidSpec

Duration = Annotated[int, BeforeValidator(parse_duration)]
"""Milliseconds, written as text with a unit."""


@dataclass(frozen=True)
class MetricRef:
    """A metric that a rule names: `key` is the column, `sheet` where it lives.

    ``name`` is the plain value, ``name{label}`` each of its variants, ``name{label="v"}`` one variant of the GPU.
    """

    key: str
    spec: MetricSpec
    sheet: str


def metric_ref(text: str, where: str) -> MetricRef:
    """`text` as a reference; raises InputError that names the nearest metric or the right label."""
    name, label, _ = split_variant(text)
    each = ""
    if not label and text.endswith("}") and "{" in text:
        name, _, each = text[:-1].partition("{")
    spec = METRICS.get(name)
    if spec is None:
        raise InputError(where, text, "no such metric", f"did you mean {nearest(name)}?")
    if (label or each) and spec.label != (label or each):
        remedy = f"write {name}{{{spec.label}}}" if spec.label else f"write {name}: it has no variants"
        raise InputError(where, text, "no such label", remedy)
    return MetricRef(name if each else text, spec, each or spec.entity)


@dataclass(frozen=True)
class Report:
    """What a probe says of one row, for the finding: the numbers, what supports them, and words for the sentence.

    `action` is what the catalogue calls for, for probes about XIDs. `clear` is the level at which the finding clears
    where the value is back on the safe side of `threshold` and not of that; else None.
    """

    metric: str = ""
    value: float | None = None
    threshold: float | None = None
    evidence: tuple[Evidence, ...] = ()
    words: Mapping[str, str] = field(default_factory=dict)
    action: ActionKind | None = None
    clear: float | None = None


@dataclass(frozen=True)
class World:
    """All that a probe may look at; `sheet` is that of its rule."""

    frame: Frame
    sheet: Sheet
    log: EventLog
    forecasts: Forecasts
    xids: XidCatalogue
    sxids: SxidCatalogue

    def column(self, ref: MetricRef) -> MetricColumn:
        return self.frame.sheets[ref.sheet].column(ref.key, ref.spec)


class Probe:
    """Judges every row of one table.

    In each step `update` runs once, then `true` and, where it matters, `known`: a row is false where it is known and
    not true. `open_` marks rows with an open finding, None where there is none: those are held to the clear level.
    A `clocked` probe is judged by the present instant instead of the instant of the newest reading. One that looks at
    readings alone says so by `heeds_events`: it is left out where events are judged between two looks at the readings.
    """

    clocked: ClassVar[bool] = False
    heeds_events: bool = True
    open_: Bools | None = None

    def update(self) -> None:
        """Take in what this step brought."""

    def update_ahead(self) -> None:
        """Take in predictions ahead of the step that they belong to."""

    def recall(self, past: Past) -> None:
        """Take in what the table's GPUs counted before all that `update` saw of them."""

    def true(self) -> Bools:
        raise NotImplementedError

    def known(self) -> Bools:
        raise NotImplementedError

    def since(self) -> Ints | None:
        """Since when each true row is true, where the probe knows better than the first step that saw it."""
        return None

    def report(self, row: int) -> Report:  # noqa: ARG002
        return Report()

    def forget(self, rows: Iterable[int]) -> None:
        """Drop what is kept outside the table's vectors for `rows` of the GPU table."""


class Condition(BaseModel):
    """Base of the kinds. `words` names what the kind adds to the words of a rule's sentence."""

    model_config = ConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)
    words: ClassVar[frozenset[str]] = frozenset()
    told: ClassVar[bool] = False
    """Whether it is about events that somebody reported once, which a second look does not bear out any further."""
    wakes: ClassVar[bool] = True
    """Whether it may be worth waking a person for."""
    expects: ClassVar[bool] = False
    """Whether it is about what a model predicts, and about nothing that has happened."""
    recall_ms: ClassVar[int] = 0
    """How far back the values of its metrics count, where a start goes through less: its probe is told them later."""

    kind: str
    """Which kind of condition."""

    def metrics(self) -> tuple[MetricRef, ...]:
        return ()

    def sheets(self) -> frozenset[str]:
        """Sheets that it is about."""
        return frozenset(ref.sheet for ref in self.metrics()) or frozenset({GPU_SHEET})

    def window_ms(self) -> int:
        """How far back an event must be kept for it, in milliseconds."""
        return 0

    def check(self) -> None:
        """Raise InputError, its field named relative to the condition, for what no type can rule out."""

    def xid_classes(self) -> Sequence[str]:
        """Classes of the XID catalogue that it names, to be checked against the catalogue in force."""
        return ()

    def about(self, spec: XidSpec) -> bool:  # noqa: ARG002
        """Whether an XID of `spec` is among what makes it hold."""
        return False

    def bind(self, world: World) -> Probe:
        """The probe over `world`."""
        raise NotImplementedError

    def meaning(self) -> str:
        """The condition in words, for documentation."""
        raise NotImplementedError


class Broadcast(Probe):
    """A GPU's probe as seen from the GPU's parts: processes, links or instances."""

    def __init__(self, inner: Probe, sheet: VariantSheet) -> None:
        self._inner = inner
        self._sheet = sheet
        self.heeds_events = inner.heeds_events

    def update(self) -> None:
        self._inner.update()

    def update_ahead(self) -> None:
        self._inner.update_ahead()

    def recall(self, past: Past) -> None:
        self._inner.recall(past)

    def true(self) -> Bools:
        return self._inner.true()[self._sheet.parent.v]

    def known(self) -> Bools:
        return self._inner.known()[self._sheet.parent.v]

    def report(self, row: int) -> Report:
        return self._inner.report(int(self._sheet.parent.v[row]))

    def forget(self, rows: Iterable[int]) -> None:
        self._inner.forget(rows)


def names() -> list[str]:
    """Kinds of conditions in order, also of those that do not load."""
    return sorted(plugins(Kind.CONDITION))


def condition_of(kind: str) -> type[Condition]:
    """The class of `kind`, one of `names`. Raises InputError where it is of another package and does not load."""
    found: type[Condition] = plugins(Kind.CONDITION)[kind].load()
    return found


def kinds() -> dict[str, type[Condition]]:
    """Kind of condition to its class, by name. Raises InputError where a package of others does not load."""
    return dict(sorted(load_all(Kind.CONDITION).items()))
