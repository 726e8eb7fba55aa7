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

    background: str
    states: dict[GpuState, str]
    words: dict[GpuState, str]
    """The same for text and symbols on the background, which need more contrast than areas."""
    text: str
    muted: str
    line: str
    grid: str
    forecast: str
    scale: tuple[str, str, str]
    """For quantities: from low to high, growing away from the background."""
    peers: str
    """Lines of a GPU's peers."""
    peer_fill: str
    """Their band, which lies below everything."""
    throttle: tuple[str, str]
    """Bars of neighbouring lanes."""

    def ruling(self, ruling: Ruling) -> str:
        return {
            Ruling.ALLOW: self.muted,
            Ruling.HOLD: self.words[GpuState.WARNING],
            Ruling.DENY: self.words[GpuState.CRITICAL],
        }[ruling]


def luminance(colour: str) -> float:
    """Relative luminance of ``#rrggbb``, 0 to 1 (WCAG 2.2)."""
    channels = [int(colour[start : start + 2], 16) / 255 for start in (1, 3, 5)]
    linear = [c / 12.92 if c <= 0.04045 else ((c + 0.055) / 1.055) ** 2.4 for c in channels]
    return 0.2126 * linear[0] + 0.7152 * linear[1] + 0.0722 * linear[2]


def mix(low: str, high: str, share: float) -> str:
    """The colour at `share`, 0 to 1, of the way from `low` to `high`."""
    pairs = [(int(low[i : i + 2], 16), int(high[i : i + 2], 16)) for i in (1, 3, 5)]
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def ink(background: str) -> str:
    """Black or white, whichever stands out more from `background`: at least 4.58 to 1, whatever it is."""
    behind = luminance(background) + 0.05
    return "#ffffff" if 1.05 / behind > behind / 0.05 else "#000000"


LIGHT = Palette(
    background="#fbfcfd",
    states={
        GpuState.OK: "#a9cfdd",
        GpuState.STALE: "#868e97",
        GpuState.WARNING: "#e69f00",
        GpuState.CRITICAL: "#d1491b",
        GpuState.LOST: "#5b2a86",
    },
    words={
        GpuState.OK: "#2a6f86",
        GpuState.STALE: "#5c6470",
        GpuState.WARNING: "#8a5a00",
        GpuState.CRITICAL: "#b83a12",
        GpuState.LOST: "#5b2a86",
    },
    text="#17212b",
    muted="#5c6b7a",
    line="#0b6e8f",
    grid="#e3e8ee",
    forecast="#9d0865",
    scale=("#eaf3f7", "#7fb6cc", "#2a7597"),
    peers="#7a8794",
    peer_fill="rgba(122, 135, 148, 0.18)",
    throttle=("#b45309", "#8a6d00"),
)
DARK = Palette(
    background="#0f151b",
    states={
        GpuState.OK: "#27586b",
        GpuState.STALE: "#6d7680",
        GpuState.WARNING: "#f0b429",
        GpuState.CRITICAL: "#f0622f",
        GpuState.LOST: "#b48ae0",
    },
    words={
        GpuState.OK: "#7db9cf",
        GpuState.STALE: "#a3acb5",
        GpuState.WARNING: "#f0b429",
        GpuState.CRITICAL: "#ff8055",
        GpuState.LOST: "#c3a1ea",
    },
    text="#e6edf3",
    muted="#9aa7b4",
    line="#5cc0e0",
    grid="#2a3440",
    forecast="#fdb1be",
    scale=("#17303b", "#2a6e88", "#6cc3df"),
    peers="#8794a1",
    peer_fill="rgba(135, 148, 161, 0.20)",
    throttle=("#e0912f", "#c9ae3c"),
)
