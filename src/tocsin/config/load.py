"""Reading settings from file, environment and secret files, with errors that name the key and the remedy."""

from __future__ import annotations

import difflib
import logging
import os
import stat
import tomllib
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr, ValidationError
from pydantic_core import ErrorDetails
from pydantic_settings import BaseSettings, EnvSettingsSource, NestedSecretsSettingsSource, SettingsConfigDict

from tocsin.config.settings import Settings
from tocsin.domain.errors import InputError
from tocsin.plugins import Kind, named_by

# Secrets that a setting names a file for: `secret_file = "/run/secrets/x"` in place of `secret = "..."`.

SUFFIX = "_file"
MAX_SECRET_BYTES = 64 * 1024
"""A larger file is no secret but a mistake."""

_LOG = logging.getLogger("tocsin.config")


def read_secret_files(raw: dict[str, Any], model: type[BaseModel], path: str = "") -> None:
    """Put, in the settings `raw` of section `model`, what the named files hold in the place of the names.

    Raises InputError for a file that cannot be read, is empty or may be changed by everybody, and where the secret is
    given as well.
    """
    for name, field in model.model_fields.items():
        if field.annotation is SecretStr:
            # A section that has the file as a setting of its own reads it itself, again and again.
            if name + SUFFIX not in model.model_fields:
                _read(raw, name, path)
            continue
        section, value = section_of(field.annotation), raw.get(name)
        for place, inner in _tables(value) if section is not None else ():
            assert section is not None
            read_secret_files(inner, section, f"{path}{name}.{place}")


def _tables(value: object) -> list[tuple[str, dict[str, Any]]]:
    if isinstance(value, dict):
        return [("", value)]
    rows = value if isinstance(value, list) else []
    return [(f"{number}.", row) for number, row in enumerate(rows) if isinstance(row, dict)]


def _read(raw: dict[str, Any], name: str, path: str) -> None:
    if name + SUFFIX not in raw:
        return
    key = f"{path}{name}{SUFFIX}"
    named = raw.pop(name + SUFFIX)
    if name in raw:
        raise InputError(key, str(named), f"{path}{name} is given as well", "keep one of the two")
    if not isinstance(named, str) or not named:
        raise InputError(key, "(not shown)", "is no path", "name the file that holds the secret")
    raw[name] = read_secret(Path(named), key)


def read_secret(path: Path, key: str) -> str:
    """What the file `path` holds, without a newline at its end; `key` is the setting that errors name."""
    try:
        found = path.stat()
        if found.st_size > MAX_SECRET_BYTES:
            raise InputError(key, str(path), "is too large for a secret", "name the file that holds the secret alone")
        text = path.read_text(encoding="utf-8").rstrip("\r\n")
    except OSError as error:
        problem = error.strerror or "cannot be read"
        raise InputError(key, str(path), problem, "name a file that this user may read") from None
    except UnicodeDecodeError:
        raise InputError(key, str(path), "is no text", "name the file that holds the secret alone") from None
    if found.st_mode & stat.S_IWOTH:
        raise InputError(key, str(path), "everybody may change it", f"run chmod 600 {path}")
    if found.st_mode & stat.S_IROTH:
        # Container platforms mount secrets so, and nobody else is in the container: a warning must do.
        _LOG.warning("%s: everybody on this host may read %s; chmod 600 would keep it secret", key, path)
    if not text:
        raise InputError(key, str(path), "is empty", "write the secret into it")
    return text


def section_of(annotation: Any) -> type[BaseModel] | None:
    """The section that a setting of type `annotation` is, or is a list of; None where it is a plain value."""
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return annotation
    if get_origin(annotation) in (list, Union, UnionType):
        return next((found for found in map(section_of, get_args(annotation)) if found), None)
    return None


MOST_ERRORS, MOST_CHARACTERS = 50, 1500
"""Most wrong settings that are looked at, and the longest list of them: a file of nonsense has thousands."""


class WrongSettings(InputError):
    """Several settings are wrong: `errors` has each, but for the last `further` of them; the other attributes are those
    of the first."""

    def __init__(self, errors: Sequence[InputError], further: int = 0) -> None:
        first = errors[0]
        super().__init__(first.field, first.value, first.problem, first.remedy)
        self.errors, self.further = tuple(errors), further

    def __str__(self) -> str:
        count = len(self.errors) + self.further
        lines, left = [f"{count} settings are wrong:"], MOST_CHARACTERS
        for number, one in enumerate(self.errors):
            line = f"  {one}"
            left -= len(line)
            if left < 0 and number:
                break
            lines.append(line)
        if count >= len(lines):
            lines.append(f"  and {count - len(lines) + 1} more")
        return "\n".join(lines)

    def __reduce__(self) -> tuple[Any, ...]:
        return type(self), (self.errors, self.further)


