"""Training of networks: the loop, the fit to the outcomes of rows, and which rows are seen how often.

The loop is AdamW with clipped gradients and a cosine schedule, stopped early by devices that it does not see.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from tocsin.forecaster.deep.inputs import BATCH, Encoder
from tocsin.forecaster.deep.network import Network, Shape, past_of
from tocsin.forecaster.deep.survival import IntervalOutcome, base_logits, log_likelihood
from tocsin.forecaster.features.examples import Examples, Floats, Ints, Mask, Singles

FINAL_RATE = 0.05
"""The learning rate ends at this share of where it began."""
LEAST_BATCHES = 16
LEAST_BATCH = 16
"""Few rows get smaller batches, down to this, so that an epoch still takes so many steps. Own choice."""

Loss = Callable[[Ints], tuple[Tensor, float]]
"""Of a batch of row numbers: the sum of the loss over them, and the sum of weights that it stands for."""


@dataclass(frozen=True, slots=True)
class FitRecipe:
    """How to train. `patience` epochs without a better loss on the watched rows end it; then the best weights count. An
    epoch is `longest` batches at most (0: as many as there are rows for), drawn anew each time."""

    epochs: int
    patience: int
    batch: int
    learning_rate: float
    weight_decay: float
    clip: float = 1.0
    longest: int = 0

    def batches(self, rows: int) -> int:
        whole = max(1, -(-rows // self.batch_of(rows)))
        return min(whole, self.longest) if self.longest else whole

    def batch_of(self, rows: int) -> int:
        return min(self.batch, max(LEAST_BATCH, -(-rows // LEAST_BATCHES)))


@dataclass(frozen=True, slots=True)
class Progress:
    """Mean loss on the watched rows after each epoch, and which epoch was best; without watched rows the last."""

    watched: tuple[float, ...]
    best: int


def train(model: nn.Module, loss: Loss, order: Ints, watched: Ints, recipe: FitRecipe, seed: int) -> Progress:
    """Fit `model` in place on batches of `order`, shuffled anew in each epoch."""
    optimiser = torch.optim.AdamW(model.parameters(), recipe.learning_rate, weight_decay=recipe.weight_decay)
    batch = recipe.batch_of(order.size)
    steps = recipe.epochs * recipe.batches(order.size)
    schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, steps, recipe.learning_rate * FINAL_RATE)
    rng = np.random.default_rng(seed)
    best, best_epoch, kept, losses = np.inf, -1, _weights(model), []
    for epoch in range(recipe.epochs):
        model.train()
        for rows in _batches(rng.permutation(order)[: batch * recipe.batches(order.size)], batch):
            total, weight = loss(rows)
            optimiser.zero_grad()
            (total / weight).backward()  # type: ignore[no-untyped-call]
            nn.utils.clip_grad_norm_(model.parameters(), recipe.clip)
            optimiser.step()
            schedule.step()
        if watched.size == 0:
            best_epoch, kept = epoch, _weights(model)
            continue
        losses.append(mean_loss(model, loss, watched))
        if losses[-1] < best:
            best, best_epoch, kept = losses[-1], epoch, _weights(model)
        elif epoch - best_epoch >= recipe.patience:
            break
    model.load_state_dict(kept)
    model.eval()
    return Progress(tuple(losses), best_epoch)


def mean_loss(model: nn.Module, loss: Loss, rows: Ints, batch: int = 2048) -> float:
    """Without learning."""
    model.eval()
    with torch.inference_mode():
        parts = [loss(part) for part in _batches(rows, batch)]
    return sum(float(total) for total, _ in parts) / sum(weight for _, weight in parts)


def _batches(rows: Ints, size: int) -> list[Ints]:
    return [rows[start : start + size] for start in range(0, rows.size, size)]


def _weights(model: nn.Module) -> dict[str, Tensor]:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


# One network fitted to the outcomes of rows.


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows to learn from, in memory: `past` float16[m, steps, channels] evened, NaN where missing, `static`
    float32[m, columns], what came of them and what each weighs."""

    past: Tensor | None
    static: Tensor | None
    found: IntervalOutcome
    weight: Floats


def lesson(encoder: Encoder, examples: Examples, features: Singles, found: IntervalOutcome, weight: Floats) -> Lesson:
    """All rows of `examples` made even; half precision is finer than any sensor and halves the memory."""
    every = np.arange(len(examples))
    parts = [encoder.windows(examples.sequences, every[i : i + BATCH]) for i in range(0, every.size, BATCH)]
    past = torch.cat([part.half() for part in parts if part is not None]) if encoder.steps else None
    return Lesson(past, encoder.rows(features), found, weight)


