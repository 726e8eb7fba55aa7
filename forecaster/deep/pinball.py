"""Quantiles that never cross, and the loss that makes them quantiles (Koenker and Bassett 1978)."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

SHARES = (0.1, 0.5, 0.9)
"""Low, middle and high: the interval between the outer ones is to hold 80 of 100 values."""
_LEAST_GAP = 1e-3
"""Between two quantiles at the start of the training, in units of the usual change: own choice."""


def ordered(raw: Tensor) -> Tensor:
    """[..., shares] for `raw` [..., outputs]: middle, and positive distances below and above."""
    middle, below, above = raw.reshape(*raw.shape[:-1], -1, len(SHARES)).unbind(dim=-1)
    return torch.stack([middle - functional.softplus(below), middle, middle + functional.softplus(above)], dim=-1)


def pinball(found: Tensor, truth: Tensor) -> Tensor:
    """[..., shares] for `found` [..., shares] and `truth` [...]: of each share q, q (y - f) above the forecast and
    (1 - q) (f - y) below it."""
    share = torch.tensor(SHARES, dtype=found.dtype, device=found.device)
    miss = truth[..., None] - found
    return torch.maximum(share * miss, (share - 1) * miss)


def start(scaled: Tensor) -> Tensor:
    """Outputs that are the quantiles of all known changes: the forecast begins as good as persistence."""
    at = torch.tensor(SHARES)
    low, middle, high = torch.nanquantile(scaled.flatten(1), at, dim=0).nan_to_num(0.0)
    gaps = [torch.clamp(gap, min=_LEAST_GAP) for gap in (middle - low, high - middle)]
    below, above = (gap + torch.log(-torch.expm1(-gap)) for gap in gaps)
    return torch.stack([middle, below, above], dim=-1).flatten()