def together(errors: Sequence[InputError], further: int = 0) -> InputError:
    """`errors` as one, and how many more there are; a single one as it is."""
    return errors[0] if len(errors) + further == 1 else WrongSettings(errors, further)


PREFIX = "TOCSIN_"
"""Environment variables that hold settings start with this and have ``__`` between section and key."""


class _SettingsShape(BaseSettings, Settings):
    """Tells the sources of pydantic-settings which keys there are."""

    model_config = SettingsConfigDict(
        env_prefix=PREFIX, env_nested_delimiter="__", extra="forbid", use_attribute_docstrings=True
    )


def load_settings(
    path: Path | None = None, *, environ: Mapping[str, str] | None = None, secrets: Path | None = None
) -> Settings:
    """Settings from the TOML file `path`, the environment and the folder `secrets`.

    Without `path` the file that ``TOCSIN_CONFIG`` names is read, without that none; without `secrets` the folder that
    ``TOCSIN_SECRETS`` names. A secret file is named like its variable in lower case without the prefix, for example
    ``webhook__secret``. Wherever a secret may be given, ``NAME_file`` may name a file that holds it. Raises InputError
    for a key that is unknown or has a value that does not fit, `WrongSettings` for several.
    """
    environ = os.environ if environ is None else environ
    if path is None and environ.get("TOCSIN_CONFIG"):
        path = Path(environ["TOCSIN_CONFIG"])
    if secrets is None and environ.get("TOCSIN_SECRETS"):
        secrets = Path(environ["TOCSIN_SECRETS"])
    layers = {
        str(path): _read_toml(path) if path is not None else {},
        "the environment": _from_environment(environ),
        "the secret files": _from_secrets(secrets),
    }
    raw: dict[str, Any] = {}
    for layer in layers.values():
        raw = _merge(raw, layer)
    read_secret_files(raw, Settings)
    try:
        return Settings.model_validate(raw)
    except ValidationError as error:
        raise _explain(error, " or ".join(name for name, layer in layers.items() if layer)) from None


def overridden(path: Path | None = None, *, environ: Mapping[str, str] | None = None) -> list[str]:
    """What variables of the environment say in place of the settings file, a sentence each; values are not shown.

    A variable that repeats what the file says is none. Raises InputError as `load_settings` does.
    """
    environ = os.environ if environ is None else environ
    if path is None and environ.get("TOCSIN_CONFIG"):
        path = Path(environ["TOCSIN_CONFIG"])
    if path is None:
        return []
    return [
        f"{PREFIX}{'__'.join(keys).upper()} of the environment takes the place of {'.'.join(keys)} in {path}"
        for keys in _changed(_read_toml(path), _from_environment(environ))
    ]


def _changed(low: Mapping[str, Any], high: Mapping[str, Any], keys: tuple[str, ...] = ()) -> Iterator[tuple[str, ...]]:
    for key, value in high.items():
        below, here = low.get(key), (*keys, key)
        if isinstance(below, Mapping) and isinstance(value, Mapping):
            yield from _changed(below, value, here)
        elif key in low and str(below) != str(value):
            yield here


def check_plugins(settings: Settings) -> None:
    """Raises InputError for names of sources and executors that no installed package has, all of them at once.

    Loading the settings does not ask for this: the agent and the brain read one file, and each may lack what only the
    other one needs.
    """
    asked = [("agent.source", Kind.SOURCE, settings.agent.source)]
    executors = {"actions.executors": settings.actions.executors}
    executors |= {f"actions.pool_executors.{pool}": names for pool, names in settings.actions.pool_executors.items()}
    asked += [(field, Kind.EXECUTOR, name) for field, names in executors.items() for name in names]
    wrong: list[InputError] = []
    for field, kind, name in asked:
        try:
            named_by(field, kind, name)
        except InputError as error:
            wrong.append(error)
    if wrong:
        raise together(wrong)


def _read_toml(path: Path) -> dict[str, Any]:
    try:
        return tomllib.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise InputError("config file", str(path), error.strerror or "cannot be read", "name a readable file") from None
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise InputError("config file", str(path), f"is not TOML: {error}", "correct the line it names") from None
    except RecursionError:
        raise InputError("config file", str(path), "is nested too deeply", "write tables with less depth") from None


