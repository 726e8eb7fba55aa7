"""Splits into train and test that tell nothing of the answer, and the refusal of all others.

Rows of one device at neighbouring instants are near copies: a split that puts some here and some there lets a model
recognise the device instead of foreseeing the failure. So a split parts by time, with a gap as long as the horizon, by
device, or by both; one by row is refused.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tocsin.domain.clock import HOUR, to_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Examples, Ints, Mask

REMEDY = "split by time with a gap of the horizon, by device, or by both"


class SplitKind(StrEnum):
    """What train and test are parted by."""

    TIME = "time"
    DEVICE = "device"
    TIME_AND_DEVICE = "time and device"


@dataclass(frozen=True, slots=True)
class Split:
    """Row numbers of the train and the test part of some examples. `kind` is a promise that `check` tests."""

    train: Ints
    test: Ints
    kind: SplitKind

    def parts(self, examples: Examples, horizon_ms: int) -> tuple[Examples, Examples]:
        """Train and test, checked. Where they are parted by time, train knows nothing from the test's start on."""
        check(examples, self, horizon_ms)
        train, test = examples.take(self.train), examples.take(self.test)
        return (train if self.kind is SplitKind.DEVICE else until(train, int(test.at_ms.min()))), test


def until(examples: Examples, end_ms: int) -> Examples:
    """The same rows as one knew them at `end_ms`: no onset after it, no observation beyond it."""
    later = (examples.event_ms > end_ms) & (examples.event_ms != NEVER)
    return replace(
        examples,
        event_ms=np.where(later, NEVER, examples.event_ms),
        event_class=np.where(later, "", examples.event_class),
        until_ms=np.minimum(examples.until_ms, end_ms),
    )


def check(examples: Examples, split: Split, horizon_ms: int) -> None:
    """Refuse, with InputError, a split that leaks: a row in both parts, features or known onsets that do not fit their
    row's instant, a device in both parts without the order of time, or train labels that look into the test."""
    for name, rows in (("train", split.train), ("test", split.test)):
        if rows.size == 0:
            raise InputError(f"split.{name}", 0, "no rows", "give both parts rows")
        if rows.min() < 0 or rows.max() >= len(examples) or np.unique(rows).size != rows.size:
            problem = "not distinct rows of the examples"
            raise InputError(f"split.{name}", rows.size, problem, f"use rows 0 to {len(examples) - 1}, each once")
    both = np.intersect1d(split.train, split.test)
    if both.size:
        raise InputError("split", int(both.size), "rows are in train and test", REMEDY)
    check_parts(examples.take(split.train), examples.take(split.test), horizon_ms, split.kind)


def check_parts(train: Examples, test: Examples, horizon_ms: int, kind: SplitKind) -> None:
    """The same for parts that come apart, devices recognised by name."""
    for name, part in (("train", train), ("test", test)):
        check_instants(part, name)
    shared = np.intersect1d(_device_names(train), _device_names(test))
    if kind is not SplitKind.TIME and shared.size:
        _refuse_shared(train, test, shared, kind)
    if kind is SplitKind.DEVICE:
        return
    end_ms, start_ms = int(train.at_ms.max()) + horizon_ms, int(test.at_ms.min())
    if int(train.at_ms.max()) >= start_ms:
        what = "row-random: train has rows later than test rows"
        if shared.size:
            what += f", {shared.size} devices are in both, such as {shared[0]}"
        raise InputError("split", kind.value, what, REMEDY)
    if end_ms > start_ms:
        problem = f"train labels look {(end_ms - start_ms) / HOUR:.1f} h into the test, which starts {to_iso(start_ms)}"
        raise InputError("split", kind.value, problem, f"end train {horizon_ms / HOUR:g} h before the test")


def check_instants(examples: Examples, name: str = "examples") -> None:
    """Refuse, with InputError, features dated after their decision, and onsets that are not after it."""
    late = np.flatnonzero(examples.seen_ms > examples.at_ms)
    if late.size:
        row = int(late[0])
        span_ms = int(examples.seen_ms[row] - examples.at_ms[row])
        problem = f"{late.size} rows have features dated after the decision, row {row} by {span_ms} ms"
        raise InputError(f"{name}.seen_ms", late.size, problem, "use data up to the decision only")
    known = np.flatnonzero(examples.event_ms <= examples.at_ms)
    if known.size:
        problem = f"{known.size} rows have an onset that is not after the decision, first row {int(known[0])}"
        raise InputError(f"{name}.event_ms", known.size, problem, "label with the next onset after the decision")


def _device_names(examples: Examples) -> npt.NDArray[np.str_]:
    return np.asarray(examples.devices, dtype=np.str_)[np.unique(examples.device)]


def _refuse_shared(train: Examples, test: Examples, shared: npt.NDArray[np.str_], kind: SplitKind) -> None:
    names = set(shared.tolist())
    last, first = (_instants(part, names) for part in (train, test))
    mixed = int(last.max()) >= int(first.min())
    problem = f"{shared.size} devices are in train and test, such as {shared[0]}"
    raise InputError("split", kind.value, f"row-random: {problem}" if mixed else problem, REMEDY)


