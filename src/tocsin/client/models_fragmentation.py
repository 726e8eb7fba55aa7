"""Wire models of fragmentation, now and after a plan."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tocsin.client.wire import Count, Instant, Ratio, Wire

Planner = Literal["defragment", "mig", "place", "scale", "power"]


class FragmentOut(Wire):
    """Free GPUs, and what of them is of no use: F (fragmented) on average over the jobs that come, stranded for all."""

    gpus: Count
    free: float
    fragmented: float
    stranded: float
    largest: Count = 0
    """Most free GPUs on one host."""


class PoolFragment(FragmentOut):
    """The same of one pool."""

    pool: str
    hosts: Count


class HostFragment(Wire):
    """A host with free GPUs that the next job is expected to be unable to use in part."""

    host: str
    pool: str = ""
    gpus: Count
    free: Count
    fragmented: float
    stranded: float


class TaskOut(Wire):
    """A kind of job that comes: GPUs on one node, and its share of all jobs."""

    gpus: float
    share: Ratio


class MigInstanceOut(Wire):
    """Instances of one profile; `start` is null where the layout is not known."""

    profile: str
    name: str
    """As the driver calls it."""
    start: int | None = None
    slices: Count
    """Memory slices that it takes."""


class MigGpuOut(Wire):
    """A GPU in MIG mode. `layouts` counts those that agree with what the driver says; the one shown is one of them."""

    gpu: str
    host: str
    index: int | None = None
    model: str = ""
    pool: str = ""
    slices: Count
    instances: list[MigInstanceOut] = Field(default_factory=list)
    free: list[int] | None = None
    """Free memory slices; null where the layout is not known."""
    free_slices: Count | None = None
    stranded: float | None = None
    """Free slices that the next instance is expected to be unable to use, every profile as likely as the others."""
    fragmentation: Ratio | None = None
    creatable: dict[str, Count] = Field(default_factory=dict)
    """Further instances by profile, as the driver says."""
    ruled_out: dict[str, Count] = Field(default_factory=dict)
    """What could be created beside that if the free slices lay together."""
    layouts: Count = 0


class FragmentationOut(Wire):
    """Fragmentation of the fleet now; lists hold the worst `limit`."""

    now: Instant
    simulated: bool
    fleet: FragmentOut
    mix: list[TaskOut] = Field(default_factory=list)
    """Jobs that free GPUs are measured by."""
    mix_from: Literal["settings", "running", "node"] = "node"
    """The settings name them, they are those that run now, or, where none is known, one of a whole node is meant."""
    pools: list[PoolFragment] = Field(default_factory=list)
    pools_total: Count = 0
    hosts: list[HostFragment] = Field(default_factory=list)
    hosts_total: Count = 0
    """Hosts with fragmented GPUs."""
    holes: list[tuple[Count, Count]] = Field(default_factory=list)
    """Hosts by number of free GPUs."""
    mig: list[MigGpuOut] = Field(default_factory=list)
    mig_gpus: Count = 0
    mig_slices: Count = 0
    mig_free_slices: Count = 0
    """Over GPUs whose layout is known."""
    mig_stranded_slices: float = 0.0
    mig_unknown: Count = 0
    """GPUs whose layout is not known."""


class StepOut(Wire):
    """One step of a plan; gain and cost in GPU-hours."""

    kind: str
    subject: str
    sentence: str
    wait_s: float = 0.0
    asks: bool = False
    gain_gpu_hours: float = 0.0
    cost_gpu_hours: float = 0.0


class RefusalOut(Wire):
    """What was left alone for one reason: the first, and how many."""

    reason: str
    first: str
    count: Count


class HostChange(Wire):
    """A host that the plan touches, and its free GPUs before and after."""

    host: str
    gpus: Count
    free_before: float
    free_after: float


class MigChange(Wire):
    """A MIG GPU that the plan touches: profile and start of its instances in use, before and after."""

    gpu: str
    host: str
    slices: Count
    before: list[tuple[str, int]]
    after: list[tuple[str, int]]


class PlanOut(Wire):
    """A plan, which was tried on a copy of the state and carries nothing out."""

    kind: str
    sentence: str
    steps: list[StepOut] = Field(default_factory=list)
    steps_total: Count = 0
    refused: list[RefusalOut] = Field(default_factory=list)
    before: dict[str, float] = Field(default_factory=dict)
    after: dict[str, float] = Field(default_factory=dict)
    gain_gpu_hours: float = 0.0
    cost_gpu_hours: float = 0.0
    horizon_h: float = 0.0
    hosts: list[HostChange] = Field(default_factory=list)
    mig: list[MigChange] = Field(default_factory=list)
    simulated: bool = False


class PlansOut(Wire):
    """What a planner would do; scaling may be several plans."""

    planner: Planner
    now: Instant
    at: Instant
    """Of the state that was planned for."""
    took_s: float
    plans: list[PlanOut] = Field(default_factory=list)
