"""Tokens that `tocsin login` has stored: one file of the user, each token under the API that it is for."""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tocsin.domain.atomic_file import write_atomically
from tocsin.domain.clock import SECOND, Clock, from_iso
from tocsin.domain.errors import InputError

VARIABLE = "TOCSIN_TOKEN_FILE"
"""Names the file in place of ``~/.config/tocsin/tokens.json``."""


def token_path(environ: Mapping[str, str] | None = None) -> Path:
    """Where tokens are stored."""
    environ = os.environ if environ is None else environ
    if environ.get(VARIABLE):
        return Path(environ[VARIABLE])
    base = Path(environ["XDG_CONFIG_HOME"]) if environ.get("XDG_CONFIG_HOME") else Path.home() / ".config"
    return base / "tocsin" / "tokens.json"


def store_token(url: str, token: str, expires: str, path: Path | None = None) -> Path:
    """Keep `token`, good until `expires` (RFC 3339), for the API at `url`; nobody else may read the file."""
    path = path or token_path()
    _write(path, {**_read(path), _key(url): {"token": token, "expires": expires}})
    return path


def stored_token(url: str, clock: Clock, path: Path | None = None) -> str:
    """The token for the API at `url`; empty where none is stored or it has expired."""
    found = _read(path or token_path()).get(_key(url))
    if not isinstance(found, dict):
        return ""
    try:
        live = from_iso(str(found["expires"])) > clock.now_ms() + SECOND
    except (KeyError, ValueError):
        return ""
    return str(found.get("token", "")) if live else ""


def drop_token(url: str, path: Path | None = None) -> bool:
    """Forget the token for the API at `url`; whether there was one."""
    path = path or token_path()
    tokens = _read(path)
    if tokens.pop(_key(url), None) is None:
        return False
    _write(path, tokens)
    return True


def _key(url: str) -> str:
    return url.rstrip("/").lower()


def _read(path: Path) -> dict[str, Any]:
    """Raises InputError where others may read the file, or it is not ours."""
    try:
        mode = stat.S_IMODE(path.stat().st_mode)
        text = path.read_text(encoding="utf-8")
    except FileNotFoundError:
        return {}
    except OSError as error:
        problem = error.strerror or "cannot be read"
        raise InputError("token file", str(path), problem, f"make it readable or set {VARIABLE}") from None
    if mode & 0o077:
        raise InputError("token file", str(path), "others may read it", f"run chmod 600 {path}")
    try:
        found = json.loads(text)
    except ValueError:
        raise InputError("token file", str(path), "is no JSON", "remove it and run tocsin login") from None
    return found if isinstance(found, dict) else {}


def _write(path: Path, tokens: Mapping[str, Any]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    write_atomically(path, json.dumps(tokens, indent=2), mode=0o600)
