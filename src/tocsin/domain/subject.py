"""What a finding, prediction or decision is about."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class SubjectKind(StrEnum):
    """The kind of thing."""

    GPU = "gpu"
    HOST = "host"
    POOL = "pool"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Subject:
    """`name` is the UUID for a GPU, the host name, the pool name, or ``fleet``.

    `detail` narrows it to a part, as a metric variant's label value does (``pid`` or MIG instance); mostly empty. For
    a GPU, `host` is its node and `pool` its pool, so that failure domains can be counted without a look-up.
    """

    kind: SubjectKind
    name: str
    host: str = ""
    pool: str = ""
    detail: str = ""

    @property
    def key(self) -> str:
        """Stable text form, unique per subject."""
        return f"{self.kind}:{self.name}" + (f":{self.detail}" if self.detail else "")
