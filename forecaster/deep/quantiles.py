"""LSTM that forecasts quantiles of metrics at several horizons: low, middle and high, which can never cross."""

from __future__ import annotations

from dataclasses import asdict, dataclass, replace

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn import functional

from tocsin.domain.clock import DAY
from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.deep.inputs import BATCH, Encoder, learn
from tocsin.forecaster.deep.network import (
    Network,
    Shape,
    encoder_from,
    encoder_parts,
    network_from,
    network_parts,
    past_of,
    pick,
    settled,
)
from tocsin.forecaster.deep.training import FitRecipe, Loss, Progress, train
from tocsin.forecaster.features.examples import Codes, Floats, HeldSequences, Ints, Mask, Singles
from tocsin.forecaster.hazard.scorer import NotEnoughData, State, make
from tocsin.forecaster.hazard.tabular import check_state

LEAST_WINDOWS = 200
_HOUR_OF_DAY = ("sin_of_day", "cos_of_day")


@dataclass(frozen=True, slots=True)
class Windows:
    """The past of metrics before `at_ms` int64[n]: `past` float32[n, steps, metrics], the newest last, NaN where
    missing; `device` int32[n] says whose."""

    metrics: tuple[str, ...]
    past: Singles
    at_ms: Ints
    device: Codes

    def take(self, rows: Ints | Mask) -> Windows:
        return Windows(self.metrics, self.past[rows], self.at_ms[rows], self.device[rows])


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileSettings:
    """`targets` are forecast `ahead` steps after the last one. The others are as in the LSTM scorer."""

    targets: tuple[str, ...]
    ahead: tuple[int, ...]
    hidden: int = 64
    layers: int = 1
    patch: int = 6
    dropout: float = 0.1
    epochs: int = 30
    patience: int = 5
    batch: int = 128
    learning_rate: float = 2e-3
    weight_decay: float = 0.01
    threads: int = 1
    device: str = "auto"
    seed: int = 0

    @property
    def recipe(self) -> FitRecipe:
        return FitRecipe(self.epochs, self.patience, self.batch, self.learning_rate, self.weight_decay)