def fit_network(
    what: Lesson, shape: Shape, watched: Mask, recipe: FitRecipe, balance: float, device: torch.device, seed: int
) -> tuple[Network, Progress]:
    """Learn from the rows that are not `watched`, and stop by those that are. Where either side lacks an onset, learn
    from all rows, for half of the epochs. The caller settles torch's state."""
    hits = what.found.happened
    if not (hits[watched].any() and hits[~watched].any()):
        watched = np.zeros_like(watched)
        recipe = replace(recipe, epochs=max(1, recipe.epochs // 2))
    learned, kept = np.flatnonzero(~watched), np.flatnonzero(watched)
    network = Network(shape)
    network.base.copy_(torch.from_numpy(base_logits(what.found, what.weight, shape.outputs)))
    network.to(device)
    taught, seen = course(hits, what.weight, learned, balance), course(hits, what.weight, kept, 0.0)
    weight = np.where(watched, seen.weight, taught.weight)
    loss = _loss(network, what, weight, (taught.log_ratio, seen.log_ratio), watched, device)
    progress = train(network, loss, taught.order, kept, recipe, seed)
    network.cpu()
    network.base += centring(logits_of(network, what), what)
    return network, progress


def logits_of(network: Network, what: Lesson) -> Tensor:
    """float32[m, outputs] without learning."""
    parts = []
    with torch.inference_mode():
        for start in range(0, what.weight.size, BATCH):
            rows = slice(start, start + BATCH)
            past = None if what.past is None else past_of(what.past[rows].float(), network.shape.patch)
            parts.append(network(past, None if what.static is None else what.static[rows]))
    return torch.cat(parts).clone()


def centring(logits: Tensor, what: Lesson) -> Tensor:
    """float32[outputs]: the most likely shift of each interval's logits, so that the chances of each horizon are
    right on the whole also where training ended before that. A normal prior of one logit keeps it finite."""
    even = course(what.found.happened, what.weight, np.arange(what.weight.size), 0.0)
    onset, known = torch.from_numpy(what.found.onset), torch.from_numpy(what.found.known)
    counts = torch.from_numpy(even.weight.astype(np.float32))
    shift = torch.zeros(logits.shape[1], requires_grad=True)
    optimiser = torch.optim.LBFGS([shift], max_iter=50, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        optimiser.zero_grad()
        likely = log_likelihood(logits + shift, onset, known, even.log_ratio) * counts
        value = shift.square().sum() / 2 - likely.sum()
        value.backward()  # type: ignore[no-untyped-call]
        return value

    optimiser.step(loss)  # type: ignore[no-untyped-call]
    return shift.detach()


def _loss(
    network: Network, what: Lesson, weight: Floats, ratios: tuple[float, float], watched: Mask, device: torch.device
) -> Loss:
    onset, known = torch.from_numpy(what.found.onset).to(device), torch.from_numpy(what.found.known).to(device)
    counts = torch.from_numpy(weight.astype(np.float32)).to(device)
    past = None if what.past is None else what.past.to(device)
    static = None if what.static is None else what.static.to(device)

    def loss(rows: Ints) -> tuple[Tensor, float]:
        at = torch.from_numpy(rows).to(device)
        sequence = None if past is None else past_of(past[at].float(), network.shape.patch)
        logits = network(sequence, None if static is None else static[at])
        ratio = ratios[int(watched[rows[0]])]
        gained = log_likelihood(logits, onset[at], known[at], ratio) * counts[at]
        return -gained.sum(), float(weight[rows].sum())

    return loss


# Which rows a network learns from, and how often it sees them, with the prior that undoes the choice.

MOST_REPEATS = 20


@dataclass(frozen=True, slots=True)
class ChosenRows:
    """Chosen rows int64[m] in ascending order and the weight float64[m] that is left to each."""

    rows: Ints
    weight: Floats


@dataclass(frozen=True, slots=True)
class EpochCourse:
    """What an epoch goes through: `order` int64[e] indexes rows, those with an onset perhaps several times; `weight`
    float64[m] has mean 1 on either side. `log_ratio`: see `survival.log_likelihood`."""

    order: Ints
    weight: Floats
    log_ratio: float


def choose(happened: Mask, weight: Floats, limit: int, seed: int) -> ChosenRows:
    """At most `limit` rows: those with an onset, up to half of the limit, and others.

    Rows are drawn in proportion to their weight, systematically, so that those drawn count alike and the sum of
    weights stays near what it was.
    """
    rng = np.random.default_rng(seed)
    hits, quiet = np.flatnonzero(happened & (weight > 0)), np.flatnonzero(~happened & (weight > 0))
    hits, hit_weight = _draw(hits, weight[hits], max(limit // 2, limit - quiet.size), rng)
    quiet, quiet_weight = _draw(quiet, weight[quiet], limit - hits.size, rng)
    rows = np.concatenate([hits, quiet])
    order = np.argsort(rows)
    return ChosenRows(rows[order], np.concatenate([hit_weight, quiet_weight])[order])


def _draw(rows: Ints, weight: Floats, count: int, rng: np.random.Generator) -> tuple[Ints, Floats]:
    if rows.size <= count:
        return rows, weight
    share = _shares(weight, count)
    order = rng.permutation(rows.size)
    steps = np.floor(np.cumsum(share[order]) + rng.random())
    taken = order[np.diff(steps, prepend=0.0) > 0]
    return rows[taken], weight[taken] / share[taken]


def _shares(weight: Floats, count: int) -> Floats:
    """Chances of being drawn, in proportion to `weight`, none above 1, `count` in sum."""
    sure = np.zeros(weight.size, np.bool_)
    share = np.ones(weight.size)
    while True:
        rest = ~sure
        share[rest] = weight[rest] * (count - int(sure.sum())) / weight[rest].sum()
        above = rest & (share > 1)
        if not above.any():
            return share
        share[above] = 1.0
        sure |= above


def course(happened: Mask, weight: Floats, rows: Ints, balance: float) -> EpochCourse:
    """How to go through `rows` (indices into `happened` and `weight`): those with an onset are repeated until they are
    a share of `balance`, at most `MOST_REPEATS` times."""
    hits, quiet = rows[happened[rows]], rows[~happened[rows]]
    wanted = balance / (1 - balance) * quiet.size / max(hits.size, 1)
    times = int(min(max(math.floor(wanted), 1), MOST_REPEATS))
    even = np.ones(weight.size)
    met = np.zeros(2)
    for side, (part, repeats) in enumerate(((hits, times), (quiet, 1))):
        if part.size:
            even[part] = weight[part] / weight[part].mean()
            met[side] = repeats * part.size / weight[part].sum()
    ratio = math.log(met[1] / met[0]) if met.all() else 0.0
    return EpochCourse(np.concatenate([*([hits] * times), quiet]), even, ratio)
