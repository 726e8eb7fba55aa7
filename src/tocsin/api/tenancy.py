"""What a tenant may ask, a person whose access names namespaces, and the last look at what goes out to one.

Three things hold one behind the other: a route that is not declared here is refused, the service shows a tenant what is
its own, and names of others that are left in a text are struck out on the way to the socket.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Collection
from dataclasses import dataclass, field, replace
from enum import StrEnum
from typing import Any

from starlette.concurrency import run_in_threadpool
from starlette.types import Message, Send

from tocsin.api.errors import ApiError
from tocsin.domain.names_in_text import NameFinder
from tocsin.store.points import MAX_NAME

STRUCK = "(another's)"
"""What stands in place of a name of others."""


class Tenancy(StrEnum):
    """What a route is to a tenant."""

    OWN = "own"
    """It shows what is its own."""
    COMMON = "common"
    """It shows nothing of anybody's work."""
    REFUSED = "refused"


_OWN, _COMMON, _REFUSED = Tenancy.OWN, Tenancy.COMMON, Tenancy.REFUSED
ROUTES: dict[str, Tenancy] = {
    "/healthz": _COMMON,
    "/readyz": _COMMON,
    "/ping": _COMMON,
    "/api/v2/ping": _COMMON,
    "/openapi.json": _COMMON,
    "/v1/login/methods": _COMMON,
    "/v1/me": _COMMON,
    "/v1/fleet": _OWN,
    "/v1/map": _OWN,
    "/v1/gpus": _OWN,
    "/v1/gpus/{uuid}": _OWN,
    "/v1/gpus/{uuid}/series": _OWN,
    "/v1/gpus/{uuid}/evidence": _REFUSED,
    "/v1/gpus/{uuid}/peers": _REFUSED,
    "/v1/findings": _OWN,
    "/v1/incidents": _REFUSED,
    "/v1/predictions": _OWN,
    "/v1/cards": _OWN,
    "/v1/cards/{card_id}": _OWN,
    "/v1/diagnoses": _OWN,
    "/v1/usage": _OWN,
    "/v1/usage/csv": _OWN,
    "/v1/usage/right-size": _OWN,
    "/v1/attention": _REFUSED,
    "/v1/decisions": _REFUSED,
    "/v1/decisions/{decision_id}": _REFUSED,
    "/v1/decisions/{decision_id}/story": _REFUSED,
    "/v1/timeline": _REFUSED,
    "/v1/scoreboard": _REFUSED,
    "/v1/scoreboard/report": _REFUSED,
    "/v1/report": _REFUSED,
    "/v1/changes": _REFUSED,
    "/v1/drift": _REFUSED,
    "/v1/rules": _REFUSED,
    "/v1/plan/state": _REFUSED,
    "/v1/plan/{planner}": _REFUSED,
    "/v1/forecast": _REFUSED,
    "/v1/forecast/capacity": _REFUSED,
    "/v1/fragmentation": _REFUSED,
    "/v1/cost": _REFUSED,
    "/v1/where": _REFUSED,
    "/v1/snoozes": _REFUSED,
    "/v1/maintenance": _REFUSED,
    "/v1/journal": _REFUSED,
    "/v1/journal/verify": _REFUSED,
    "/v1/journal/page": _REFUSED,
    "/v1/journal/export": _REFUSED,
    "/v1/orders": _REFUSED,
    "/v1/cells": _REFUSED,
    "/v1/cells/at/{cell}/{path:path}": _REFUSED,
    "/v1/cells/cards": _OWN,
    "/v1/cells/changes": _REFUSED,
    "/v1/cells/cost": _REFUSED,
    "/v1/cells/decisions": _REFUSED,
    "/v1/cells/drift": _REFUSED,
    "/v1/cells/fleet": _OWN,
    "/v1/cells/forecast": _REFUSED,
    "/v1/cells/forecast/capacity": _REFUSED,
    "/v1/cells/fragmentation": _REFUSED,
    "/v1/cells/gpus": _OWN,
    "/v1/cells/incidents": _REFUSED,
    "/v1/cells/journal/page": _REFUSED,
    "/v1/cells/plan/{planner}": _REFUSED,
    "/v1/cells/predictions": _OWN,
    "/v1/cells/report": _REFUSED,
    "/v1/cells/rules": _REFUSED,
    "/v1/cells/scoreboard": _REFUSED,
    "/v1/cells/timeline": _REFUSED,
    "/v1/cells/usage": _OWN,
    "/v1/cells/usage/right-size": _OWN,
    "/v1/cells/where": _REFUSED,
    "/metrics": _REFUSED,
}
"""Every route that is read, by its path; a new one is refused to tenants until it stands here."""
_LOG_OUT = "/v1/logout"


def require_declared(method: str, path: str, name: str) -> None:
    """Raise ApiError 403 where a tenant called `name` may not ask a route; what changes something is all refused."""
    if method in {"GET", "HEAD"} and ROUTES.get(path, _REFUSED) is not _REFUSED:
        return
    if path != _LOG_OUT:
        raise refused(name)


def refused(name: str) -> ApiError:
    """The answer to what concerns more than a tenant's own work."""
    return ApiError(403, "tenant_refused", f"{name} reads its own GPUs, jobs and cost alone; this is about others' too")


# ---------------------------------------------------------------------- names of others

_WORD = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")
_JOB = re.compile(r"(?i)(?<![A-Za-z])(job[ /]|slurm[ /])(\d+)")
_PROCESS = re.compile(r"(?i)(?<![A-Za-z])pid[ =]'?(\d+)'?(?:, name=[^,;)\]]*)?")
"""A process as the driver names it in the kernel log."""
_ENDS = ".-_"


