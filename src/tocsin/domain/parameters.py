"""Typed parameters and the flat mapping of texts that stands for them on the wire, in the journal and in the store.

A record of parameters is a frozen dataclass whose fields say how they are written (`Form`). `decode` never fails: what
it does not know, or cannot read, stays in `carried` and comes out of `encode` as it was, so that a journal written by
an older or a newer version keeps its content. `Parameters.problem` tells what could not be read.
"""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Mapping
from dataclasses import MISSING, dataclass, field, fields, is_dataclass
from enum import StrEnum
from typing import Annotated, Any, TypeVar, get_args, get_origin, get_type_hints

MOST_COUNT = 10**9
"""Counts, watts and megahertz are below this; more is a slip of the pen."""
_SHOWN = 80
"""Characters of an unreadable value that are repeated in words."""


@dataclass(frozen=True, slots=True)
class Form:
    """How a value is written: `read` raises ValueError for a text that is no `what`."""

    what: str
    read: Callable[[str], Any]
    write: Callable[[Any], str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameters:
    """What all records share. `carried` has texts by key: unknown keys, values that cannot be read, and values that
    would be written another way (``12.5`` for ``12.50``), each as it came."""

    carried: Mapping[str, str] = field(default_factory=dict)

    @property
    def problem(self) -> str:
        """The first value that cannot be read, in words; empty where all can. An empty text stands for no value."""
        slots = _layout(type(self)).slots
        for key, text in self.carried.items():
            slot = slots.get(key)
            if slot is not None and text and slot.value_of(text) is MISSING:
                shown = text if len(text) <= _SHOWN else f"{text[:_SHOWN]}..."
                return f"{key} = {shown!r} is no {slot.form.what}"
        return ""


P = TypeVar("P", bound=Parameters)


@dataclass(frozen=True, slots=True)
class _Slot:
    """Where a key is kept: the field `name`, of the record in field `part` where that is not empty."""

    part: str
    name: str
    form: Form
    default: Any

    def of(self, parameters: Parameters) -> Any:
        return getattr(getattr(parameters, self.part) if self.part else parameters, self.name)

    def value_of(self, text: str) -> Any:
        """What `text` says; MISSING where it cannot be read."""
        try:
            return self.form.read(text)
        except (ValueError, TypeError, RecursionError):
            return MISSING

    def stands_for(self, text: str, value: Any) -> bool:
        """Whether a carried text is still that of `value`, which may have been replaced since. What cannot be read
        stands for the default, which took its place."""
        found = self.value_of(text)
        return bool((self.default if found is MISSING else found) == value)


def encode(parameters: Parameters) -> dict[str, str]:
    """`parameters` as texts by key, without those that have their default value. Inverse of `decode`."""
    carried, texts = dict(parameters.carried), dict[str, str]()
    for key, slot in _layout(type(parameters)).slots.items():
        value, kept = slot.of(parameters), carried.pop(key, None)
        if kept is not None and slot.stands_for(kept, value):
            texts[key] = kept
        elif value != slot.default:
            texts[key] = slot.form.write(value)
    return texts | carried


def decode(kind: type[P], texts: Mapping[str, str]) -> P:
    """The record of `kind` that `texts` stand for; `encode` gives the same texts again. Raises nothing."""
    layout = _layout(kind)
    own: dict[str, Any] = {}
    parts: dict[str, dict[str, Any]] = {}
    carried: dict[str, str] = {}
    for key, text in texts.items():
        slot = layout.slots.get(key)
        value = MISSING if slot is None else slot.value_of(text)
        if slot is None or value is MISSING:
            carried[key] = text
            continue
        (parts.setdefault(slot.part, {}) if slot.part else own)[slot.name] = value
        if value == slot.default or (slot.form is not TEXT and slot.form.write(value) != text):
            carried[key] = text
    made = {name: layout.parts[name](**values) for name, values in parts.items()}
    return kind(**own, **made, carried=carried)


def forms_of(kind: type[Parameters]) -> dict[str, str]:
    """By key how a record of `kind` writes it, in words such as `list of names`."""
    return {key: slot.form.what for key, slot in _layout(kind).slots.items()}


@dataclass(frozen=True, slots=True)
class _Layout:
    """The slots of a kind of record by key, and the kinds of those of its fields that are records of their own, whose
    slots stand beside the others."""

    slots: dict[str, _Slot]
    parts: dict[str, type[Any]]


_LAYOUTS: dict[type[Any], _Layout] = {}
"""Of each kind: to resolve its annotations takes as long as reading a hundred mappings, and a journal has many."""


def _layout(kind: type[Any]) -> _Layout:
    found = _LAYOUTS.get(kind)
    if found is None:
        hints = get_type_hints(kind)
        parts = {one.name: hints[one.name] for one in fields(kind) if is_dataclass(hints[one.name])}
        slots = _own_slots(kind, "")
        for name, part in parts.items():
            slots |= _own_slots(part, name)
        found = _LAYOUTS[kind] = _Layout(slots, parts)
    return found


def _own_slots(kind: type[Any], part: str) -> dict[str, _Slot]:
    """By key, which is the name of the field unless its annotation has another."""
    hints = get_type_hints(kind, include_extras=True)
    found: dict[str, _Slot] = {}
    for one in fields(kind):
        extras = get_args(hints[one.name])[1:] if get_origin(hints[one.name]) is Annotated else ()
        form = next((extra for extra in extras if isinstance(extra, Form)), None)
        if form is not None:
            key = next((extra for extra in extras if isinstance(extra, str)), one.name)
            default = one.default if one.default_factory is MISSING else one.default_factory()
            found[key] = _Slot(part, one.name, form, default)
    return found


# ------------------------------------------------------------------ forms


def _number(kind: type[int | float], fits: Callable[[Any], bool]) -> Callable[[str], Any]:
    """Reads a number of `kind` that `fits`; raises ValueError for any other text."""

    def read(text: str) -> Any:
        value = kind(text)
        if not fits(value):
            raise ValueError(text)
        return value

    return read


def _plain(value: float) -> str:
    """Without a fraction where there is none: ``450``, ``450.5``."""
    return str(int(value)) if value == int(value) else repr(value)


def _truth(text: str) -> bool:
    if text not in ("true", "false"):
        raise ValueError(text)
    return text == "true"


def _names(text: str) -> tuple[str, ...]:
    return tuple(name for part in text.split(",") if (name := part.strip()))


def choice(kind: type[StrEnum], what: str) -> Form:
    """One of the values of an enumeration."""
    return Form(what, kind, str)


def json_form(what: str, read: Callable[[Any], Any], plain: Callable[[Any], Any], *, compact: bool) -> Form:
    """JSON: `read` makes the value of what the document holds and raises ValueError or TypeError, `plain` undoes it."""
    separators = (",", ":") if compact else None
    return Form(
        what,
        lambda text: read(json.loads(text)),
        lambda value: json.dumps(plain(value), separators=separators),
    )


TEXT = Form("text", str, str)
NAMES = Form("list of names", _names, ",".join)

_positive = _number(float, lambda value: 0 < value < MOST_COUNT)
_finite = _number(float, math.isfinite)

Text = Annotated[str, TEXT]
"""Any text; empty stands for none."""
Names = Annotated[tuple[str, ...], NAMES]
"""Names, with commas between them."""
Flag = Annotated[bool, Form("true or false", _truth, lambda value: "true" if value else "false")]
Count = Annotated[int | None, Form("whole number", _number(int, lambda value: 0 <= value < MOST_COUNT), str)]
Instant = Annotated[int | None, Form("instant in milliseconds", _number(int, lambda value: 0 <= value < 2**63), str)]
"""Milliseconds since 1970."""
Watts = Annotated[float | None, Form("positive number", _positive, _plain)]
Megahertz = Annotated[float | None, Form("positive number", _positive, _plain)]
GpuHours = Annotated[float | None, Form("number of GPU-hours", _finite, lambda value: f"{value:.2f}")]
"""Two decimals."""
Share = Annotated[float | None, Form("positive number", _positive, lambda value: f"{value:.6f}")]
"""Six decimals; above 0."""
