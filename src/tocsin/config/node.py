"""What the agent of a node may do to it, and how the thermal controller works. Nothing is allowed by default."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

from pydantic import Field, SecretStr

from tocsin.config.address import HttpUrl
from tocsin.config.section import Section

Verb = Literal["throttle", "clocks", "reset", "checkpoint", "defragment"]


class NodeSettings(Section):
    """Actions on the agent's own node; see docs/node_actions.md."""

    allow: list[Verb] = Field(default_factory=list)
    """What the agent may carry out: `throttle` (power limits), `clocks` (a highest SM clock), `reset`, `checkpoint`,
    `defragment`. Empty: nothing. A reset that is not allowed is gone through without its last command."""
    dry_run: bool = False
    """The agent looks at the GPU as for the real thing, reports what it would do, and changes nothing."""
    brain_url: HttpUrl = ""
    """Brain whose orders the agent takes; empty: `agent.push_url`."""
    token: SecretStr = SecretStr("")
    """Token of role `agent` for it; empty: `agent.push_token`."""
    poll_seconds: float = Field(default=5.0, gt=0)
    """Time between two looks at the brain's orders."""
    marker_folder: Path = Path("var/agent/limits")
    """Folder that keeps what a limit was before it was lowered; it must outlive the agent."""
    lease_seconds: float = Field(default=900.0, ge=30.0)
    """How long a node keeps a lowered limit without hearing from the brain (set at the brain)."""
    hold_seconds: float = Field(default=14_400.0, gt=0)
    """How long one order may keep a limit lowered at most (set at the brain)."""
    arm_seconds: float = Field(default=600.0, gt=0)
    """How long the thermal controller watches a GPU that is not yet too hot before its order lapses."""
    engage_margin_c: float = Field(default=5.0, gt=0)
    """Degrees to the slowdown temperature at which the controller lowers the limit."""
    engage_samples: int = Field(default=3, ge=1)
    """Consecutive samples, one a second, that must agree."""
    step_share: float = Field(default=0.075, gt=0, le=0.5)
    """One step, as a share of the GPU's default limit."""
    floor_share: float = Field(default=0.6, gt=0, le=1)
    """Lowest limit, as a share of the default; the GPU's own least limit where that is higher."""
    cooling: Literal["air", "liquid"] = "air"
    """What carries the heat away: 20 s between two steps in air, 8 s in liquid."""
    release_margin_c: float = Field(default=12.0, gt=0)
    """Degrees to the slowdown temperature from which, under load, the limit rises by a step."""
    release_seconds: float = Field(default=300.0, gt=0)
    """How long the GPU must have stayed that cool."""
    reset_command: list[str] = Field(default_factory=lambda: ["nvidia-smi"], min_length=1)
    """Command, with leading arguments, that resets: `-r -i UUID` is put behind it."""
    reset_seconds: float = Field(default=180.0, gt=0)
    """How long it may take."""
    clients_seconds: float = Field(default=60.0, gt=0)
    """How long the clients of a GPU may take to let go of it before a reset."""
