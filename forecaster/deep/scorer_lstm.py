"""LSTM over the recent past, fused with the features of the row: a hazard for each interval between horizons."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass

import numpy as np
import torch
from torch import Tensor

from tocsin.domain.errors import Conflict, InputError
from tocsin.forecaster.deep.inputs import BATCH, Encoder, learn
from tocsin.forecaster.deep.network import (
    Network,
    PastWindows,
    Shape,
    encoder_from,
    encoder_parts,
    network_from,
    network_parts,
    past_of,
    pick,
    settled,
)
from tocsin.forecaster.deep.survival import IntervalOutcome, log_odds, outcome, probabilities
from tocsin.forecaster.deep.training import FitRecipe, Progress, choose, fit_network, lesson
from tocsin.forecaster.features.examples import Examples, Floats, Ints
from tocsin.forecaster.hazard.rows import LearningRows, aligned, chosen_names, device_folds, require, too_short
from tocsin.forecaster.hazard.scorer import Common, NotEnoughData, State, header, make
from tocsin.forecaster.hazard.tabular import check_state

PATCHES = 24
"""An LSTM runs over at most about so many patches; longer pasts get patches of several steps. Own choice: the time of
a fit and of a score is nearly that of the recurrent steps."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LstmSettings(Common):
    """At most `max_rows` rows are learned from, those with an onset first; an epoch repeats these until they are a
    share of `balance`. `members` networks are fitted, each stopped early by another device fold, and their logits
    averaged. An epoch has at most `longest` batches (0: as many as there are rows for). `patch` is steps per recurrent
    step (0: so that at most 24 remain). `device` is auto, cpu or cuda; `threads` are torch's, for fit and score."""

    hidden: int = 64
    layers: int = 1
    patch: int = 0
    dropout: float = 0.2
    members: int = 1
    max_rows: int = 20_000
    balance: float = 0.2
    epochs: int = 30
    patience: int = 5
    batch: int = 256
    longest: int = 0
    learning_rate: float = 2e-3
    weight_decay: float = 0.02
    threads: int = 1
    device: str = "auto"

    def __post_init__(self) -> None:
        super(LstmSettings, self).__post_init__()
        for name in ("hidden", "layers", "members", "max_rows", "epochs", "patience", "batch", "threads"):
            if getattr(self, name) < 1:
                raise InputError(f"lstm.{name}", getattr(self, name), "below 1", "give 1 or more")
        for name in ("dropout", "balance"):
            if not 0 <= getattr(self, name) < 1:
                raise InputError(f"lstm.{name}", getattr(self, name), "not a share below 1", "give for example 0.2")

    @property
    def recipe(self) -> FitRecipe:
        return FitRecipe(
            self.epochs, self.patience, self.batch, self.learning_rate, self.weight_decay, longest=self.longest
        )


