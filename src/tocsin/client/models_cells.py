"""Wire models of the fleet over all its cells: what each answered, and which did not."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tocsin.client.control import ControlState
from tocsin.client.models import (
    DecisionOut,
    FleetSummary,
    GpuState,
    GpuSummary,
    IncidentOut,
    JournalPage,
    Scoreboard,
    Timeline,
)
from tocsin.client.models_capacity import CapacityOut, CostOut, ForecastOut, FragmentationOut, PlansOut
from tocsin.client.models_cards import Cards
from tocsin.client.models_changes import Changes
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_usage import RightSizeOut, UsageOut
from tocsin.client.wire import Count, Wire, Wired
from tocsin.domain.prediction import Prediction


class AnswerState(StrEnum):
    """What became of a question to a cell."""

    ANSWERED = "answered"
    STALE = "stale"
    """It did not answer in time: what it answered last is shown."""
    UNREACHABLE = "unreachable"
    """It did not answer, and nothing is shown of it."""
    REFUSED = "refused"
    """It does not take the token, or the request, of whoever asks."""


class CellAnswer(Wire):
    """One cell and what became of the question."""

    cell: str
    url: str
    """Where its brain is reached."""
    own: bool
    """Whether it is the cell of the brain that was asked."""
    state: AnswerState
    detail: str = ""
    """Why it did not answer."""
    age_s: float | None = None
    """Age of what is shown, where that is stale."""
    gpus: Count | None = None
    """GPUs that it last told of; None where it never has."""


class WholeFleet(Wire):
    """Base of every answer over all cells."""

    partial: bool
    """Whether a cell is missing from `answers` or is there with an old answer."""
    cells: list[CellAnswer]
    """Every cell that was asked, by name."""


class WholeSummary(WholeFleet):
    """`GET /v1/fleet` of each cell."""

    answers: dict[str, FleetSummary]


class WholeGpus(WholeFleet):
    """`GET /v1/gpus` of each cell."""

    answers: dict[str, list[GpuSummary]]


class WholeCards(WholeFleet):
    """`GET /v1/cards` of each cell."""

    answers: dict[str, Cards]


class WholeIncidents(WholeFleet):
    """`GET /v1/incidents` of each cell."""

    answers: dict[str, list[Wired[IncidentOut]]]


class WholePredictions(WholeFleet):
    """`GET /v1/predictions` of each cell."""

    answers: dict[str, list[Wired[Prediction]]]


class WholeDecisions(WholeFleet):
    """`GET /v1/decisions` of each cell."""

    answers: dict[str, list[Wired[DecisionOut]]]


class WholeTimeline(WholeFleet):
    """`GET /v1/timeline` of each cell, its newest page."""

    answers: dict[str, Timeline]


class WholeChanges(WholeFleet):
    """`GET /v1/changes` of each cell."""

    answers: dict[str, Changes]


class WholeForecast(WholeFleet):
    """`GET /v1/forecast` of each cell."""

    answers: dict[str, ForecastOut]


class WholeCapacity(WholeFleet):
    """`GET /v1/forecast/capacity` of each cell; one that is still working it out has not answered."""

    answers: dict[str, CapacityOut]


class WholeScoreboard(WholeFleet):
    """`GET /v1/scoreboard` of each cell."""

    answers: dict[str, Scoreboard]


class WholeRecords(WholeFleet):
    """`GET /v1/rules` of each cell: a rule earns to act in each by that cell's own cases."""

    answers: dict[str, list[RuleRecord]]


class WholeUsage(WholeFleet):
    """`GET /v1/usage` of each cell, over the same days."""

    answers: dict[str, UsageOut]


class WholeRightSize(WholeFleet):
    """`GET /v1/usage/right-size` of each cell, over the same days."""

    answers: dict[str, RightSizeOut]


class WholeCost(WholeFleet):
    """`GET /v1/cost` of each cell, over the same hours."""

    answers: dict[str, CostOut]


class WholeFragmentation(WholeFleet):
    """`GET /v1/fragmentation` of each cell."""

    answers: dict[str, FragmentationOut]


class WholePlans(WholeFleet):
    """`GET /v1/plan/{planner}` of each cell; one that is still working it out has not answered."""

    answers: dict[str, PlansOut]


class WholeJournal(WholeFleet):
    """`GET /v1/journal/page` of each cell: each has its own journal, numbers and hash chain."""

    answers: dict[str, JournalPage]


class WholeDrift(WholeFleet):
    """`GET /v1/drift` of each cell."""

    answers: dict[str, DriftOut]


class Whereabouts(Wire):
    """What a cell has of a GPU and of a host that somebody looks for, and its GPU in the worst state."""

    state: GpuState | None = None
    """Of the GPU; null where it is not known here."""
    host: bool = False
    """Whether the host is known here."""
    worst: str = ""
    """UUID of the GPU in the worst state, of several the likeliest to fail; empty where there is no GPU."""
    worst_state: GpuState | None = None


class WholeWhere(WholeFleet):
    """`GET /v1/where` of each cell."""

    answers: dict[str, Whereabouts]


class WholeReport(WholeFleet):
    """`GET /v1/report` of each cell."""

    answers: dict[str, MorningReport]


class WholeControl(WholeFleet):
    """What a pause, a resume or a reset of the breaker came to in each cell. One that is not in `answers` may have done
    it or not."""

    answers: dict[str, ControlState]


class CellOut(Wire):
    """A cell as it last told of itself."""

    name: str
    url: str
    own: bool
    """Whether it is the cell of the brain that answers."""
    gpus: Count
    age_s: float = Field(ge=0)
    """Seconds since it told of itself."""
    stale: bool
    """Whether that is too long ago for its GPUs to widen a limit."""
    active: bool
    """Whether a brain of it is active."""