def _from_environment(environ: Mapping[str, str]) -> dict[str, Any]:
    sections = Settings.model_fields
    for name in environ:
        if not name.startswith(PREFIX) or "__" not in name:
            continue
        section = name.removeprefix(PREFIX).split("__")[0].lower()
        if section not in sections:
            raise InputError(name, "(not shown)", "no such section", _did_you_mean(section, sections))
    source = EnvSettingsSource(_SettingsShape)
    source.env_vars = {name.lower(): value for name, value in environ.items()}
    return _values(source)


def _from_secrets(folder: Path | None) -> dict[str, Any]:
    if folder is None:
        return {}
    if not folder.is_dir():
        raise InputError("TOCSIN_SECRETS", str(folder), "is no folder", "name the folder that holds the secret files")
    return _values(
        NestedSecretsSettingsSource(
            EnvSettingsSource(_SettingsShape), secrets_dir=folder, secrets_prefix="", secrets_nested_delimiter="__"
        )
    )


def _values(source: EnvSettingsSource) -> dict[str, Any]:
    try:
        return source()
    except ValueError as error:
        raise InputError(PREFIX + "...", str(error), "cannot be decoded", "write lists and tables as JSON") from None


def _merge(low: dict[str, Any], high: Mapping[str, Any]) -> dict[str, Any]:
    merged = dict(low)
    for key, value in high.items():
        below = merged.get(key)
        merged[key] = _merge(below, value) if isinstance(below, dict) and isinstance(value, Mapping) else value
    return merged


def _explain(error: ValidationError, where: str) -> InputError:
    """All that is wrong, a line for each key."""
    errors = error.errors(include_url=False)
    # A misspelt required key gives two errors; the one that names what was written helps more.
    misspelt = {e["loc"][:-1] for e in errors if e["type"] == "extra_forbidden"}
    told: dict[str, InputError] = {}
    # To look for the nearest known key costs more than to find that one is wrong.
    for one in errors[:MOST_ERRORS]:
        if one["type"] != "missing" or one["loc"][:-1] not in misspelt:
            found = _explain_one(one, where)
            told.setdefault(found.field, found)
    return together(list(told.values()), further=max(0, len(errors) - MOST_ERRORS))


def _explain_one(first: ErrorDetails, where: str) -> InputError:
    # What is wrong with keys of several sections together has no place of its own.
    path = ".".join(str(part) for part in first["loc"]) or "settings"
    if first["type"] == "extra_forbidden":
        remedy = _did_you_mean(str(first["loc"][-1]), _keys_beside(first["loc"]))
        return InputError(path, _shown(first["input"], f"{path} {remedy}"), f"unknown key in {where}", remedy)
    return InputError(
        path,
        _shown(first["input"], path.rpartition(".")[2]),
        first["msg"].removeprefix("Value error, "),
        f"correct {path}; `tocsin config show` prints every key and default",
    )


def _shown(value: object, names: str) -> object:
    """`value`, unless it is a secret, may hold one, or was meant to be one."""
    if isinstance(value, dict | list):
        return "(a table)"
    return "(secret)" if any(word in names for word in ("secret", "token", "secr", "tok", "passw")) else value


def _did_you_mean(word: str, known: Mapping[str, object]) -> str:
    close = difflib.get_close_matches(word, known, n=1, cutoff=0.0)
    return f"did you mean {close[0]}?" if close else "remove it"


def _keys_beside(location: tuple[int | str, ...]) -> Mapping[str, object]:
    model: type[BaseModel] = Settings
    for part in location[:-1]:
        if isinstance(part, int):
            continue
        model = section_of(model.model_fields[part].annotation) or model
    return model.model_fields


def describe(model: type[BaseModel] = Settings, prefix: str = "") -> Iterator[tuple[str, str, str]]:
    """Every key as (dotted name, default as text, what it means), in the order of the sections."""
    for name, field in model.model_fields.items():
        inner = section_of(field.annotation)
        if inner is not None:
            suffix = "[]." if get_origin(field.annotation) is list else "."
            yield from describe(inner, f"{prefix}{name}{suffix}")
            continue
        default = field.get_default(call_default_factory=True)
        shown = "required" if field.is_required() else _show(default)
        yield f"{prefix}{name}", shown, (field.description or "").strip()


def _show(default: object) -> str:
    if default is None:
        return "unset"
    text = getattr(default, "value", default)
    return '""' if str(text) == "" else str(text)
