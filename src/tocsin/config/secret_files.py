"""Secrets that a setting names a file for: `secret_file = "/run/secrets/x"` in place of `secret = "..."`."""

from __future__ import annotations

import logging
import stat
from pathlib import Path
from types import UnionType
from typing import Any, Union, get_args, get_origin

from pydantic import BaseModel, SecretStr

from tocsin.domain.errors import InputError

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
