"""The JSON of the API: what all wire models share, and how a domain dataclass becomes an object of JSON.

Instants are RFC 3339 texts in UTC with milliseconds (`tocsin.domain.clock.to_iso`), durations seconds, ratios 0 to 1,
other values in the unit of the metric table. None means that there is no value. Servers refuse a field that they do not
know; clients pass over it (`extra="ignore"` at `validate_json`), so that a newer brain may say more.

`Wired[Prediction]` is a `Prediction` to whoever reads the code, and to pydantic its public form. A field has the name
of its attribute, but for time: the instant ``eta_ms`` is ``eta``, an RFC 3339 text, and the durations in `_DURATIONS`
are in seconds. The properties in `_SHOWN` are fields too; they are not read back, as they follow from the rest. Nested
dataclasses, tuples and mappings follow the same rules. A new attribute of a dataclass needs nothing here, unless the
API has a bound for it or must not show it (`_SPECS`).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache, partial
from types import UnionType
from typing import Annotated, Any, TypeVar, Union, get_args, get_origin, get_type_hints

from pydantic import (
    AfterValidator,
    BaseModel,
    ConfigDict,
    Field,
    GetCoreSchemaHandler,
    GetJsonSchemaHandler,
    GetPydanticSchema,
    JsonValue,
    PlainSerializer,
    TypeAdapter,
    WithJsonSchema,
)
from pydantic_core import CoreSchema, core_schema

from tocsin.domain.clock import SECOND, from_iso, to_iso
from tocsin.domain.decision import Decision, NotifyParameters, Outcome
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.entry import Entry, Verification
from tocsin.domain.finding import Evidence, Finding
from tocsin.domain.order import Order, OrderParameters, OrderReport
from tocsin.domain.parameters import Parameters, decode, encode
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Owner

INSTANT_PATTERN = r"^\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2}\.\d{3}Z$"
INSTANT_EXAMPLE = "2026-11-21T03:54:16.000Z"

Instant = Annotated[str, Field(pattern=INSTANT_PATTERN, examples=[INSTANT_EXAMPLE])]
Ratio = Annotated[float, Field(ge=0, le=1)]
Count = Annotated[int, Field(ge=0)]
_Text = Annotated[str, Field(max_length=1000)]
_Name = Annotated[str, Field(min_length=1, max_length=1000)]
_Milliwatts = Annotated[int, Field(ge=0, le=10_000_000)]
_MOST_ENTRIES = 64


class Wire(BaseModel):
    """Base of every wire model."""

    model_config = ConfigDict(
        frozen=True,
        extra="forbid",
        use_attribute_docstrings=True,
        allow_inf_nan=False,
        serialize_by_alias=True,
        # A command uses few of the models; each is built at its first use.
        defer_build=True,
    )


class RequestBody(Wire):
    """Base of what a request brings. Built at once: FastAPI wraps it where its route stands."""

    model_config = ConfigDict(defer_build=False)


def _converted(inner: CoreSchema, read: Callable[[Any], Any], write: Callable[[Any], Any]) -> GetPydanticSchema:
    """A value that `read` takes from what `inner` lets through, and `write` gives back."""
    written = core_schema.plain_serializer_function_ser_schema(write, return_schema=inner)
    schema = core_schema.no_info_after_validator_function(read, inner, serialization=written)
    return GetPydanticSchema(lambda _source, _handler: schema)


_Instant = Annotated[
    int,
    # The pattern alone lets the 31st of February through; `from_iso` does not.
    _converted(core_schema.str_schema(pattern=INSTANT_PATTERN), from_iso, to_iso),
    WithJsonSchema({"type": "string", "pattern": INSTANT_PATTERN, "examples": [INSTANT_EXAMPLE]}),
]
"""Milliseconds here, RFC 3339 there."""
_Duration = Annotated[
    int,
    _converted(
        core_schema.float_schema(allow_inf_nan=False), lambda seconds: round(seconds * SECOND), lambda ms: ms / SECOND
    ),
    WithJsonSchema({"type": "number"}),
]
"""Milliseconds here, seconds there."""
_DURATIONS = {"horizon_ms": "horizon_s", "window_ms": "window_s"}
_RENAMED = {"lease_seconds": "lease_s"}
_SHOWN = ("id", "label", "subjects", "gpu_hours")
"""Properties that are fields of JSON where a class has them."""
_SHOWN_KEY = "tocsin_shown"


@dataclass(frozen=True, slots=True)
class _Spec:
    """What the API has of its own for a dataclass: `bounds` are annotated types by attribute, `hidden` the attributes
    that it does not show, with what they are for whoever reads the JSON."""

    bounds: Mapping[str, Any] = field(default_factory=dict)
    hidden: Mapping[str, Any] = field(default_factory=dict)


def _texts(kind: type[Parameters], text: Any = str, *bounds: Any) -> Any:
    """Parameters as the flat mapping of texts that stands for them."""
    written = PlainSerializer(encode, return_type=dict[str, str])
    return Annotated[(dict[str, text], *bounds, AfterValidator(partial(decode, kind)), written)]


_SPECS: dict[type, _Spec] = {
    Prediction: _Spec(
        {
            "probability": Ratio | None,
            "coverage": Ratio | None,
            "curve": tuple[tuple[_Duration, Ratio], ...],
            "classes": tuple[tuple[str, Ratio], ...],
        }
    ),
    Diagnosis: _Spec({"score": Ratio}),
    Owner: _Spec({"pid": Count}),
    Evidence: _Spec(hidden={"text_zh": ""}),
    Finding: _Spec(hidden={"told": False}),
    # Read as a notification's: a decision makes its parameters those of its own action.
    Decision: _Spec({"parameters": _texts(NotifyParameters)}, hidden={"key": ""}),
    Outcome: _Spec({"attempts": Count}, hidden={"decision": ""}),
    Verification: _Spec({"events": Count}),
    Entry: _Spec({"seq": Count, "epoch": Count, "payload": dict[str, JsonValue]}),
    # A node's report is a stranger's word, and an order is what a node lets be done to it. Parameters are read as those
    # of no action in particular: an order makes them those of its own.
    Order: _Spec(
        {
            "key": _Name,
            "decision": _Text,
            "host": _Name,
            "gpu": _Name,
            "lease_seconds": Annotated[float, Field(ge=0)],
            "epoch": Count,
            "parameters": _texts(OrderParameters, _Text, Field(max_length=_MOST_ENTRIES)),
        }
    ),
    OrderReport: _Spec(
        {
            "detail": _Text,
            "requested_before_mw": _Milliwatts | None,
            "enforced_before_mw": _Milliwatts | None,
            "requested_after_mw": _Milliwatts | None,
            "enforced_after_mw": _Milliwatts | None,
            "figures": Annotated[dict[str, float], Field(max_length=_MOST_ENTRIES)],
        }
    ),
}


class _Public:
    """Annotates a dataclass whose public form is meant."""

    def __get_pydantic_core_schema__(self, source: type, handler: GetCoreSchemaHandler) -> CoreSchema:
        spec = _spec_of(source)
        hints = get_type_hints(source)
        shown = [name for name in _SHOWN if isinstance(getattr(source, name, None), property)]
        fields = [_field(one, spec, hints[one.name], handler) for one in dataclasses.fields(source)]
        made = {name: handler.generate_schema(get_type_hints(getattr(source, name).fget)["return"]) for name in shown}
        schema = core_schema.dataclass_schema(
            source,
            core_schema.dataclass_args_schema(
                source.__name__,
                fields,
                computed_fields=[core_schema.computed_field(name, schema) for name, schema in made.items()],
                extra_behavior="forbid",
            ),
            # What names an object comes first.
            sorted((one.name for one in dataclasses.fields(source)), key=lambda name: name != "id"),
            slots=hasattr(source, "__slots__"),
            post_init=hasattr(source, "__post_init__"),
            ref=f"{__name__}.{source.__qualname__}:{id(source)}",
            config=core_schema.CoreConfig(serialize_by_alias=True, allow_inf_nan=False),
        )
        if not shown:
            return schema
        return core_schema.no_info_before_validator_function(
            lambda given: {k: v for k, v in given.items() if k not in shown} if isinstance(given, dict) else given,
            schema,
            metadata={_SHOWN_KEY: shown},
        )

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        made = handler(schema)
        if handler.mode == "validation":
            properties = handler.resolve_ref_schema(made)["properties"]
            # Whoever sends an object back sends what it was shown.
            properties |= {name: {"title": name.title()} for name in schema.get("metadata", {}).get(_SHOWN_KEY, ())}
        return made


_PUBLIC = _Public()
T = TypeVar("T")
Wired = Annotated[T, _PUBLIC]


def extended(kind: type[T], base: Any, **more: object) -> T:
    """A `kind`, which is made from the dataclass of `base`, with all that `base` has and `more`."""
    return kind(**{one.name: getattr(base, one.name) for one in dataclasses.fields(base)} | more)


def _spec_of(kind: type) -> _Spec:
    """That of the class and of those that it is made from."""
    found = [_SPECS[one] for one in reversed(kind.__mro__) if one in _SPECS]
    bounds = {name: bound for spec in found for name, bound in spec.bounds.items()}
    return _Spec(bounds, {name: value for spec in found for name, value in spec.hidden.items()})


def _field(
    one: dataclasses.Field[Any], spec: _Spec, hint: Any, handler: GetCoreSchemaHandler
) -> core_schema.DataclassField:
    if one.name in spec.hidden:
        nothing = core_schema.with_default_schema(core_schema.any_schema(), default=spec.hidden[one.name])
        return core_schema.dataclass_field(one.name, nothing, kw_only=True, serialization_exclude=True)
    public = _DURATIONS.get(one.name) or _RENAMED.get(one.name) or one.name.removesuffix("_ms")
    form = spec.bounds.get(one.name, hint)
    if one.name in _DURATIONS:
        form = _Duration
    elif one.name.endswith("_ms"):
        form = _Instant if hint is int else _Instant | None
    schema = handler.generate_schema(wired(form))
    if one.default_factory is not dataclasses.MISSING:
        schema = core_schema.with_default_schema(schema, default_factory=one.default_factory)
    elif one.default is not dataclasses.MISSING:
        schema = core_schema.with_default_schema(schema, default=one.default)
    return core_schema.dataclass_field(
        one.name, schema, kw_only=True, validation_alias=public, serialization_alias=public
    )


def wired(hint: Any) -> Any:
    """`hint` with the public form of every dataclass in it."""
    if isinstance(hint, type) and dataclasses.is_dataclass(hint):
        return Annotated[hint, _PUBLIC]
    origin, inner = get_origin(hint), get_args(hint)
    if origin in (Union, UnionType):
        return Union[tuple(wired(one) for one in inner)]  # noqa: UP007  # made from a tuple
    if origin in (tuple, list, dict):
        return origin[tuple(one if one is ... else wired(one) for one in inner)]
    return hint


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(wired(kind))


def adapter(kind: type[T]) -> TypeAdapter[T]:
    """Reads and writes `kind`, a wire model or a dataclass or a list of such."""
    return _adapter(kind)  # type: ignore[arg-type]  # a type is hashable


def to_json(value: object) -> Any:
    """The JSON of a domain object, of a wire model, or of a sequence of such, as Python objects."""
    if isinstance(value, (list, tuple)):
        return [to_json(one) for one in value]
    return adapter(type(value)).dump_python(value, mode="json")
