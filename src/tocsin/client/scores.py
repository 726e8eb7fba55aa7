"""Wire models of the scoreboard of probabilities; see `tocsin.client.models`."""

from __future__ import annotations

from pydantic import Field

from tocsin.client.wire import Count, Ratio, Wire


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


class HazardScore(Wire):
    """How the probabilities of one model turned out, those for one target and horizon.

    A prediction counts for as long as it stood. True is what a hardware onset followed within the horizon or, without
    one, what an operator approved an action on; what an operator rejected is false unless an onset followed. Figures
    that need what has not happened yet are null.
    """

    model: str
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
