"""Curves as PNG files, drawn by matplotlib without a display."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from tocsin.forecaster.evaluation.result import Curve

SIZE_INCHES = (5.6, 4.2)
DOTS_PER_INCH = 100
FEW = 30
"""Lines of fewer points are marked at each."""
RARE = 0.01
"""A reliability curve with a stated probability below this is drawn on logarithmic axes, from `FLOOR` on."""
FLOOR = 1e-6


def draw(curve: Curve, path: Path) -> None:
    """Write `curve` to `path`; the same curve gives the same file. Points that do not exist are left out."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure as Drawing

    drawing = Drawing(figsize=SIZE_INCHES, dpi=DOTS_PER_INCH, layout="constrained")
    FigureCanvasAgg(drawing)
    axes = drawing.add_subplot()
    rare = curve.diagonal and _is_rare(curve)
    if curve.diagonal:
        axes.plot([FLOOR if rare else 0, 1], [FLOOR if rare else 0, 1], color="0.6", linestyle="--", linewidth=1)
    for name, (x, y) in curve.lines.items():
        across, up = np.asarray(x, dtype=np.float64), np.asarray(y, dtype=np.float64)
        known = np.isfinite(across) & np.isfinite(up)
        if rare:
            known &= (across >= FLOOR) & (up >= FLOOR)
        axes.plot(across[known], up[known], label=name, linewidth=1.5, marker="o" if known.sum() < FEW else None)
    axes.set(title=curve.title, xlabel=curve.x_label, ylabel=curve.y_label)
    if rare:
        axes.set(xscale="log", yscale="log", ylabel=f"{curve.y_label} (points below {FLOOR:g} are not drawn)")
    axes.grid(color="0.9")
    if curve.lines:
        axes.legend(frameon=False, fontsize="small")
    drawing.savefig(path, metadata={"Software": None})


def _is_rare(curve: Curve) -> bool:
    stated = np.concatenate([np.asarray(x, dtype=np.float64) for x, _ in curve.lines.values()] or [np.ones(1)])
    return bool((stated < RARE).any())
