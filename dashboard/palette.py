"""Colours and symbols. No state is told by colour alone, and the colours stay apart for every kind of colour vision."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.client.models import GpuState
from tocsin.domain.decision import Ruling
from tocsin.domain.finding import Severity

SYMBOLS: dict[GpuState, str] = {
    GpuState.OK: "●",
    GpuState.STALE: "?",
    GpuState.WARNING: "▲",
    GpuState.CRITICAL: "◆",
    GpuState.LOST: "✕",
}
RULING_SYMBOLS: dict[Ruling, str] = {Ruling.ALLOW: "✓", Ruling.HOLD: "Ⅱ", Ruling.DENY: "✕"}

SEVERITY_STATES: dict[Severity, GpuState] = {
    Severity.INFO: GpuState.OK,
    Severity.WARNING: GpuState.WARNING,
    Severity.CRITICAL: GpuState.CRITICAL,
}


@dataclass(frozen=True, slots=True)
class Palette:
    """Colours for one background. `states` follow Okabe and Ito's palette (2008), tuned for contrast."""

    states: dict[GpuState, str]
    text: str
    muted: str
    line: str
    grid: str
    forecast: str
    scale: tuple[tuple[float, str], ...]
    """For quantities: grows away from the background, and ends in the colour of trouble."""

    def ruling(self, ruling: Ruling) -> str:
        """Colour of a guard's answer."""
        return {
            Ruling.ALLOW: self.muted,
            Ruling.HOLD: self.states[GpuState.WARNING],
            Ruling.DENY: self.states[GpuState.CRITICAL],
        }[ruling]


LIGHT = Palette(
    states={
        GpuState.OK: "#a9cfdd",
        GpuState.STALE: "#9aa1a9",
        GpuState.WARNING: "#e69f00",
        GpuState.CRITICAL: "#d1491b",
        GpuState.LOST: "#5b2a86",
    },
    text="#17212b",
    muted="#5c6b7a",
    line="#0b6e8f",
    grid="#e3e8ee",
    forecast="#8a4fbf",
    scale=((0.0, "#eaf3f7"), (0.5, "#7fb6cc"), (0.8, "#2a7597"), (0.9, "#e69f00"), (1.0, "#d1491b")),
)
DARK = Palette(
    states={
        GpuState.OK: "#27586b",
        GpuState.STALE: "#6d7680",
        GpuState.WARNING: "#f0b429",
        GpuState.CRITICAL: "#f0622f",
        GpuState.LOST: "#b48ae0",
    },
    text="#e6edf3",
    muted="#9aa7b4",
    line="#5cc0e0",
    grid="#2a3440",
    forecast="#c79bf2",
    scale=((0.0, "#17303b"), (0.5, "#2a6e88"), (0.8, "#6cc3df"), (0.9, "#f0b429"), (1.0, "#f0622f")),
)