def _instants(examples: Examples, names: set[str]) -> Ints:
    mine = np.asarray([name in names for name in examples.devices])
    return np.asarray(examples.at_ms[mine[examples.device]])


# ---------------------------------------------------------------------------------------------------------------------


def by_time(examples: Examples, start_ms: int, gap_ms: int) -> Split:
    """Test from `start_ms` on; train is what lies at least `gap_ms` before it."""
    train = np.flatnonzero(examples.at_ms + gap_ms <= start_ms)
    return Split(train, np.flatnonzero(examples.at_ms >= start_ms), SplitKind.TIME)


def by_device(examples: Examples, folds: int, seed: int, *, group: bool = False) -> Iterator[Split]:
    """Every device, or with `group` every group of devices, in the test of one of `folds` splits. Raises InputError
    where there are fewer than `folds`."""
    number = fold_numbers(examples, folds, seed, group=group)
    for fold in range(folds):
        yield Split(np.flatnonzero(number != fold), np.flatnonzero(number == fold), SplitKind.DEVICE)


def by_time_and_device(
    examples: Examples, start_ms: int, gap_ms: int, folds: int, seed: int, *, group: bool = False
) -> Iterator[Split]:
    """`by_time` and `by_device` at once: each test has devices and days that its train does not have."""
    yield from _sliding(examples, [start_ms, NEVER], gap_ms, fold_numbers(examples, folds, seed, group=group))


def walk_forward(
    examples: Examples, folds: int, gap_ms: int, devices: int = 1, seed: int = 0, *, group: bool = False
) -> Iterator[Split]:
    """Slide forward: the span of the rows is cut into `folds` + 1 equal stretches; each but the first is tested by
    what lies `gap_ms` before it. With `devices` > 1 the tested devices are not trained on either, in as many parts.

    Raises InputError where the rows do not span enough time for a train part before the first test.
    """
    first_ms, last_ms = int(examples.at_ms.min()), int(examples.at_ms.max())
    step_ms = (last_ms - first_ms) // (folds + 1)
    if step_ms <= gap_ms:
        needed = (gap_ms * (folds + 1)) / HOUR
        problem = f"too little history for {folds} folds with a gap of {gap_ms / HOUR:g} h"
        remedy = f"give more than {needed:.0f} h of decisions whose outcome is known"
        raise InputError("span", f"{(last_ms - first_ms) / HOUR:.0f} h", problem, remedy)
    bounds = [first_ms + step_ms * (fold + 1) for fold in range(folds)] + [NEVER]
    number = fold_numbers(examples, devices, seed, group=group)
    yield from _sliding(examples, bounds, gap_ms, number)


def forward_splits(examples: Examples, folds: int, gap_ms: int, devices: int, seed: int) -> tuple[list[Split], int]:
    """Those splits of `walk_forward` by group that have rows on both sides, and in how many parts the groups are dealt:
    `devices`, or as many as there are groups where that is less. Raises InputError where no split has both."""
    parts = max(1, min(devices, int(np.unique(examples.group).size)))
    slid = walk_forward(examples, folds, gap_ms, parts, seed, group=True)
    splits = [split for split in slid if split.train.size and split.test.size]
    if not splits:
        raise InputError("folds", folds, "no fold has rows to learn from and rows to test", "give a longer past")
    return splits, parts


def fold_numbers(examples: Examples, folds: int, seed: int, *, group: bool = False) -> Ints:
    """Fold of each row, int64[n] in 0 to `folds` - 1: devices or groups dealt out in a random, seeded order.

    Raises InputError where there are fewer than `folds`.
    """
    code, every = (examples.group, examples.groups) if group else (examples.device, examples.devices)
    present = np.unique(code)
    present = present[np.argsort(np.asarray(every, dtype=np.str_)[present], kind="stable")]
    if present.size < folds:
        what = "groups" if group else "devices"
        raise InputError("folds", folds, f"only {present.size} {what}", f"use at most {present.size} folds")
    number = np.zeros(len(every), dtype=np.int64)
    number[np.random.default_rng(seed).permutation(present)] = np.arange(present.size) % folds
    return np.asarray(number[code])


def _sliding(examples: Examples, bounds: Sequence[int], gap_ms: int, number: Ints) -> Iterator[Split]:
    folds = int(number.max()) + 1
    for start_ms, end_ms in pairwise(bounds):
        before = examples.at_ms + gap_ms <= start_ms
        within = (examples.at_ms >= start_ms) & (examples.at_ms < end_ms)
        for fold in range(folds):
            mine: Mask = number == fold
            others = ~mine if folds > 1 else mine
            kind = SplitKind.TIME_AND_DEVICE if folds > 1 else SplitKind.TIME
            yield Split(np.flatnonzero(before & others), np.flatnonzero(within & mine), kind)
