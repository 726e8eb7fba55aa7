"""What an evidence bundle may not say: who used the GPU, what people wrote, and secrets of the settings."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field, fields
from typing import Any

from pydantic import BaseModel, SecretStr

from tocsin.domain.entry import Entry, canonical
from tocsin.domain.names_in_text import NameFinder
from tocsin.domain.reading import Owner
from tocsin.journal.page import SERVICE

SHORTEST_WORD = 3
"""Shorter names are in too many words to be looked for (own choice)."""
SHORTEST_SECRET = 6
_KEYS = frozenset(
    {
        "owner", "owners", "owner_names", "job_names", "user", "users", "process", "processes", "pid", "pids", "pod",
        "pods", "pod_uid", "namespace", "container", "slurm_job", "job", "jobs", "work", "cmdline", "command",
        "address",
    }
)  # fmt: skip
_NAMED = re.compile(r"(?i)\b(?:job|pod|container|pid|process|user|namespace|name)s?[ =:]+[\w'\"]")
"""A sentence that goes on to name one."""


@dataclass(frozen=True)
class Screen:
    """Says why something is left out; `owners` are names that may not be told, `secrets` never may."""

    with_owners: bool
    owners: NameFinder = field(default_factory=lambda: NameFinder(()))
    secrets: frozenset[str] = frozenset()

    def against_entry(self, entry: Entry) -> str:
        """Why the content of `entry` stays inside; empty where it may be told."""
        text = canonical(entry.payload)
        if self.holds_secret(text):
            return "holds a secret of the settings"
        if self.with_owners:
            return ""
        if entry.actor != SERVICE:
            return "names a person"
        if _names_owner(entry.payload) or self.owners.is_in(text):
            return "names owners"
        return ""

    def holds_secret(self, text: str) -> bool:
        return any(secret in text for secret in self.secrets)


def words_of(owners: Iterable[Owner]) -> frozenset[str]:
    """The names by which `owners` could be known."""
    texts = {str(getattr(one, field.name)) for one in owners for field in fields(Owner) if field.name != "pid"}
    return frozenset(text for text in texts if len(text) >= SHORTEST_WORD)


def secrets_of(value: object) -> frozenset[str]:
    """Every secret in settings, however deep."""
    if isinstance(value, SecretStr):
        text = value.get_secret_value()
        return frozenset({text}) if len(text) >= SHORTEST_SECRET else frozenset()
    parts: Iterable[Any] = ()
    if isinstance(value, BaseModel):
        parts = [getattr(value, name) for name in type(value).model_fields]
    elif isinstance(value, dict):
        parts = value.values()
    elif isinstance(value, list | tuple | set | frozenset):
        parts = value
    return frozenset().union(*(secrets_of(part) for part in parts))


def _names_owner(value: object, key: str = "") -> bool:
    if isinstance(value, dict):
        return any(_names_owner(part, str(name)) for name, part in value.items())
    if key in _KEYS and value:
        return True
    if isinstance(value, list | tuple):
        return any(_names_owner(part) for part in value)
    return isinstance(value, str) and bool(_NAMED.search(value))
