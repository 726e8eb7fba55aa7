"""From examples to tensors: channels and features by name, made even as the fit learned."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from tocsin.forecaster.features.examples import Examples, Ints, Sequences, Singles
from tocsin.forecaster.hazard.rows import Preparation, aligned, prepare

SCALE_ROWS = 1024
"""Windows from which the scale of the channels is learned."""
BATCH = 1024


@dataclass(frozen=True, slots=True)
class Encoder:
    """What the fit learned about its inputs. `steps` is 0 without sequences, `padded` is `steps` in whole patches."""

    channels: tuple[str, ...]
    steps: int
    padded: int
    past: Preparation | None
    features: tuple[str, ...]
    static: Preparation | None

    @property
    def static_size(self) -> int:
        """Columns that `rows` makes of the features."""
        return 0 if self.static is None else self.static.columns.size + self.static.marked.size

    def windows(self, sequences: Sequences | None, rows: Ints) -> Tensor | None:
        """float32[n, padded, channels], evened, NaN where missing; None for a fit without sequences."""
        if self.past is None:
            return None
        found = align(sequences, rows, self.channels, self.padded)
        raw = torch.from_numpy(np.require(found, np.float32, ["C", "W"]))
        return even(raw, self.past)

    def rows(self, features: Singles) -> Tensor | None:
        """float32[n, static_size] for features aligned to `features`; None for a fit without any."""
        if self.static is None:
            return None
        return torch.from_numpy(self.static.apply(features).astype(np.float32))

    def batch(self, examples: Examples, rows: Ints) -> tuple[Tensor | None, Tensor | None]:
        features = None if self.static is None else self.rows(aligned(examples.take(rows), self.features))
        return self.windows(examples.sequences, rows), features


def align(sequences: Sequences | None, rows: Ints, channels: tuple[str, ...], steps: int) -> Singles:
    """float32[n, steps, channels] of the newest steps, channels by name; NaN for what is not there."""
    if sequences is None:
        return np.full((rows.size, steps, len(channels)), np.nan, np.float32)
    found = sequences.take(rows)
    if sequences.channels == channels and found.shape[1] == steps:
        return found
    whole = np.full((rows.size, steps, len(channels)), np.nan, np.float32)
    place = {name: i for i, name in enumerate(sequences.channels)}
    pairs = [(i, place[name]) for i, name in enumerate(channels) if name in place]
    count = min(steps, found.shape[1])
    if pairs and count:
        to, of = (list(part) for part in zip(*pairs, strict=True))
        newest = found[:, found.shape[1] - count :]
        whole[:, steps - count :, to] = newest if of == list(range(newest.shape[2])) else newest[:, :, of]
    return whole


def even(raw: Tensor, how: Preparation) -> Tensor:
    """As `Preparation.apply` does it, for windows: NaN stays. `how` has as many columns as there are channels."""
    centre, scale, low, high, mean, spread = (
        torch.from_numpy(part.astype(np.float32))
        for part in (how.centre, how.scale, how.low, how.high, how.mean, how.spread)
    )
    z = (raw - centre).div_(scale)
    np.arcsinh(z.numpy(), out=z.numpy())  # several times as fast as torch's own
    return torch.clamp(z, low, high).sub_(mean).div_(spread)


def learn(sequences: Sequences | None, rows: Ints, features: Singles, names: tuple[str, ...], patch: int) -> Encoder:
    """The encoder for training rows: `rows` index the sequences, `features` float32[n, f] are theirs. Channels and
    features that never vary are left out."""
    static = _prepared(features)
    if sequences is None or not sequences.steps or not sequences.channels:
        return Encoder((), 0, 0, None, names, static)
    sample = rows[:: max(1, -(-rows.size // SCALE_ROWS))]
    past = _prepared(sequences.take(sample).reshape(-1, len(sequences.channels)))
    if past is None or not past.columns.size:
        return Encoder((), 0, 0, None, names, static)
    channels = tuple(sequences.channels[i] for i in past.columns)
    padded = -(-sequences.steps // patch) * patch
    return Encoder(channels, sequences.steps, padded, past, names, static)


def _prepared(values: Singles) -> Preparation | None:
    """None where nothing varies, not even what is missing."""
    finite = np.isfinite(values)
    if not finite.any():
        return None
    how = prepare(np.where(finite, values, np.float32(np.nan)))
    return how if how.columns.size + how.marked.size else None
