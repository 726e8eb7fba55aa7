"""What pydantic says of a rule file, in Tocsin's one shape of errors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from pydantic import BaseModel, ValidationError

from tocsin.domain.errors import InputError
from tocsin.rules.suggest import did_you_mean


def name_place(location: tuple[int | str, ...], raw: Mapping[str, Any]) -> tuple[str, int]:
    """Where an error is: a prefix that names the rule or XID, and how much of `location` it stands for."""
    if len(location) > 1 and location[0] in ("rules", "xid", "sxid") and isinstance(location[1], int):
        entry = raw[location[0]][location[1]]
        kind, key = ("rule", "name") if location[0] == "rules" else (str(location[0]), "code")
        name = entry.get(key) if isinstance(entry, Mapping) else None
        return f"{kind} {name if name is not None else f'number {location[1] + 1}'}: ", 2
    return "", 0


def explain(first: Any, model: type[BaseModel], place: tuple[str, int]) -> InputError:
    """pydantic's error `first` about `model` as an InputError; `place` is what `name_place` gives."""
    prefix, skipped = place
    location = [str(part) for part in first["loc"][skipped:] if not _is_branch(part)]
    field = prefix + ".".join(location)
    if first["type"] == "extra_forbidden":
        return InputError(field, first["input"], "unknown key", did_you_mean(location[-1], _keys(model, first["loc"])))
    if first["type"] == "missing":
        return InputError(field, None, "is missing", f"add {location[-1]}")
    problem = first["msg"].removeprefix("Value error, ").removeprefix("Input should be ")
    if problem != first["msg"] and first["type"] != "value_error":
        problem = f"should be {problem}"
    return InputError(field, first["input"], problem, f"correct {location[-1] if location else 'it'}")


def first_error(error: ValidationError) -> Any:
    """The first error; of the branches of a union, the one that fits what was written: a table or a plain value."""
    errors = error.errors(include_url=False)
    first = errors[0]
    if not isinstance(first["input"], Mapping):
        return first
    head = tuple(part for part in first["loc"] if not _is_branch(part))
    return next(
        (one for one in errors if len(one["loc"]) > len(first["loc"]) and one["loc"][: len(head)] == head), first
    )


def _is_branch(part: int | str) -> bool:
    """Whether a step of a pydantic location names a branch of a union instead of a key."""
    return isinstance(part, str) and (part in ("float", "Reference") or part.startswith(("constrained", "function-")))


def _keys(model: type[BaseModel], location: Sequence[int | str]) -> set[str]:
    """Keys that are known where `location` ends."""
    for part in location[:-1]:
        field = next((f for name, f in model.model_fields.items() if part in (name, f.alias)), None)
        inner = _model_in(field.annotation) if field is not None else None
        model = inner or model
    return {field.alias or name for name, field in model.model_fields.items()}


def _model_in(annotation: Any) -> type[BaseModel] | None:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    return next((found for arg in getattr(annotation, "__args__", ()) if (found := _model_in(arg))), None)