@dataclass(frozen=True, slots=True)
class Names:
    """Names of others that a tenant must not read: `words` of a text, folded, `numbers` behind the word job, and
    `phrases`, which have signs that no word has. `own` of them, folded, and the phrases whose states are `left` are the
    tenant's; `pids` are its processes: one that is none of them is struck whoever it was of."""

    words: frozenset[str] = frozenset()
    numbers: frozenset[str] = frozenset()
    phrases: NameFinder = field(default_factory=lambda: NameFinder(()))
    pids: frozenset[str] = frozenset()
    own: frozenset[str] = frozenset()
    left: frozenset[int] = frozenset()

    @classmethod
    def of(cls, names: Collection[str], own: Collection[str], vocabulary: Collection[str]) -> Names:
        """The names that are neither `own` nor words of the API itself, which everybody's answers have."""
        known = {one.casefold() for one in vocabulary}
        kept = {one for one in names if one.casefold() not in known and any(map(str.isalnum, one))}
        plain = {one for one in kept if _WORD.fullmatch(one)}
        numbers = {one for one in plain if one.isdecimal()}
        words = frozenset(one.casefold() for one in plain - numbers)
        return cls(words, frozenset(numbers), NameFinder(kept - plain)).without(own)

    def without(self, own: Collection[str]) -> Names:
        """The same for a tenant with these names; it takes no more than they do, however many others there are."""
        folded, pids = frozenset(map(str.casefold, own)), frozenset(one for one in own if one.isdecimal())
        return replace(self, pids=pids, own=folded, left=self.phrases.states(own))

    def struck(self, text: str) -> str:
        """`text` without them."""
        text = _PROCESS.sub(lambda found: found[0] if found[1] in self.pids else f"pid {STRUCK}", text)
        if self.phrases:
            text = self.phrases.replaced(text, STRUCK, self.left)
        text = _JOB.sub(lambda found: f"{found[1]}{STRUCK}" if self._is_job(found[2]) else found[0], text)
        return _WORD.sub(self._word, text)

    def _is_job(self, number: str) -> bool:
        return number in self.numbers and number not in self.own

    def _is_name(self, folded: str) -> bool:
        return folded in self.words and folded not in self.own

    def _word(self, found: re.Match[str]) -> str:
        word = found[0]
        bare = word.rstrip(_ENDS)
        if self._is_name(bare.casefold()) or self._is_name(word.casefold()):
            return STRUCK + word[len(bare) :]
        if "." not in bare:
            return word
        # A name of a domain: of its parts any may be a host's, and so may its beginning.
        folded = bare.casefold()
        if any(map(self._is_name, folded.split("."))) or self._begins(folded):
            return STRUCK + word[len(bare) :]
        return word

    def _begins(self, folded: str) -> bool:
        """Whether a word begins with a name and a dot; no longer a beginning is made than a name is."""
        at = folded.find(".")
        while 0 <= at <= MAX_NAME:
            if self._is_name(folded[:at]):
                return True
            at = folded.find(".", at + 1)
        return False

    def of_json(self, value: Any) -> Any:
        """The same of every text of a document; a key that would be struck is left out with its value."""
        if isinstance(value, str):
            return self.struck(value)
        if isinstance(value, list):
            return [self.of_json(one) for one in value]
        if isinstance(value, dict):
            return {key: self.of_json(one) for key, one in value.items() if self.struck(key) == key}
        return value


def vocabulary_of(schema: Any) -> frozenset[str]:
    """Words that an OpenAPI document gives a meaning: values of enumerations, and names of fields."""
    found: set[str] = set()

    def walk(value: Any) -> None:
        if isinstance(value, dict):
            found.update(one for one in value.get("enum", ()) if isinstance(one, str))
            found.update(key for key in value.get("properties", ()) if isinstance(key, str))
            if isinstance(value.get("const"), str):
                found.add(value["const"])
            for one in value.values():
                walk(one)
        elif isinstance(value, list):
            for one in value:
                walk(one)

    walk(schema)
    return frozenset(found)


@dataclass(slots=True)
class StruckSend:
    """The way of one answer to a tenant: held until it is whole, then sent without names of others."""

    send: Send
    names: Callable[[], Names]
    _start: Message | None = None
    _body: bytearray = field(default_factory=bytearray)

    async def __call__(self, message: Message) -> None:
        """Take a part of the answer."""
        if message["type"] == "http.response.start":
            self._start = message
        elif message["type"] == "http.response.body" and self._start is not None:
            self._body += message.get("body", b"")
            if not message.get("more_body", False):
                await self._finish(self._start)

    async def _finish(self, start: Message) -> None:
        headers = [(name, value) for name, value in start["headers"] if name.lower() != b"content-length"]
        kind = next((value for name, value in headers if name.lower() == b"content-type"), b"")
        body = await run_in_threadpool(self._told, bytes(self._body), kind.decode("latin-1")) if self._body else b""
        if start["status"] not in {204, 304}:
            headers.append((b"content-length", str(len(body)).encode()))
        await self.send({**start, "headers": headers})
        await self.send({"type": "http.response.body", "body": body})

    def _told(self, body: bytes, kind: str) -> bytes:
        if kind.startswith("application/json"):
            document = self.names().of_json(json.loads(body))
            return json.dumps(document, ensure_ascii=False, separators=(",", ":")).encode()
        if kind.startswith("text/"):
            return self.names().struck(body.decode()).encode()
        # Of what is no text nobody can say whose names are in it.
        return b""
