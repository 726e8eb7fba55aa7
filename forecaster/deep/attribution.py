"""What moved a score: integrated gradients (Sundararajan, Taly and Yan 2017) from a typical device to this one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tocsin.forecaster.deep.inputs import Encoder
from tocsin.forecaster.deep.network import Network, Past, past_of
from tocsin.forecaster.deep.survival import log_odds
from tocsin.forecaster.features.examples import Floats


@dataclass(frozen=True, slots=True)
class Attributions:
    """Shares of the log odds of an onset, per row.

    `sequence` float64[n, steps, channels] of the model's own steps (the newest last) and channels, `static`
    float64[n, features]. `score` and `typical` float64[n] are the log odds of the row and of a typical device, for
    which every value stands at its mean and none is missing. Both shares add up to `score` - `typical`, up to the
    error of the integral.
    """

    channels: tuple[str, ...]
    features: tuple[str, ...]
    sequence: Floats
    static: Floats
    score: Floats
    typical: Floats

    def by_time(self) -> Floats:
        """float64[n, steps]."""
        return np.asarray(self.sequence.sum(axis=2), np.float64)

    def gap(self) -> Floats:
        """float64[n]: what the shares miss of `score` - `typical`."""
        shares = self.sequence.sum(axis=(1, 2)) + self.static.sum(axis=1)
        return np.asarray(self.score - self.typical - shares, np.float64)


@dataclass(frozen=True, slots=True)
class Member:
    """Networks whose logits are averaged, how they read, and the horizon asked for."""

    networks: Sequence[Network]
    encoder: Encoder
    horizon: int

    def log_odds(self, parts: Sequence[Tensor]) -> Tensor:
        """Of an onset within the horizon, for the inputs that `inputs` gave."""
        past = Past(*parts[:3]) if self.encoder.steps else None
        static = parts[-1] if self.encoder.static_size else None
        logits = torch.stack([network(past, static) for network in self.networks]).mean(dim=0)
        return log_odds(logits, self.horizon)


def attribute(members: Member, z: Tensor | None, static: Tensor | None, points: int) -> Attributions:
    """Integrate by Gauss-Legendre with `points` points; the network is smooth, so few are enough."""
    patch = members.networks[0].shape.patch
    there = [] if z is None else list(past_of(z, patch))
    there += [] if static is None else [static]
    typical = [torch.zeros_like(part) for part in there]
    if z is not None:
        typical[1] = torch.ones_like(there[1])
    shares = _integrate(members, there, typical, points)
    with torch.inference_mode():
        score, base = (members.log_odds(parts).double().numpy() for parts in (there, typical))
    sequence = np.zeros((score.size, 0, 0)) if z is None else _spread(shares, patch)
    features = np.zeros((score.size, len(members.encoder.features)))
    if static is not None:
        _add_columns(features, shares[-1].double().numpy(), members.encoder)
    return Attributions(members.encoder.channels, members.encoder.features, sequence, features, score, base)


def _integrate(members: Member, there: list[Tensor], typical: list[Tensor], points: int) -> list[Tensor]:
    places, weights = np.polynomial.legendre.leggauss(points)
    sums = [torch.zeros_like(part) for part in there]
    for place, weight in zip((places + 1) / 2, weights / 2, strict=True):
        on_way = [(t + (x - t) * place).requires_grad_() for x, t in zip(there, typical, strict=True)]
        gradients = torch.autograd.grad(members.log_odds(on_way).sum(), on_way)
        for total, gradient in zip(sums, gradients, strict=True):
            total += gradient * weight
    return [total * (x - t) for total, x, t in zip(sums, there, typical, strict=True)]


def _spread(shares: list[Tensor], patch: int) -> Floats:
    """The shares of a patch's gaps belong to its steps alike."""
    value, seen, since = (part.double().numpy() for part in shares[:3])
    return np.asarray(value + np.repeat(seen + since, patch, axis=1) / patch, np.float64)


def _add_columns(features: Floats, shares: Floats, encoder: Encoder) -> None:
    """A column and the mark for its missing values are one feature."""
    if encoder.static is not None:
        columns = np.concatenate([encoder.static.columns, encoder.static.marked])
        for i, column in enumerate(columns):
            features[:, column] += shares[:, i]
