"""Wire models of what is now: the map of the fleet, what needs attention, and a GPU's peers."""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Self

from pydantic import Field, model_validator

from tocsin.client.models import GpuState
from tocsin.client.wire import Count, Instant, Ratio, Wire, Wired
from tocsin.domain.finding import Severity
from tocsin.domain.subject import Subject

STATE_RANKS = tuple(GpuState)
"""States by the number under which the map has them."""


class FleetMap(Wire):
    """Every GPU in columns, by rack, host and index: a row costs a few bytes where `GpuSummary` costs hundreds.

    Columns of GPUs have one entry for each; `host` and `model` are positions in `hosts` and `models`. Only what changes
    with readings and findings is here, so that an unchanged fleet has an unchanged map.
    """

    hosts: list[str] = Field(default_factory=list)
    racks: list[str] = Field(default_factory=list)
    """Rack of each host; empty where it is not known."""
    pools: list[str] = Field(default_factory=list)
    """Pool of each host: that of its first GPU."""
    models: list[str] = Field(default_factory=list)
    uuid: list[str] = Field(default_factory=list)
    host: list[Count] = Field(default_factory=list)
    model: list[Count] = Field(default_factory=list)
    index: list[int | None] = Field(default_factory=list)
    state: list[Annotated[int, Field(ge=0, lt=len(STATE_RANKS))]] = Field(default_factory=list)
    """Rank of the state: 0 ok, 1 stale, 2 warning, 3 critical, 4 lost."""
    temperature: list[float | None] = Field(default_factory=list)
    """Degrees Celsius."""
    utilization: list[Ratio | None] = Field(default_factory=list)
    memory: list[Ratio | None] = Field(default_factory=list)
    power: list[float | None] = Field(default_factory=list)
    """Watts."""
    risk: list[Ratio | None] = Field(default_factory=list)
    """The highest probability among the predictions that warn of it."""

    @model_validator(mode="after")
    def _columns_agree(self) -> Self:
        """Whoever draws it may walk the columns side by side."""
        columns = (self.host, self.model, self.index, self.state, self.temperature, self.utilization, self.memory)
        if {len(column) for column in (*columns, self.power, self.risk)} != {len(self.uuid)}:
            raise ValueError("columns of GPUs differ in length")
        if not len(self.hosts) == len(self.racks) == len(self.pools):
            raise ValueError("columns of hosts differ in length")
        if max(self.host, default=-1) >= len(self.hosts) or max(self.model, default=-1) >= len(self.models):
            raise ValueError("a position lies outside its list")
        return self


class AttentionItem(Wire):
    """One thing that a person should look at."""

    subject: Wired[Subject]
    index: int | None = None
    """Of the GPU, where it is about one."""
    state: GpuState
    """How bad it is now: `ok` where it is only expected."""
    severity: Severity | None = None
    sentence: str = ""
    """What is wrong now; empty where nothing is yet."""
    since: Instant | None = None
    subjects: Count = 1
    """GPUs and hosts that it touches, the subject among them."""
    others: Count = 0
    """Further incidents about the same subject, none worse than this."""
    prediction: str = ""
    """Sentence of the most urgent prediction about the subject."""
    prediction_zh: str = ""
    probability: Ratio | None = None
    eta: Instant | None = None
    eta_low: Instant | None = None
    eta_high: Instant | None = None
    gpus: Count = 0
    """GPUs of the job on the subject, itself among them; itself alone where it is busy for nobody known; 0 if idle."""
    cost_gpu_hours: Annotated[float, Field(ge=0)] | None = None
    """Expected GPU-hours lost if nobody acts; null where no chance of a loss is known."""
    cost_money: Annotated[float, Field(ge=0)] | None = None
    """The same in `currency`; null where no price is set."""
    currency: str = ""


class Attention(Wire):
    """What needs attention, worst first; `total` counts what `items` leaves out as well."""

    total: Count = 0
    items: list[AttentionItem] = Field(default_factory=list)


class PeerGroup(StrEnum):
    """Whom a GPU is compared with."""

    NODE = "node"
    """The GPUs of its host."""
    MODEL = "model"
    """GPUs of its model in its pool."""
    JOB = "job"
    """The GPUs of the job on it."""


class PeerBand(Wire):
    """How the peers of a GPU did over time: of each metric the 10th, 50th and 90th percentile of the peers' means.

    `at` are the middles of equal spans; a percentile is null where no peer has a value in the span.
    """

    gpu: str
    by: PeerGroup
    peers: Count
    """GPUs that the band is made of; a large group is sampled evenly."""
    group: Count
    """GPUs in the group, without the GPU itself."""
    at: list[Instant] = Field(default_factory=list)
    low: dict[str, list[float | None]] = Field(default_factory=dict)
    middle: dict[str, list[float | None]] = Field(default_factory=dict)
    high: dict[str, list[float | None]] = Field(default_factory=dict)
