"""What slurmrestd serves, and which of Slurm's commands are requests to it.

A command that no request stands for is run as such: a reboot, a requeue into held state, the time of a file, the
topology. Paths, bodies and words are those of Slurm's own OpenAPI description (v0.0.37 to v0.0.46).
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote

from tocsin.actions.slurm.state import expand

OLDEST, NEWEST = 37, 46
"""Last part of the versions of the API whose answers are read: Slurm 21.08 to the one in development."""
CHANGES_FROM = 40
"""Version from which changes go by request; before it nodes cannot be changed, and jobs only by a whole new script."""
_PATH = re.compile(r"^/slurm/v0\.0\.(\d{2,3})/([a-z_{}/]+?)/?$")
_METHODS = frozenset({"get", "post", "delete"})
_FLAGS = {"--batch": "BATCH_JOB", "--full": "FULL_JOB"}
"""Whom a signal is for (slurm.h, KILL_JOB_BATCH and KILL_FULL_JOB), by the option of scancel."""
_PING = "Slurmctld({mode}) at {host} is {state}"


@dataclass(frozen=True, slots=True)
class Served:
    """One version of the API as a server describes it: methods by path, and each path as it is written there."""

    version: int
    methods: Mapping[str, frozenset[str]]
    written: Mapping[str, str]

    def has(self, path: str, method: str) -> bool:
        return method in self.methods.get(path, ())

    def url(self, path: str, name: str = "") -> str:
        """`path` with `name` in it, with the slash at its end that this version wants."""
        return re.sub(r"\{[a-z_]+\}", lambda _: quote(name, safe=""), self.written[path])


@dataclass(frozen=True, slots=True)
class RestCall:
    """One request. `reads` is True where nothing is changed by it."""

    method: str
    url: str
    body: Mapping[str, Any] | None = None
    query: Mapping[str, str] = field(default_factory=dict)
    reads: bool = False


def served_of(text: str) -> Served | None:
    """The newest version of the API in an OpenAPI description that is read here; None where there is none.

    Raises ValueError for what is no such description.
    """
    paths = _document(text).get("paths")
    found: dict[int, dict[str, tuple[str, frozenset[str]]]] = {}
    for written, methods in paths.items() if isinstance(paths, dict) else ():
        match = _PATH.match(written)
        if match and isinstance(methods, dict) and OLDEST <= int(match[1]) <= NEWEST:
            found.setdefault(int(match[1]), {})[match[2]] = (written, _METHODS.intersection(methods))
    if not found:
        return None
    newest = max(found)
    each = found[newest].items()
    return Served(newest, {path: one[1] for path, one in each}, {path: one[0] for path, one in each})


def call_of(command: Sequence[str], served: Served, now_s: int) -> RestCall | None:
    """The request that does what `command` does; None where this server has none."""
    words = list(command)
    if words == ["scontrol", "ping"]:
        return _read(served, "ping")
    if "--json" in words:
        return _read(served, "nodes" if words[0] == "sinfo" else "jobs")
    if words[:4] == ["scontrol", "--all", "show", "node"] and len(words) > 5:
        return _read(served, "node/{node_name}", words[4])
    if served.version < CHANGES_FROM:
        return None
    if words[0] == "scancel":
        return _signal(command, served)
    return _change(command, served, now_s) if words[0] == "scontrol" else None


def _read(served: Served, path: str, name: str = "") -> RestCall | None:
    return RestCall("GET", served.url(path, name), reads=True) if served.has(path, "get") else None


def _signal(command: Sequence[str], served: Served) -> RestCall | None:
    if not served.has("job/{job_id}", "delete"):
        return None
    signal = next(word.removeprefix("--signal=") for word in command if word.startswith("--signal="))
    flags = [_FLAGS[word] for word in command if word in _FLAGS]
    query = {"signal": signal} | ({"flags": flags[0]} if flags else {})
    return RestCall("DELETE", served.url("job/{job_id}", command[-1]), query=query)


def _change(command: Sequence[str], served: Served, now_s: int) -> RestCall | None:
    verb, given = command[1], dict(word.split("=", 1) for word in command[2:] if "=" in word)
    if verb == "update" and "nodename" in given:
        return _post(served, "node/{node_name}", given["nodename"], _node_body(given))
    if verb == "update" and "jobid" in given:
        return _post(served, "job/{job_id}", given["jobid"], _job_body(given, now_s))
    if verb in ("hold", "release"):
        return _post(served, "job/{job_id}", command[-1], {"hold": verb == "hold"})
    if verb == "requeue":
        path = "job/{job_id}/requeue"
        method = next((one for one in ("post", "get") if served.has(path, one)), "")
        return RestCall(method.upper(), served.url(path, command[-1])) if method else None
    return None


def _post(served: Served, path: str, name: str, body: Mapping[str, Any]) -> RestCall | None:
    return RestCall("POST", served.url(path, name), body) if served.has(path, "post") else None


def _node_body(given: Mapping[str, str]) -> Mapping[str, Any]:
    body: dict[str, Any] = {key: given[key] for key in ("reason", "comment") if key in given}
    return body | ({"state": [given["state"].upper()]} if "state" in given else {})


def _job_body(given: Mapping[str, str], now_s: int) -> Mapping[str, Any]:
    body: dict[str, Any] = {}
    if "admincomment" in given:
        body["admin_comment"] = given["admincomment"]
    if "starttime" in given:
        body["begin_time"] = {"set": True, "infinite": False, "number": now_s}
    if "excnodelist" in given:
        body["excluded_nodes"] = list(expand(given["excnodelist"]))
    return body


def problems_of(text: str) -> str:
    """What an answer says went wrong, one a line, whatever its status; empty where it says nothing of the kind.

    Raises ValueError for what is no answer of slurmrestd.
    """
    document = _document(text)
    errors = document.get("errors")
    if not isinstance(errors, list):
        return ""
    return "\n".join(_problem(one) for one in errors[:8] if one)


def _problem(error: object) -> str:
    if not isinstance(error, dict):
        return str(error)[:200]
    words = (error.get("error"), error.get("description"))
    return ": ".join(word[:200] for word in words if isinstance(word, str) and word) or "an error without words"


def ping_lines(text: str) -> str:
    """``scontrol ping``'s lines of an answer to a ping. Raises ValueError where it tells of no controller."""
    pings = _document(text).get("pings")
    lines = [_ping(one) for one in pings if isinstance(one, dict)] if isinstance(pings, list) else []
    if not lines:
        raise ValueError("it tells of no controller")
    return "\n".join(lines)


def _ping(one: Mapping[str, Any]) -> str:
    up = "UP" in (one.get("ping"), one.get("pinged")) or one.get("responding") is True
    return _PING.format(mode=one.get("mode", "?"), host=one.get("hostname", "?"), state="UP" if up else "DOWN")


def _document(text: str) -> Mapping[str, Any]:
    try:
        document = json.loads(text)
    except RecursionError:
        raise ValueError("nested too deeply") from None
    if isinstance(document, dict):
        return document
    raise ValueError("it is no JSON object")
