"""Folds of the drive set: who is learned from up to which day, and who is judged from when on."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.evaluation.split import SplitKind, check_parts
from tocsin.forecaster.features.examples import Examples, Floats, Ints, Mask
from tocsin_benchmarks.backblaze.drive_models import record
from tocsin_benchmarks.backblaze.drives import Drives, read_drives
from tocsin_benchmarks.backblaze.features import ledger
from tocsin_benchmarks.backblaze.snapshots import HORIZON_H, Sampling, Snapshots, daily, examples, snapshots

LEARNED_SHARE = 0.7
"""Share of the observed days before the cut (own choice, as the number of folds)."""
FOLDS = 3
TUNE_FOLDS = 8
"""One of so many parts of the training drives is kept from the models and gives ranks, probabilities, thresholds."""


@dataclass(frozen=True, slots=True)
class Fold:
    """`train` ends at day `cut`; `test` has the drives that are judged, each from day `since` [d of test] on, with all
    of their past. `shared` [d of test] are drives that `train` has too: they are judged after its end. `counted` are
    the drives whose days and failures the live record of drive models goes on counting while `test` is judged."""

    name: str
    train: Drives
    test: Drives
    counted: Drives
    cut: float
    since: Floats
    shared: Mask

    def tune_drives(self) -> Mask:
        """bool[d of train]: drives that no model learns from."""
        return np.asarray(_part(self.train, TUNE_FOLDS, b"tune") == 0)


def _part(drives: Drives, parts: int, salt: bytes) -> Ints:
    """A number from 0 to `parts` - 1 for each drive, the same in every run: from its serial number alone."""
    numbers = [hashlib.blake2b(salt + one.encode(), digest_size=4).digest() for one in drives.serial.tolist()]
    return np.asarray([int.from_bytes(one, "big") % parts for one in numbers], dtype=np.int64)


def cut_day(drives: Drives) -> float:
    """The day after `LEARNED_SHARE` of the observed span."""
    first = float(starts(drives).min())
    return float(np.floor(first + LEARNED_SHARE * (float(drives.end_day.max()) - first)))


def own_folds(drives: Drives, folds: int = FOLDS) -> Iterator[Fold]:
    """Every drive that lives after the cut is judged once, by what was learned from other drives before the cut."""
    cut = cut_day(drives)
    part = _part(drives, folds, b"")
    for one in range(folds):
        train = drives.chosen(part != one).until(cut)
        test = drives.chosen((part == one) & (drives.end_day > cut))
        if not len(train) or not len(test):
            raise InputError("data", len(drives), "too few drives or days for folds by drive and time", "give more")
        since, shared = np.full(len(test), cut), np.zeros(len(test), np.bool_)
        yield Fold(f"drives {one + 1}/{folds}", train, test, drives.chosen(part != one), cut, since, shared)


def given_fold(train: Path, test: Path) -> Fold:
    """Learn from all of `train` and judge the drives of `test`: one that is also in `train` from the end of `train` on
    and with its past there, any other for its whole history."""
    learned, judged = read_drives(train), read_drives(test)
    fleet = read_drives(train, test)
    both = fleet.chosen(np.isin(fleet.serial, judged.serial))
    shared = np.isin(both.serial, learned.serial)
    cut = float(learned.end_day.max())
    return Fold("test folder", learned, both, fleet, cut, np.where(shared, cut, starts(both)), shared)


@dataclass(frozen=True, slots=True)
class Parts:
    """Examples of a fold: to learn from, to set ranks and thresholds by, to be judged; `sweep` has every day of the
    test drives that fail and of some that do not, each weighted as a drive."""

    learn: Examples
    tune: Examples
    test: Examples
    sweep: Examples


@dataclass(frozen=True, slots=True)
class Sizes:
    """Negative snapshots of each stratum to learn from (hot, cold, fresh), to judge on (hot, cold), and healthy drives
    to sweep."""

    learn: tuple[int, int, int]
    test: tuple[int, int]
    healthy: int


def parts(fold: Fold, sizes: Sizes, seed: int) -> Parts:
    """Examples of `fold`; the refusals of `evaluation.split` apply.

    What is learned from looks at the record of the train part. What is judged looks at a record that went on counting,
    up to the start of the day of each decision: whoever runs a fleet knows by then which drives have failed.
    """
    kept, live = record(fold.train), record(fold.counted)
    hot, cold, fresh = sizes.learn
    aside = fold.tune_drives()
    made = []
    for drives in (fold.train.chosen(~aside), fold.train.chosen(aside)):
        chosen = snapshots(drives, starts(drives), Sampling(hot, cold, seed, fresh))
        made.append(examples(drives, kept, _settled(drives, chosen, fold.cut)))
    book = ledger(fold.test)
    test = examples(fold.test, live, snapshots(fold.test, fold.since, Sampling(*sizes.test, seed + 1)), book)
    for part in made:
        _check(part, test, fold)
    sweep = examples(fold.test, live, _sweep(fold, sizes.healthy, seed + 2), book)
    return Parts(made[0], made[1], test, sweep)


def _check(learned: Examples, test: Examples, fold: Fold) -> None:
    """The evaluator's refusals, for drives of the train part and for others."""
    shared = fold.shared[test.device]
    for rows, kind in ((shared, SplitKind.TIME), (~shared, SplitKind.DEVICE)):
        if rows.any():
            part = test.take(rows)
            later = int(part.at_ms.min()) >= fold.cut * DAY
            parted = SplitKind.TIME_AND_DEVICE if later and kind is SplitKind.DEVICE else kind
            check_parts(learned, part, HORIZON_H * HOUR, parted)


def starts(drives: Drives) -> Floats:
    """float64[d]: the day since which each drive is observed."""
    return drives.day(np.arange(len(drives)), drives.first_hour)


def _settled(drives: Drives, chosen: Snapshots, cut: float) -> Snapshots:
    """Without the last days before the cut: of those only failures could be known."""
    return chosen.take(drives.day(chosen.drive, chosen.hour) + HORIZON_H / 24 <= cut)


def _sweep(fold: Fold, healthy: int, seed: int) -> Snapshots:
    failed = fold.test.failed
    quiet = np.flatnonzero(~failed)
    some = np.random.default_rng(seed).choice(quiet, min(healthy, quiet.size), replace=False)
    weight = np.zeros(len(fold.test))
    weight[failed] = 1.0
    weight[some] = quiet.size / max(some.size, 1)
    return daily(fold.test, fold.since, weight)