class LstmQuantiles:
    """Multi-horizon quantile forecast (Wen et al. 2017, MQ-RNN) trained on the pinball loss (Koenker and Bassett 1978).

    The middle is the last known value and a change; low and high lie a positive distance from it, so that quantiles
    never cross. Changes are in units of what is usual for that metric and horizon.
    """

    name = "lstm-quantiles"
    version = "1"

    def __init__(self, settings: QuantileSettings) -> None:
        self.settings = settings
        self.progress: Progress | None = None
        self._encoder: Encoder | None = None
        self._network: Network | None = None
        self._unit: Floats = np.ones((0, 0))

    def fit(self, windows: Windows, truth: Singles) -> None:
        """Learn from `truth` float32[n, targets, ahead], NaN where not known. A fifth of the devices, drawn by the
        seed, ends the training. Raises NotEnoughData."""
        s = self.settings
        self._check(windows.metrics)
        change = truth - self._last(windows)[:, :, None]
        usable = np.flatnonzero(np.isfinite(change).any(axis=(1, 2)))
        if usable.size < LEAST_WINDOWS:
            raise NotEnoughData(f"{self.name}: {usable.size} windows of known outcome, {LEAST_WINDOWS} needed")
        chosen, change = windows.take(usable), change[usable]
        self._unit = _usual(change)
        device = pick(s.device)
        with settled(device, s.threads, s.seed):
            names, values, static = self._inputs(chosen)
            every = np.arange(usable.size)
            encoder = learn(HeldSequences(names, values), every, static, _HOUR_OF_DAY, s.patch)
            shape = Shape(
                encoder.padded, len(encoder.channels), encoder.static_size, change[0].size * len(SHARES),
                s.hidden, s.layers, s.patch, s.dropout, alike=False,
            )  # fmt: skip
            network = Network(shape)
            scaled = torch.from_numpy((change / self._unit).astype(np.float32))
            network.base.copy_(start(scaled))
            network.to(device)
            watched = _watched(chosen.device, s.seed)
            recipe = s.recipe if watched.any() else replace(s.recipe, epochs=max(1, s.epochs // 2))
            loss = _loss(network, encoder, (names, values, static), scaled.to(device), device)
            self.progress = train(network, loss, every[~watched], every[watched], recipe, s.seed)
        self._encoder, self._network = encoder, network.cpu()

    def forecast(self, windows: Windows) -> Floats:
        """float64[n, targets, ahead, shares], rising along the last axis; NaN where the target was never seen in the
        window. Raises Conflict before a fit."""
        encoder, network = self._fitted()
        names, values, static = self._inputs(windows)
        rows = np.arange(len(values))
        held, parts = HeldSequences(names, values), [np.zeros((0, network.shape.outputs))]
        device = pick(self.settings.device)
        with settled(device, self.settings.threads), torch.inference_mode():
            network.to(device)
            for first in range(0, rows.size, BATCH):
                out = _forward(network, encoder, held, static, rows[first : first + BATCH], device)
                parts.append(out.double().cpu().numpy())
            network.cpu()
        shape = (len(rows), *self._unit.shape, len(SHARES))
        change = ordered(torch.from_numpy(np.concatenate(parts))).numpy().reshape(shape)
        return np.asarray(self._last(windows)[:, :, None, None] + change * self._unit[:, :, None], np.float64)

    def _fitted(self) -> tuple[Encoder, Network]:
        if self._encoder is None or self._network is None:
            raise Conflict(f"{self.name}: not fitted yet")
        return self._encoder, self._network

    def _check(self, metrics: tuple[str, ...]) -> None:
        lacking = [name for name in self.settings.targets if name not in metrics]
        if lacking:
            problem = "a target is not among the metrics"
            raise InputError("targets", lacking, problem, f"give some of {', '.join(metrics)}")

    def _last(self, windows: Windows) -> Floats:
        """float64[n, targets]: the newest known value, NaN without any."""
        past = np.full((*windows.past.shape[:2], len(self.settings.targets)), np.nan)
        for i, name in enumerate(self.settings.targets):
            if name in windows.metrics:
                past[:, :, i] = windows.past[:, :, windows.metrics.index(name)]
        steps = past.shape[1]
        newest = steps - 1 - np.isfinite(past)[:, ::-1].argmax(axis=1)
        return np.asarray(np.take_along_axis(past, newest[:, None], axis=1)[:, 0], np.float64)

    def _inputs(self, windows: Windows) -> tuple[tuple[str, ...], Singles, Singles]:
        """Metrics as they are and as distance from the newest value of the window; where the sun stands."""
        past = windows.past
        newest = past.shape[1] - 1 - np.isfinite(past)[:, ::-1].argmax(axis=1)
        last = np.take_along_axis(past, newest[:, None], axis=1)
        names = (*windows.metrics, *(f"{name}:since_last" for name in windows.metrics))
        angle = 2 * np.pi * (windows.at_ms % DAY) / DAY
        static = np.stack([np.sin(angle), np.cos(angle)], axis=1).astype(np.float32)
        return names, np.concatenate([past, past - last], axis=2), static

    def state(self) -> State:
        encoder, network = self._fitted()
        about, arrays = encoder_parts(encoder)
        settings: dict[str, object] = {
            "family": self.name,
            "version": self.version,
            "build": asdict(self.settings),
            "encoder": about,
            "shape": asdict(network.shape),
            "members": 1,
        }
        return State(settings, {**arrays, **network_parts([network]), "unit": self._unit})

    def restore(self, state: State) -> None:
        """Take up a state of the same targets and horizons. Raises InputError for another one."""
        check_state(self.name, self.version, state)
        unit: npt.NDArray[np.generic] = state.arrays["unit"]
        if unit.shape != (len(self.settings.targets), len(self.settings.ahead)):
            problem = f"made for {unit.shape[0]} targets and {unit.shape[1]} horizons"
            raise InputError("state", unit.shape, problem, "build with the settings of the state")
        self._unit = np.asarray(unit, np.float64)
        self._encoder, (self._network,) = encoder_from(state), network_from(state)
        self.progress = None


def build(**settings: object) -> LstmQuantiles:
    """With `QuantileSettings`, as plain data; lists become tuples. Raises InputError for a name they do not have."""
    return LstmQuantiles(make(QuantileSettings, LstmQuantiles.name, settings))


def _usual(change: Singles | Floats) -> Floats:
    """float64[targets, ahead]: mean absolute change, 1 where nothing ever changes."""
    usual = np.nanmean(np.where(np.isfinite(change).any(axis=0), np.abs(change), 0.0), axis=0)
    return np.where(usual > 0, usual, 1.0).astype(np.float64)


def _watched(device: Codes, seed: int) -> Mask:
    names, of_row = np.unique(device, return_inverse=True)
    drawn = np.random.default_rng(seed).permutation(names.size) < names.size // 5
    return np.asarray(drawn[of_row], np.bool_)


def _forward(
    network: Network, encoder: Encoder, held: HeldSequences, static: Singles, rows: Ints, device: torch.device
) -> Tensor:
    z, columns = encoder.windows(held, rows), encoder.rows(static[rows])
    past = None if z is None else past_of(z.to(device), network.shape.patch)
    out: Tensor = network(past, None if columns is None else columns.to(device))
    return out


def _loss(
    network: Network,
    encoder: Encoder,
    inputs: tuple[tuple[str, ...], Singles, Singles],
    truth: Tensor,
    device: torch.device,
) -> Loss:
    names, values, static = inputs
    held = HeldSequences(names, values)

    def loss(rows: Ints) -> tuple[Tensor, float]:
        wanted = truth[torch.from_numpy(rows).to(device)].flatten(1)
        known = torch.isfinite(wanted)
        found = ordered(_forward(network, encoder, held, static, rows, device))
        lost = pinball(found, torch.where(known, wanted, torch.zeros_like(wanted))).sum(dim=-1)
        return (lost * known).sum(), float(known.sum()) or 1.0

    return loss


# Quantiles that never cross, and the loss that makes them quantiles (Koenker and Bassett 1978).

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
