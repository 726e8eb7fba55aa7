"""Of which class the next fault is, where one comes: shares that split the hazard into one for each class.

Cause-specific hazards in discrete time: the probability of a fault of class c within h is that of any fault within h
times the share of c, as the first fault that comes ends the wait for the others (Prentice and others 1978).
"""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import load_file, save_file

from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Examples, Floats, Ints
from tocsin.forecaster.hazard.rows import Preparation, aligned, chosen_names, from_arrays, prepare

STRENGTHS = (0.0001, 0.001, 0.01, 0.1)
"""Candidates for the inverse penalty of a coefficient, as in the hazard; beside them the shares of the past alone."""
FOLDS = 5
LEAST_ONSETS = 5
"""Onsets of a class from which on features may speak for it; rarer ones keep their share of the past (own choice)."""
MOST_ROWS = 20_000


@dataclass(frozen=True, slots=True)
class FaultKinds:
    """`classes` with their share of past onsets, `base` float64[k]; `coefficients` float64[m, features + 1] of the
    first `m` of them, none where the features told nothing on devices held out. `loss` and `base_loss` are the log
    losses there, of this model and of `base` alone."""

    names: tuple[str, ...]
    classes: tuple[str, ...]
    base: Floats
    coefficients: Floats
    preparation: Preparation
    loss: float
    base_loss: float

    @classmethod
    def of(cls, examples: Examples, horizon_ms: int, patterns: tuple[str, ...], seed: int = 0) -> FaultKinds | None:
        """Learn from the rows with an onset within `horizon_ms`, each onset as much as any other; None without any."""
        onset, known = examples.label(horizon_ms)
        rows = np.flatnonzero(onset & known)
        if not rows.size:
            return None
        rows = np.sort(np.random.default_rng(seed).permutation(rows)[:MOST_ROWS])
        before = examples.take(rows)
        names = chosen_names(examples.names, patterns)
        pairs = np.stack((before.device.astype(np.int64), before.event_ms), axis=1)
        _, which, times = np.unique(pairs, axis=0, return_inverse=True, return_counts=True)
        weight = 1.0 / times[which]
        classes, label, base, modelled = _classes(before.event_class, weight)
        preparation = prepare(aligned(examples.take(_sample(len(examples))), names))
        z = preparation.apply(aligned(before, names))
        fold = np.random.default_rng(seed).permutation(FOLDS * -(-len(before.devices) // FOLDS))[before.device] % FOLDS
        strength, loss, base_loss = _chosen(z, label, weight, fold, base, modelled)
        fitted = _fit(z, label, weight, modelled, strength) if strength else np.zeros((0, z.shape[1] + 1))
        return cls(names, classes, base, fitted, preparation, loss, base_loss)

    def shares(self, examples: Examples) -> Floats:
        """float64[n, k]: the share of each of `classes`; rows sum to 1. Features are found by name."""
        return _shares(self.preparation.apply(aligned(examples, self.names)), self.coefficients, self.base)

    def save(self, path: Path) -> None:
        arrays: dict[str, npt.NDArray[np.generic]] = {"base": self.base, "coefficients": self.coefficients}
        arrays |= {"loss": np.array([self.loss, self.base_loss]), **self.preparation.arrays()}
        words = {"names": "\n".join(self.names), "classes": "\n".join(self.classes)}
        save_file({name: np.ascontiguousarray(value) for name, value in arrays.items()}, path, words)

    @classmethod
    def load(cls, path: Path) -> FaultKinds:
        """Inverse of `save`. Raises InputError for a file that is none."""
        try:
            arrays = load_file(path)
            with safe_open(path, framework="np") as file:
                words: Mapping[str, str] = file.metadata() or {}
            names, classes = (tuple(words[one].split("\n")) for one in ("names", "classes"))
            base, fitted, (loss, base_loss) = arrays["base"], arrays["coefficients"], arrays["loss"].tolist()
            made = cls(names, classes, base, fitted, from_arrays(arrays), float(loss), float(base_loss))
        except (OSError, SafetensorError, KeyError, ValueError) as error:
            raise InputError("kinds", str(path), f"no classes of faults: {error!r}", "train the model anew") from error
        if made.base.size != len(classes) or len(fitted) > len(classes):
            raise InputError("kinds", str(path), "its parts do not fit together", "train the model anew")
        return made

    @property
    def words(self) -> str:
        shares = ", ".join(f"{name} {share:.0%}" for name, share in zip(self.classes, self.base, strict=True))
        told = f"log loss {self.loss:.3f} on devices held out, {self.base_loss:.3f} by the shares of the past alone"
        return f"classes of faults ({shares}): {told}"


def _sample(rows: int) -> Ints:
    return np.unique(np.linspace(0, rows - 1, min(rows, MOST_ROWS)).astype(np.int64))


def _classes(kinds: Sequence[str] | npt.NDArray[np.str_], weight: Floats) -> tuple[tuple[str, ...], Ints, Floats, int]:
    """Classes, the most frequent first, each row's place among them, their shares, and how many can be modelled."""
    names, label = np.unique(np.asarray(kinds, dtype=np.str_), return_inverse=True)
    count = np.bincount(label, weights=weight)
    order = np.argsort(-count, kind="stable")
    place = np.argsort(order)
    modelled = int((count >= LEAST_ONSETS - 1e-9).sum())
    return tuple(names[order].tolist()), place[label].astype(np.int64), count[order] / count.sum(), modelled


def _chosen(
    z: Floats, label: Ints, weight: Floats, fold: Ints, base: Floats, modelled: int
) -> tuple[float, float, float]:
    """The strength of the least log loss on devices held out (0: the past's shares alone), that loss and that of the
    shares alone."""
    total = weight.sum()
    base_loss = abs(float((weight * np.log(base[label])).sum() / total))
    best, chosen = base_loss, 0.0
    if modelled < 2:
        return chosen, best, base_loss
    for strength in STRENGTHS:
        told = np.zeros(label.size)
        for one in np.unique(fold):
            train, test = fold != one, fold == one
            present = np.isin(np.arange(modelled), label[train])
            fitted = _fit(z[train], label[train], weight[train], modelled, strength) if present.all() else None
            shares = _shares(z[test], np.zeros((0, z.shape[1] + 1)) if fitted is None else fitted, base)
            told[test] = shares[np.arange(len(shares)), label[test]]
        loss = float(-(weight * np.log(np.maximum(told, 1e-12))).sum() / total)
        if loss < best:
            best, chosen = loss, strength
    return chosen, best, base_loss


def _fit(z: Floats, label: Ints, weight: Floats, modelled: int, strength: float) -> Floats:
    """float64[modelled, features + 1] of a multinomial logistic regression, the intercept last."""
    from sklearn.exceptions import ConvergenceWarning
    from sklearn.linear_model import LogisticRegression

    rows = label < modelled
    model = LogisticRegression(C=strength, max_iter=500)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", ConvergenceWarning)  # what is reached by then is as good on devices held out
        model.fit(z[rows], label[rows], sample_weight=weight[rows])
    coefficients = np.hstack([model.coef_, model.intercept_[:, None]])
    # Of two classes scikit-learn keeps the second alone, in log-odds against the first.
    return np.vstack([np.zeros_like(coefficients), coefficients]) if modelled == 2 else coefficients


def _shares(z: Floats, coefficients: Floats, base: Floats) -> Floats:
    shares = np.tile(base, (len(z), 1))
    modelled = len(coefficients)
    if modelled:
        logits = z @ coefficients[:, :-1].T + coefficients[:, -1]
        odds = np.exp(logits - logits.max(axis=1, keepdims=True))
        shares[:, :modelled] = odds / odds.sum(axis=1, keepdims=True) * base[:modelled].sum()
    return shares
