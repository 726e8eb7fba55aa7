"""Discrete-time survival: what is known of each row, the likelihood of a network's logits, probabilities.

A logit belongs to each interval between horizons: h = sigmoid(logit) is the chance of an onset in it for a row that had
none before. The likelihood is that of Brown, Branford and Moran (1997) and of Gensheimer and Narasimhan (2019):
intervals whose outcome is not known say nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor
from torch.nn import functional

from tocsin.forecaster.features.examples import NEVER, Examples, Floats, Ints, Mask

_TINY = 1e-12


@dataclass(frozen=True, slots=True)
class IntervalOutcome:
    """int64[n] each: `onset` is the interval of the onset, -1 without one within the horizons; `known` how many
    intervals from the first were watched to their end."""

    onset: Ints
    known: Ints

    @property
    def happened(self) -> Mask:
        return self.onset >= 0

    @property
    def usable(self) -> Mask:
        return self.happened | (self.known > 0)

    def take(self, rows: Ints) -> IntervalOutcome:
        return IntervalOutcome(self.onset[rows], self.known[rows])


def outcome(examples: Examples, horizons_ms: tuple[int, ...]) -> IntervalOutcome:
    """What is known of each row. Of an interval that ends after the whole observation only onsets could be known, so it
    counts as unknown."""
    ends = examples.at_ms[:, None] + np.asarray(horizons_ms, np.int64)
    covered = ends <= examples.until_ms.max(initial=0)
    after = examples.event_ms > examples.at_ms
    within = after[:, None] & (examples.event_ms[:, None] <= ends) & covered
    happened = within.any(axis=1)
    quiet = covered & ((examples.until_ms[:, None] >= ends) | (after & (examples.event_ms < NEVER))[:, None])
    known = np.where(happened[:, None], covered, quiet).sum(axis=1)
    return IntervalOutcome(np.where(happened, within.argmax(axis=1), -1).astype(np.int64), known.astype(np.int64))


def base_logits(found: IntervalOutcome, weight: Floats, horizons: int) -> Floats:
    """float64[horizons]: logit of the share of each interval's rows at risk that have an onset in it; where there is
    none, of that which half an onset would make."""
    logits = np.empty(horizons)
    for k in range(horizons):
        risk = (found.known > k) & ((found.onset < 0) | (found.onset >= k))
        total = float(weight[risk].sum())
        onsets = float(weight[found.onset == k].sum())
        hit = onsets if onsets > 0 else max(0.5 * total / max(int(risk.sum()), 1), _TINY)
        share = min(hit / max(total, _TINY), 0.5)
        logits[k] = np.log(share / (1 - share))
    return logits


def log_likelihood(logits: Tensor, onset: Tensor, known: Tensor, log_ratio: float) -> Tensor:
    """float32[n]; `logits` [n, k], `onset` and `known` int64[n] as in `Outcome`.

    `log_ratio` is the logarithm of how much rarer a row without an onset is among the examples, against one with, than
    it is in truth. The chances are those of the truth and the likelihood is that of the sample, so nothing has to be
    corrected afterwards: with S the chance of none and F = 1 - S, a row without an onset is met with r S / (F + r S).
    """
    fails = functional.logsigmoid(logits)
    survival = functional.pad(functional.logsigmoid(-logits).cumsum(dim=1), (1, 0))
    none = survival.gather(1, known[:, None]).squeeze(1)
    some = torch.log(-torch.expm1(none.clamp(max=-_TINY)) + _TINY)
    place = onset.clamp(min=0)[:, None]
    hit = (fails.gather(1, place) + survival.gather(1, place)).squeeze(1)
    total = torch.logaddexp(some, none + log_ratio)
    return torch.where(onset >= 0, hit, none + log_ratio) - total


def probabilities(logits: Tensor) -> Tensor:
    """float64[n, k]: of an onset up to the end of each interval, 1 - prod(1 - h); it never falls along a row."""
    return -torch.expm1(functional.logsigmoid(-logits.double()).cumsum(dim=1))


def log_odds(logits: Tensor, horizon: int) -> Tensor:
    """[n]: log odds of an onset up to the end of interval `horizon`."""
    none = functional.logsigmoid(-logits[:, : horizon + 1]).sum(dim=1)
    return torch.log(-torch.expm1(none)) - none
