"""Colours by tone, for dark and light backgrounds: Okabe and Ito's palette (2008), tuned for contrast."""

from __future__ import annotations

from rich.style import Style

from tocsin.client.models import GpuState
from tocsin.terminal.tables import FORECAST, MUTED, STRONG

_DARK = {
    GpuState.OK.value: "#56b4e9",
    GpuState.STALE.value: "#9aa7b4",
    GpuState.WARNING.value: "#f0b429",
    GpuState.CRITICAL.value: "#ff7a45",
    GpuState.LOST.value: "#d9a3e0",
    FORECAST: "#7cc6f0",
    MUTED: "#9aa7b4",
}
_LIGHT = {
    GpuState.OK.value: "#00679c",
    GpuState.STALE.value: "#56606b",
    GpuState.WARNING.value: "#7a5200",
    GpuState.CRITICAL.value: "#a83a00",
    GpuState.LOST.value: "#8a3a7a",
    FORECAST: "#005f8f",
    MUTED: "#56606b",
}
_BOLD = {GpuState.CRITICAL.value, GpuState.LOST.value}


def tones(*, dark: bool) -> dict[str, Style]:
    """Styles by tone; the empty tone is plain."""
    found = {name: Style(color=colour, bold=name in _BOLD) for name, colour in (_DARK if dark else _LIGHT).items()}
    return {**found, STRONG: Style(bold=True), "": Style()}
