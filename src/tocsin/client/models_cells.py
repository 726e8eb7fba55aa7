"""Wire models of the fleet over all its cells: what each answered, and which did not."""

from __future__ import annotations

from enum import StrEnum

from pydantic import Field

from tocsin.client.control import ControlState
from tocsin.client.models import DecisionOut, FleetSummary, GpuSummary, IncidentOut, Scoreboard, Timeline
from tocsin.client.models_capacity import CapacityOut, ForecastOut
from tocsin.client.models_cards import Cards
from tocsin.client.models_changes import Changes
from tocsin.client.models_report import MorningReport
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
