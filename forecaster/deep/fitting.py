"""One network fitted to the outcomes of rows."""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor

from tocsin.forecaster.deep.inputs import BATCH, Encoder
from tocsin.forecaster.deep.network import Network, Shape, past_of
from tocsin.forecaster.deep.sampling import course
from tocsin.forecaster.deep.survival import Outcome, base_logits, log_likelihood
from tocsin.forecaster.deep.training import Loss, Progress, Recipe, train
from tocsin.forecaster.features.examples import Examples, Floats, Ints, Mask, Singles


@dataclass(frozen=True, slots=True)
class Lesson:
    """Rows to learn from, in memory: `past` float16[m, steps, channels] evened, NaN where missing, `static`
    float32[m, columns], what came of them and what each weighs."""

    past: Tensor | None
    static: Tensor | None
    found: Outcome
    weight: Floats


def lesson(encoder: Encoder, examples: Examples, features: Singles, found: Outcome, weight: Floats) -> Lesson:
    """All rows of `examples` made even; half precision is finer than any sensor and halves the memory."""
    every = np.arange(len(examples))
    parts = [encoder.windows(examples.sequences, every[i : i + BATCH]) for i in range(0, every.size, BATCH)]
    past = torch.cat([part.half() for part in parts if part is not None]) if encoder.steps else None
    return Lesson(past, encoder.rows(features), found, weight)


def fit_network(
    what: Lesson, shape: Shape, watched: Mask, recipe: Recipe, balance: float, device: torch.device, seed: int
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
