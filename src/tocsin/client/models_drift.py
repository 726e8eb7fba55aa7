"""Wire models of the versions of hosts that are meant to be equal."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tocsin.client.wire import Count, Instant, Ratio, Wire
from tocsin.domain.versions import Standing

ComponentKey = Literal[
    "driver",
    "cuda_driver",
    "cuda",
    "nccl",
    "cudnn",
    "vbios",
    "inforom",
    "gsp_firmware",
    "firmware",
    "fabric_manager",
    "kernel",
    "container_toolkit",
    "nic_firmware",
]
"""What a request may name: the keys of COMPONENTS."""


MOST_ODD, MOST_NAMES = 200, 20
"""Hosts that are named of a version that differs, and of another."""


class VersionOut(Wire):
    """One version of a component, and the hosts of the group that have it."""

    version: str
    hosts: Count
    share: Ratio
    ago: Count
    """Hosts of the group that had it a day ago, as far as they are still there."""
    names: list[str] = Field(default_factory=list)
    """The first hosts by name; of a version that differs from its pool 200, of others 20."""
    odd: bool = False
    """Whether it differs from its pool."""


class ComponentOut(Wire):
    """How one component stands in a group."""

    component: str
    name: str
    name_zh: str
    standing: Standing
    because: str = ""
    """The component that brings this one with it, where both differ on the same hosts."""
    told: Count = 0
    """Hosts that tell its version."""
    gone: dict[str, Count] = Field(default_factory=dict)
    """Versions that no host has any more, with how many had each a day ago."""
    least_hosts: Count | None = None
    """Hosts of a group below which nothing is said of it, as its rule has it."""
    most_share: Ratio | None = None
    """Share of a group up to which hosts with another version differ from it, as its rule has it."""
    versions: list[VersionOut] = Field(default_factory=list)
    """The version of most hosts first."""
    untold: dict[str, Count] = Field(default_factory=dict)
    """Why hosts do not tell it, with their numbers; empty text where nobody says why."""


class VersionGroupOut(Wire):
    """Hosts that are meant to be equal."""

    pool: str
    model: str
    role: str = ""
    hosts: Count
    components: list[ComponentOut] = Field(default_factory=list)


class DriftOut(Wire):
    """All groups at `at`, those with something that differs first."""

    at: Instant
    simulated: bool = False
    drifting: Count = 0
    """Components of groups that differ from their pool, without those that another one brings."""
    rolling_out: Count = 0
    """Components of groups of which a version is on its way."""
    least_hosts: Count
    """Hosts of a group below which nothing is said of it, as the rules have it."""
    groups: list[VersionGroupOut] = Field(default_factory=list)
