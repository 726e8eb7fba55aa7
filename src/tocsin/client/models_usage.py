"""Wire models of who used which GPU time, what it costs, and which jobs less would do for."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tocsin.client.wire import Count, Instant, Ratio, Wire

UsageBy = Literal["namespace", "team", "account", "user", "job", "pool", "model", "kind"]
"""What usage can be summed by."""


class UsageRow(Wire):
    """GPU-hours of one group; used, idle, untold, free, stranded and not seen add up to all of them."""

    group: dict[str, str]
    """The values that the rows are summed by; empty text is unknown, or none. Slurm's work without a namespace is
    ``no namespace (Slurm)``."""
    held: bool
    """False for time that nobody held: free, stranded, not seen."""
    rest: bool = False
    """Whether it is the sum of all groups that are not shown."""
    gpu_hours: float = Field(ge=0)
    used: float = Field(ge=0)
    idle: float = Field(ge=0)
    """Held, and next to nothing was done."""
    untold: float = Field(ge=0)
    """Read, without telling whether anything was done."""
    free: float = Field(ge=0)
    stranded: float = Field(ge=0)
    """Free, on a node that others hold in part."""
    not_seen: float = Field(ge=0)
    kwh: float = Field(ge=0)
    unmetered: float = Field(ge=0)
    """GPU-hours of which the energy is not known."""
    cost: float | None = None
    """Of the GPU-hours that have a price; null where none has."""
    unpriced: float = Field(ge=0)
    """GPU-hours without a price."""
    energy_cost: float | None = None
    """Of the kWh that have a price; null where none has. It is in no other cost."""
    unpriced_kwh: float = Field(default=0.0, ge=0)


class UsageOut(Wire):
    """Usage of whole UTC days, the groups with most GPU-hours first; the rest of them is one row."""

    start: str
    """First day."""
    end: str
    """Day after the last one."""
    by: list[UsageBy]
    counted: Instant
    """Readings after this instant are not in the sums yet."""
    first: str | None = None
    """First day on file; null where there is none."""
    currency: str = ""
    simulated: bool = False
    groups: Count
    """Groups in all."""
    rows: list[UsageRow]
    total: UsageRow
    late: Count = 0
    """Days of hosts that are counted anew, because readings of them came late."""


class RightSizeOption(Wire):
    """Something smaller that would do: a MIG profile, a model of the site, or an equal share of the card."""

    fit: Literal["mig", "card", "share"]
    name: str
    freed: float = Field(ge=0)
    """GPU-hours of the present card that would not have been held."""


class RightSizeRow(Wire):
    """One job on one model of card, with the evidence of the time in which it had its cards to itself."""

    job: str
    key: str
    namespace: str = ""
    team: str = ""
    account: str = ""
    user: str = ""
    model: str
    first: str
    """First and last day on which it was seen."""
    last: str
    gpu_hours: float = Field(ge=0)
    memory_p99: float | None = None
    """Bytes, from above; null where never told."""
    memory_max: float | None = None
    memory_total: float | None = None
    activity_p99: float | None = None
    """Ratio, from above."""
    activity_max: float | None = None
    bounded: bool
    """Whether activity is the time in which any kernel ran: an upper bound of what the SMs did."""
    nvlink_max: float | None = None
    """Bytes a second; null where never told."""
    gpus_max: Count
    """Most GPUs of one host at once."""
    known: Ratio
    """Share of the time in which memory and activity were told."""
    options: list[RightSizeOption]
    unfit: Literal["short", "untold", "needed"] | None = None
    """Why nothing less is named: watched too short, not told enough, or it needs what it has."""


class RightSizeOut(Wire):
    """Jobs that less would do for, the most freed first; then those of which it cannot be said."""

    start: str
    end: str
    least_hours: float
    """GPU-hours that a job must have been watched."""
    simulated: bool = False
    jobs: Count
    fitting: Count
    """Jobs that less would do for."""
    short: Count
    untold: Count
    needed: Count
    rows: list[RightSizeRow]