class LstmScorer:
    """Discrete-time hazard by an LSTM.

    Examples without sequences are learned from by their features alone. At the score, channels and features go by name:
    one that is gone counts as missing, longer pasts are cut to the newest steps, shorter ones filled with missing.
    """

    name = "lstm"
    version = "1"

    def __init__(self, settings: LstmSettings) -> None:
        self.settings = settings
        self.horizons_ms = settings.horizons_ms
        self.min_history_ms = settings.min_history_ms
        self.progress: tuple[Progress, ...] = ()
        self._encoder: Encoder | None = None
        self._networks: tuple[Network, ...] = ()

    @property
    def fitted(self) -> Encoder:
        """What the fit learned about its inputs. Raises Conflict before a fit."""
        if self._encoder is None:
            raise Conflict(f"{self.name}: not fitted yet")
        return self._encoder

    def fit(self, examples: Examples) -> None:
        s = self.settings
        device = pick(s.device)
        found = outcome(examples, self.horizons_ms)
        usable = np.flatnonzero(found.usable & ~too_short(examples, s) & (examples.weight > 0))
        choice = choose(found.happened[usable], examples.weight[usable], s.max_rows, s.seed)
        picked = usable[choice.rows]
        known, names = found.take(picked), chosen_names(examples.names, s.features)
        rows = _rows(examples.take(usable), found.take(usable), ())
        require(self.name, rows, s)
        few = examples.take(picked)
        features = aligned(few, names)
        patch = s.patch or max(1, -(-(few.sequences.steps if few.sequences else 1) // PATCHES))
        with settled(device, s.threads, s.seed):
            encoder = learn(few.sequences, np.arange(picked.size), features, names, patch)
            shape = Shape(
                encoder.padded, len(encoder.channels), encoder.static_size, len(self.horizons_ms),
                s.hidden, s.layers, patch, s.dropout,
            )  # fmt: skip
            if not shape.steps and not shape.static:
                raise NotEnoughData(f"{self.name}: no feature and no channel of {picked.size} rows varies")
            what = lesson(encoder, few, features, known, choice.weight)
            fold = device_folds(_rows(few, known, names), s.folds, s.seed)
            fitted = []
            for member in range(s.members):
                torch.manual_seed(s.seed * 1000 + member)
                watched = fold == member % (int(fold.max()) + 1)
                fitted.append(fit_network(what, shape, watched, s.recipe, s.balance, device, s.seed + member))
        self._encoder = encoder
        self._networks, self.progress = (tuple(part) for part in zip(*fitted, strict=True))

    def score(self, examples: Examples) -> Floats:
        networks = self._networks if self.fitted else ()
        result = np.full((len(examples), len(self.horizons_ms)), np.nan)
        every = np.flatnonzero(~too_short(examples, self.settings))
        device = pick(self.settings.device)
        with settled(device, self.settings.threads), torch.inference_mode():
            networks = tuple(network.to(device) for network in networks)
            for rows, past, static in self._batches(examples, every, device):
                logits = sum((network(past, static) for network in networks), torch.zeros(1).to(device))
                result[rows] = probabilities(logits / len(networks)).cpu().numpy()
            self._networks = tuple(network.cpu() for network in networks)
        return result

    def attributions(self, examples: Examples, rows: Ints, horizon: int = -1, points: int = 32) -> Attributions:
        """Which channels, steps and features move the score of `rows` for the horizon of that index away from that of a
        typical device: integrated gradients with `points` support points. On the CPU."""
        encoder = self.fitted
        with settled(torch.device("cpu"), self.settings.threads):
            past, static = encoder.batch(examples, np.asarray(rows, np.int64))
            members = Member(self._networks, encoder, horizon % len(self.horizons_ms))
            return attribute(members, past, static, points)

    def _batches(
        self, examples: Examples, rows: Ints, device: torch.device
    ) -> Iterator[tuple[Ints, PastWindows | None, Tensor | None]]:
        patch = self._networks[0].shape.patch
        for start in range(0, rows.size, BATCH):
            part = rows[start : start + BATCH]
            z, static = self.fitted.batch(examples, part)
            past = None if z is None else past_of(z.to(device), patch)
            yield part, past, None if static is None else static.to(device)

    def state(self) -> State:
        about, arrays = encoder_parts(self.fitted)
        own = {"encoder": about, "shape": asdict(self._networks[0].shape), "members": len(self._networks)}
        return State({**header(self, self.settings), **own}, {**arrays, **network_parts(self._networks)})

    def restore(self, state: State) -> None:
        check_state(self.name, self.version, state)
        self._encoder = encoder_from(state)
        self._networks = network_from(state)
        self.progress = ()


def _rows(examples: Examples, found: IntervalOutcome, names: tuple[str, ...]) -> LearningRows:
    return LearningRows(
        x=aligned(examples, names),
        onset=found.happened,
        weight=examples.weight,
        device=examples.device,
        group=examples.group,
        at_ms=examples.at_ms,
        event_ms=examples.event_ms,
        until_ms=examples.until_ms,
        end_ms=int(examples.until_ms.max(initial=0)),
    )


def build(**settings: object) -> LstmScorer:
    """The scorer with `LstmSettings`."""
    return LstmScorer(make(LstmSettings, LstmScorer.name, settings))


# What moved a score: integrated gradients (Sundararajan, Taly and Yan 2017) from a typical device to this one.


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


@dataclass(frozen=True, slots=True)
class Member:
    """Networks whose logits are averaged, how they read, and the horizon asked for."""

    networks: Sequence[Network]
    encoder: Encoder
    horizon: int

    def log_odds(self, parts: Sequence[Tensor]) -> Tensor:
        """Of an onset within the horizon, for the inputs that `inputs` gave."""
        past = PastWindows(*parts[:3]) if self.encoder.steps else None
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
    how = members.encoder.static
    if static is not None and how is not None:
        # A column and the mark for its missing values are one feature.
        np.add.at(features.T, np.concatenate([how.columns, how.marked]), shares[-1].double().numpy().T)
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
