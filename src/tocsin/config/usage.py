"""Settings of the accounting of GPU time: who used what, at which price."""

from __future__ import annotations

from fnmatch import fnmatchcase
from pathlib import Path
from typing import Literal, Self

from pydantic import Field, model_validator

from tocsin.config.section import Section

CapacityKind = Literal["on_demand", "reserved", "spot", "own"]


class CapacityRule(Section):
    """Which nodes are of a kind of capacity: by pool, by host or by label, patterns as `spot-*`; all that are given
    must fit."""

    kind: CapacityKind
    """`on_demand`, `reserved`, `spot` or `own`."""
    pool: str = Field(default="", max_length=253)
    """Pattern of the pool; empty: any."""
    host: str = Field(default="", max_length=253)
    """Pattern of the host; empty: any."""
    label: str = Field(default="", max_length=253)
    """Label of the agent's `labels` as `name=pattern`; empty: any."""

    @model_validator(mode="after")
    def _says_something(self) -> Self:
        if not (self.pool or self.host or self.label):
            raise ValueError('it fits every node; give a pool, a host or a label, with pool = "*" for all')
        if self.label and not self.label.partition("=")[2]:
            raise ValueError(f"label {self.label!r} is no name=pattern")
        return self

    def fits(self, pool: str, host: str, labels: dict[str, str]) -> bool:
        name, _, pattern = self.label.partition("=")
        return (
            (not self.pool or fnmatchcase(pool, self.pool))
            and (not self.host or fnmatchcase(host, self.host))
            and (not name or (name in labels and fnmatchcase(labels[name], pattern)))
        )


class UsageSettings(Section):
    """Who used which GPU for how long (docs/usage.md)."""

    file: Path | None = None
    """File of the sums; unset: beside the store, its name with `.usage.db` behind it, or memory for a store there."""
    gap_seconds: float = Field(default=120.0, gt=0, le=3600)
    """Longest time between two readings of a GPU that the first one speaks for; beyond it nobody saw the GPU."""
    price_file: Path | None = None
    """CSV file of prices by model, kind of capacity and day; unset: those of section `prices`."""
    capacity: list[CapacityRule] = Field(default_factory=list)
    """Kinds of capacity, as `{ kind = "spot", pool = "spot-*" }`; the first that fits a node counts."""
    open_days: int = Field(default=3, ge=1, le=30)
    """Days after whose end readings that come late still change a day's sums."""
    keep_days: int = Field(default=400, ge=31, le=3660)
    """Days whose sums are kept."""
    right_size_hours: float = Field(default=6.0, ge=1, le=720)
    """GPU-hours that a job must have been watched before it is said what would be enough for it."""

    def kind_of(self, pool: str, host: str, labels: dict[str, str]) -> str:
        """The kind of capacity of a node; empty where no rule fits."""
        return next((rule.kind for rule in self.capacity if rule.fits(pool, host, labels)), "")
