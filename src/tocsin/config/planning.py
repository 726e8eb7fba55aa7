"""Settings of the planners: what a plan may do, and what it counts with."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tocsin.config.section import Section
from tocsin.domain.decision import Mode


class PlanningSettings(Section):
    """What plans may do and count with (docs/planning.md)."""

    follow: list[Literal["defragment", "mig", "demand", "scale_in", "power"]] = Field(default_factory=list)
    """Planners whose plans become decisions, each of which every guard is asked about; none: plans are only shown."""
    mode: Mode = Mode.PROPOSE
    """How far decisions that come from plans may go; `actions.mode` bounds it."""
    look_seconds: float = Field(default=60.0, ge=1)
    """Time between two plannings of the running fleet."""
    max_moves: int = Field(default=20, ge=0)
    """Pieces of work that one plan moves at most."""
    horizon_hours: float = Field(default=24.0, gt=0)
    """How long capacity that a plan frees counts as gained."""
    max_risk: float = Field(default=0.1, ge=0, le=1)
    """Probability of failure from which on a node gets no work."""
    patience_seconds: float = Field(default=1800.0, ge=0)
    """How long a plan waits for a checkpoint that is due."""
    restart_seconds: float = Field(default=300.0, ge=0)
    """How long work stops for a move where its checkpoint time is unknown."""
    effort: int = Field(default=30_000, ge=0, le=10_000_000)
    """Pieces of work that the search lifts and puts down; more gives better plans and takes longer."""
    scale_in_below: float = Field(default=0.3, ge=0, le=1)
    """Utilisation below which a pool gives a node back."""
    fill_to: float = Field(default=0.8, gt=0, le=1)
    """Utilisation to which the demand ahead is to fill a pool."""
    most_after_scale_in: float = Field(default=0.6, gt=0, le=1)
    """Utilisation of the other nodes above which none is released; the gap to `fill_to` keeps a pool from swinging."""
    scale_out_rest_seconds: float = Field(default=300.0, ge=0)
    """Rest after a change of a pool's size before it grows."""
    scale_in_rest_seconds: float = Field(default=1800.0, ge=0)
    """Rest after a change of a pool's size before it shrinks."""
    provision_seconds: float = Field(default=900.0, ge=0)
    """Time from asking for a node until it is ready."""
    pool_floor_gpus: dict[str, int] = Field(default_factory=dict)
    """GPUs of each pool that are to be ready at all times."""
    pool_max_nodes: dict[str, int] = Field(default_factory=dict)
    """Nodes that a pool may have at most."""
    facility_watts: float | None = Field(default=None, gt=0)
    """Power budget of all GPUs together; unset: none."""
    rack_watts: dict[str, float] = Field(default_factory=dict)
    """Power budget of the GPUs of single racks."""
