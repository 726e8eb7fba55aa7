"""Wire models of the parts of the scoreboard; see `tocsin.client.models`."""

from __future__ import annotations

from pydantic import Field

from tocsin.client.wire import Count, Ratio, Wire
from tocsin.domain.finding import ActionKind


class ReliabilityBin(Wire):
    """Predictions whose stated probability lies in one range."""

    low: Ratio
    high: Ratio
    gpu_days: float
    """Time for which they stood."""
    stated: Ratio
    """Mean stated probability."""
    observed: Ratio
    """Share of the time that was followed by an onset within the horizon."""
    predictions: Count = 0
    observed_low: Ratio | None = None
    """95 % interval of `observed` (Wilson), counting one trial for each horizon that passed on a GPU."""
    observed_high: Ratio | None = None


class HazardScore(Wire):
    """How the probabilities of one model turned out, those for one target and horizon.

    A prediction counts for as long as it stood. True is what a hardware onset followed within the horizon or, without
    one, what an operator approved an action on; what an operator rejected is false unless an onset followed. Figures
    that need what has not happened yet are null.
    """

    model: str
    model_version: str = ""
    target: str
    horizon_s: float
    predictions: Count = 0
    """Predictions whose outcome is known."""
    pending: Count = 0
    left_out: Count = 0
    """Predictions about GPUs that were faulted, or had been within three days."""
    gpu_days: float = 0.0
    onsets: Count = 0
    alarms: Count = 0
    """Warnings; those closer than 24 h to the one before count as one."""
    false_alarms: Count = 0
    """Warnings that no onset followed within 7 days and that no operator approved."""
    false_alarms_per_1000_gpu_days: float | None = None
    precision: Ratio | None = None
    """Share of the warned time that was true."""
    recall: Ratio | None = None
    """Share of the true time that was warned."""
    onset_recall: Ratio | None = None
    """Share of onsets with a warning within the 7 days before."""
    onset_recall_24h: Ratio | None = None
    """The same, at least 24 h before."""
    onset_recall_48h: Ratio | None = None
    onset_recall_low: Ratio | None = None
    """95 % interval of `onset_recall` (Wilson)."""
    onset_recall_high: Ratio | None = None
    lead_s: list[float] = Field(default_factory=list)
    """Time from the first warning to each onset that had one."""
    roc_auc: Ratio | None = None
    auprc: Ratio | None = None
    base_rate: Ratio | None = None
    brier: float | None = None
    calibration_error: Ratio | None = None
    reliability: list[ReliabilityBin] = Field(default_factory=list)
    approved: Count = 0
    """Actions on warned GPUs that an operator approved."""
    rejected: Count = 0
    operator_precision: Ratio | None = None
    """Share of these verdicts that were approvals."""


class RuleScore(Wire):
    """What one rule decided by way of one action, and what came of it.

    `confirmed` decisions were followed by a hardware event on their subject within the horizon, `unconfirmed` were not,
    and `pending` ones still have time.
    """

    rule: str
    action: ActionKind
    decisions: Count
    would_have_acted: Count
    """Those that no guard but the mode held."""
    executed: Count = 0
    held_by: dict[str, Count] = Field(default_factory=dict)
    """Decisions by the guards that held them; one decision may count under several."""
    confirmed: Count = 0
    unconfirmed: Count = 0
    pending: Count = 0


class PredictionScore(Wire):
    """How predictions turned out: a hit crossed its threshold within the horizon, a miss did not.

    `model` and `model_version` are empty where all are meant.
    """

    model: str = ""
    model_version: str = ""
    made: Count = 0
    hits: Count = 0
    misses: Count = 0
    pending: Count = 0
    not_enough_data: Count = 0
    lead_s: list[float] = Field(default_factory=list)
    """Time from each hit's prediction to its crossing."""
    within_interval: Count = 0
    """Hits whose crossing fell inside the stated interval."""


class ActionScore(Wire):
    """What came of one kind of action: `effects` are means of what was measured where it worked, by name with unit."""

    action: ActionKind
    tried: Count
    worked: Count
    effects: dict[str, float] = Field(default_factory=dict)
