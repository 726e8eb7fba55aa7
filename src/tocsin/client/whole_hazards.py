"""How the probabilities of one model turned out over several cells: from counts, times and bins, never from shares
alone."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.client.models import HazardScore, ReliabilityBin
from tocsin.domain.clock import DAY, SECOND
from tocsin.domain.interval import wilson

_DAY_S = DAY / SECOND
_COUNTS = ("predictions", "pending", "left_out", "approved", "rejected")
_SCORED = ("gpu_days", "onsets", "alarms", "false_alarms")


def whole_hazard(members: Sequence[HazardScore]) -> HazardScore:
    """The scores of one model, version, target and horizon in several cells as one; `members` has at least one.

    Shares of onsets, `recall`, `base_rate`, `brier`, the bins and the calibration error follow exactly from what each
    cell tells; `precision` too, unless a cell had warned time and none of it was true. How well the GPUs of all cells
    are ranked (`roc_auc`, `auprc`) does not follow from that in each, and is None where several cells have scores.
    """
    if len(members) == 1:
        return members[0]
    scored = [one for one in members if one.predictions]
    told: dict[str, object] = {name: sum(getattr(one, name) for one in members) for name in _COUNTS}
    verdicts = sum(one.approved + one.rejected for one in members)
    told["operator_precision"] = sum(one.approved for one in members) / verdicts if verdicts else None
    if len(scored) > 1:
        told |= {name: sum(getattr(one, name) for one in scored) for name in _SCORED}
        told |= _alarms(scored) | _shares(scored) | _calibration(scored)
    return (scored or members)[0].model_copy(update=told)


def _alarms(scored: Sequence[HazardScore]) -> dict[str, object]:
    days, onsets = sum(one.gpu_days for one in scored), sum(one.onsets for one in scored)
    false = sum(one.false_alarms for one in scored)
    names = ("onset_recall", "onset_recall_24h", "onset_recall_48h")
    recalls = {name: sum(_warned(one, name) for one in scored) / onsets if onsets else None for name in names}
    recall = recalls["onset_recall"]
    low, high = (None, None) if recall is None else wilson(recall, onsets)
    return {
        **recalls,
        "onset_recall_low": low,
        "onset_recall_high": high,
        "false_alarms_per_1000_gpu_days": 1000.0 * false / days if days > 0 else None,
        "lead_s": [lead for one in scored for lead in one.lead_s],
    }


def _warned(one: HazardScore, name: str) -> int:
    """A share of so many onsets as the count that it is of."""
    return round((getattr(one, name) or 0.0) * one.onsets)


def _shares(scored: Sequence[HazardScore]) -> dict[str, object]:
    """GPU-days that were true, that were warned, and both, follow from the shares and the days of each cell."""
    true = [(one.base_rate or 0.0) * one.gpu_days for one in scored]
    both = [(one.recall or 0.0) * days for one, days in zip(scored, true, strict=True)]
    known = all(one.precision is None or one.precision > 0 for one in scored)
    warned = sum(hit / one.precision for one, hit in zip(scored, both, strict=True) if one.precision)
    return {
        "base_rate": _mean([(one.base_rate, one.gpu_days) for one in scored]),
        "brier": _mean([(one.brier, one.gpu_days) for one in scored]),
        "recall": min(1.0, sum(both) / sum(true)) if sum(true) > 0 else None,
        "precision": min(1.0, sum(both) / warned) if known and warned > 0 else None,
        "roc_auc": None,
        "auprc": None,
    }


def _calibration(scored: Sequence[HazardScore]) -> dict[str, object]:
    """The error is the mean gap over the bins; None where a cell does not tell its bins."""
    bins = _bins(scored)
    days = sum(one.gpu_days for one in bins)
    gap = sum(one.gpu_days * abs(one.stated - one.observed) for one in bins)
    whole = all(one.reliability for one in scored) and days > 0
    return {"reliability": bins, "calibration_error": gap / days if whole else None}


def _bins(scored: Sequence[HazardScore]) -> list[ReliabilityBin]:
    found: dict[tuple[float, float], list[ReliabilityBin]] = {}
    for each in (each for one in scored for each in one.reliability):
        found.setdefault((each.low, each.high), []).append(each)
    return [_bin(found[key], scored[0].horizon_s) for key in sorted(found)]


def _bin(members: Sequence[ReliabilityBin], horizon_s: float) -> ReliabilityBin:
    if len(members) == 1:
        return members[0]
    days = sum(one.gpu_days for one in members)
    observed = min(1.0, _mean([(one.observed, one.gpu_days) for one in members]) or 0.0)
    low, high = wilson(observed, days * _DAY_S / horizon_s)
    return ReliabilityBin(
        low=members[0].low,
        high=members[0].high,
        gpu_days=days,
        stated=min(1.0, _mean([(one.stated, one.gpu_days) for one in members]) or 0.0),
        observed=observed,
        predictions=sum(one.predictions for one in members),
        observed_low=low,
        observed_high=high,
    )


def _mean(pairs: Sequence[tuple[float | None, float]]) -> float | None:
    """The mean over times; None where none is known."""
    known = [(value, weight) for value, weight in pairs if value is not None and weight > 0]
    weights = sum(weight for _, weight in known)
    return sum(value * weight for value, weight in known) / weights if weights else None
