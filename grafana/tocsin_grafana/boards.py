"""All boards."""

from __future__ import annotations

from tocsin_grafana import actions, fleet, gpu, node, predictions
from tocsin_grafana.spec import Board


def boards() -> tuple[Board, ...]:
    """From the whole to its parts, then what is ahead and what was done."""
    return fleet.board(), node.board(), gpu.board(), predictions.board(), actions.board()
