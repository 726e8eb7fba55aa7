"""Settings of one cell of a fleet: what it shares with the others, and how they reach it."""

from __future__ import annotations

from pathlib import Path

from pydantic import Field, field_validator

from tocsin.config.section import Section


class CellSettings(Section):
    """This brain's cell as a part of a fleet of several (docs/cells.md); `journal.cell` is its name."""

    fleet: str = Field(default="", pattern=r"^([a-z][a-z0-9_]{0,39})?$")
    """Fleet whose cells have one budget and one view; their journals are in one database, what they share is in schema
    `fleet_<fleet>` of it. Empty: this cell is the whole fleet."""
    url: str = Field(default="", max_length=500)
    """Base URL at which the other cells reach the active brain of this one, such as `https://tocsin-a.example:8470`."""
    hosts: list[str] = Field(default_factory=list, max_length=1_000)
    """Patterns of the hosts that this cell has, such as `gpu-a*`; a host of another cell's patterns is sent there.
    Empty: those that push here."""
    hash: bool = False
    """Whether this cell takes its share of the hosts that no cell has by a pattern: over all cells that say so and live
    they are spread by rendezvous hashing."""
    gone_seconds: float = Field(default=600.0, ge=30, le=86_400)
    """Time after which a cell that tells nothing of itself is gone, and its share goes to the others; of all cells the
    longest counts."""
    answer_seconds: float = Field(default=2.0, gt=0, le=30)
    """How long the other cells are waited for when the whole fleet is asked for."""
    ca: Path | None = None
    """CA file for the certificates of the other cells; unset: those of the system."""

    @field_validator("url")
    @classmethod
    def _web_address(cls, value: str) -> str:
        if value and not value.startswith(("http://", "https://")):
            raise ValueError("write http://HOST:PORT or https://HOST:PORT")
        return value.rstrip("/")

    @field_validator("hosts")
    @classmethod
    def _patterns(cls, value: list[str]) -> list[str]:
        if any(not pattern or len(pattern) > 253 for pattern in value):
            raise ValueError("a pattern has 1 to 253 characters")
        return value
