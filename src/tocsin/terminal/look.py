"""What the view shows, and whom it asks: a brain, an agent, or this node itself."""

from __future__ import annotations

from collections import Counter, deque
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from tocsin.client.models import DecisionOut, FleetSummary, GpuState, GpuSummary, IncidentOut
from tocsin.client.models_cards import Card
from tocsin.client.wire import to_json

HISTORY = 60
"""Readings of a GPU that the view remembers."""
CHARTED = ("gpu_utilization_ratio", "gpu_memory_used_ratio", "gpu_temperature_celsius", "gpu_power_watts")
"""Metrics of which a GPU's view has the course."""


@dataclass(frozen=True, slots=True)
class Look:
    """Everything that was seen at one time.

    `origin` says who told it, `at` is that one's clock (RFC 3339). `summary` is None where there is no brain. `role` is
    that of the person who looks; empty where there is nothing to decide. `notes` are sentences on what cannot be seen.
    """

    origin: str
    at: str
    gpus: tuple[GpuSummary, ...]
    summary: FleetSummary | None = None
    incidents: tuple[IncidentOut, ...] = ()
    decisions: tuple[DecisionOut, ...] = ()
    role: str = ""
    notes: tuple[str, ...] = ()
    cards: tuple[Card, ...] = ()

    @property
    def simulated(self) -> bool:
        return any(gpu.simulated for gpu in self.gpus)

    @property
    def may_decide(self) -> bool:
        """Whether the role may approve and reject; a scope may still forbid it, which the brain then says."""
        return self.role in {"operator", "admin"}

    @property
    def waiting(self) -> int:
        """Decisions that wait for a person."""
        if self.summary is not None:
            return self.summary.decisions_approvable
        return sum(decision.approvable for decision in self.decisions)

    def states(self) -> dict[GpuState, int]:
        """GPUs by state, every state named."""
        counts = Counter(gpu.state for gpu in self.gpus)
        return {state: counts[state] for state in GpuState}

    def as_json(self) -> dict[str, Any]:
        """The shape of ``tocsin top --once --json``."""
        return {
            "origin": self.origin,
            "at": self.at,
            "simulated": self.simulated,
            "fleet": None if self.summary is None else self.summary.model_dump(mode="json"),
            "gpus": [gpu.model_dump(mode="json") for gpu in self.gpus],
            "incidents": to_json(self.incidents),
            "decisions": to_json(self.decisions),
            "cards": [card.model_dump(mode="json") for card in self.cards],
            "notes": list(self.notes),
        }


@dataclass(frozen=True, slots=True)
class Detail:
    """One GPU in full.

    `series` has values by metric over the last `span_s` seconds, evenly spaced, None where there is none. `values` are
    the newest by metric. `sections` are titled sentences in the order in which they are shown.
    """

    gpu: GpuSummary
    series: Mapping[str, Sequence[float | None]]
    span_s: float
    values: Mapping[str, float]
    sections: Mapping[str, Sequence[str]]


class FleetFeed(Protocol):
    """Whom the view asks. Every method may block and is called from worker threads, one at a time for `look`.

    All of them raise TocsinError where there is no answer.
    """

    origin: str

    def look(self) -> Look:
        """How everything is now."""

    def detail(self, uuid: str) -> Detail:
        """One GPU in full."""

    def approve(self, decision_id: str) -> None:
        """Say yes to a held decision."""

    def reject(self, decision_id: str, reason: str) -> None:
        """Say no to a held decision."""

    def close(self) -> None:
        """Let go of connections and handles; safe to repeat."""


@dataclass
class UtilisationHistory:
    """Utilisation of each GPU over the readings that the view has seen; a GPU that is gone is forgotten."""

    _seen: dict[str, tuple[str, deque[float | None]]] = field(default_factory=dict)

    def take(self, look: Look) -> None:
        """Remember what is new in `look`; a reading that was seen before counts once."""
        kept: dict[str, tuple[str, deque[float | None]]] = {}
        for gpu in look.gpus:
            at = gpu.last_reading or ""
            before = self._seen.get(gpu.uuid)
            values = before[1] if before else deque[float | None](maxlen=HISTORY)
            if before is None or before[0] != at:
                values.append(gpu.utilization_ratio)
            kept[gpu.uuid] = (at, values)
        self._seen = kept

    def of(self, uuid: str) -> Sequence[float | None]:
        """Oldest first."""
        found = self._seen.get(uuid)
        return () if found is None else found[1]
