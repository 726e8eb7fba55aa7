"""The training loop: AdamW, clipped gradients, a cosine schedule, stopped early by devices that it does not see."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor, nn

from tocsin.forecaster.features.examples import Ints

FINAL_RATE = 0.05
"""The learning rate ends at this share of where it began."""
LEAST_BATCHES = 16
LEAST_BATCH = 16
"""Few rows get smaller batches, down to this, so that an epoch still takes so many steps. Own choice."""

Loss = Callable[[Ints], tuple[Tensor, float]]
"""Of a batch of row numbers: the sum of the loss over them, and the sum of weights that it stands for."""


@dataclass(frozen=True, slots=True)
class Recipe:
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
        """Batches in an epoch over `rows`."""
        whole = max(1, -(-rows // self.batch_of(rows)))
        return min(whole, self.longest) if self.longest else whole

    def batch_of(self, rows: int) -> int:
        """Rows in a batch of an epoch over `rows`."""
        return min(self.batch, max(LEAST_BATCH, -(-rows // LEAST_BATCHES)))


@dataclass(frozen=True, slots=True)
class Progress:
    """Mean loss on the watched rows after each epoch, and which epoch was best; without watched rows the last."""

    watched: tuple[float, ...]
    best: int


def train(model: nn.Module, loss: Loss, order: Ints, watched: Ints, recipe: Recipe, seed: int) -> Progress:
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
