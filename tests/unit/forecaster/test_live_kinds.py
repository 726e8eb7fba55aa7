"""Of which class a fault will be: learned from features where they tell, the shares of the past elsewhere."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Examples
from tocsin.forecaster.lifecycle.fault_kinds import FaultKinds

NAMES = ("ecc.24h", "replay.24h", "heat")
HORIZON = 48 * HOUR


def past(classes: tuple[str, ...], *, telling: bool = True, rows: int = 400, seed: int = 0) -> Examples:
    """Every other row is before a fault; with `telling` the feature of its class is high. The rest is noise."""
    rng = np.random.default_rng(seed)
    features = rng.standard_normal((rows, len(NAMES))).astype(np.float32)
    kind = rng.integers(0, len(classes), rows)
    struck = np.arange(rows) % 2 == 0
    if telling:
        features[np.flatnonzero(struck), kind[struck]] += 4
    at_ms = np.arange(rows) * HOUR
    return Examples(
        devices=tuple(f"G{n}" for n in range(rows)), device=np.arange(rows, dtype=np.int32), groups=("g",),
        group=np.zeros(rows, np.int32), at_ms=at_ms, names=NAMES, features=features, seen_ms=at_ms,
        history_ms=np.full(rows, 30 * DAY), event_ms=np.where(struck, at_ms + 6 * HOUR, NEVER),
        until_ms=np.full(rows, 9_000 * HOUR), event_class=np.where(struck, np.array(classes)[kind], ""),
        weight=np.ones(rows),
    )  # fmt: skip


def made(classes: tuple[str, ...], *, telling: bool = True) -> FaultKinds:
    kinds = FaultKinds.of(past(classes, telling=telling), HORIZON, ("*",))
    assert kinds is not None
    return kinds


@pytest.mark.parametrize("classes", [("memory", "bus"), ("memory", "bus", "thermal")])
def test_features_that_tell_name_the_class(classes: tuple[str, ...]) -> None:
    kinds, unseen = made(classes), past(classes, seed=1)
    shares = kinds.shares(unseen)
    assert shares.sum(axis=1) == pytest.approx(1)
    assert shares.min() >= 0
    struck = unseen.event_ms != NEVER
    named = np.array(kinds.classes)[shares.argmax(axis=1)]
    assert (named[struck] == unseen.event_class[struck]).mean() > 0.9
    assert kinds.loss < 0.5 * kinds.base_loss
    assert f"{kinds.base_loss:.3f} by the shares of the past alone" in kinds.words


def test_features_that_tell_nothing_leave_the_shares_of_the_past() -> None:
    kinds = made(("memory", "bus"), telling=False)
    assert kinds.loss <= kinds.base_loss
    shares = kinds.shares(past(("memory", "bus"), seed=1))
    assert np.abs(shares - kinds.base).max() < 0.25


def test_one_class_or_a_rare_one_needs_no_features() -> None:
    assert made(("memory",)).shares(past(("memory",))).tolist() == [[1.0]] * 400
    some = past(("memory", "bus"))
    few = np.flatnonzero(some.event_class == "bus")[3:]
    kinds = FaultKinds.of(some.take(np.setdiff1d(np.arange(400), few)), HORIZON, ("*",))
    assert kinds is not None
    assert kinds.classes == ("memory", "bus")
    assert kinds.shares(some).std(axis=0).tolist() == pytest.approx([0, 0])
    quiet = some.take(some.event_ms == NEVER)
    assert FaultKinds.of(quiet, HORIZON, ("*",)) is None


def test_it_survives_a_file_and_missing_features(tmp_path: Path) -> None:
    kinds, unseen = made(("memory", "bus", "thermal")), past(("memory", "bus", "thermal"), seed=1)
    kinds.save(tmp_path / "k")
    again = FaultKinds.load(tmp_path / "k")
    assert again.shares(unseen).tolist() == kinds.shares(unseen).tolist()
    assert (again.classes, again.words) == (kinds.classes, kinds.words)
    blank = unseen.features.copy()
    blank[:, 0] = np.nan
    blind = Examples(**{f: getattr(unseen, f) for f in unseen.__slots__ if f != "features"}, features=blank)
    assert kinds.shares(blind).sum(axis=1) == pytest.approx(1)


def test_a_damaged_file_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "k"
    path.write_bytes(b"torn")
    with pytest.raises(InputError, match="no classes of faults"):
        FaultKinds.load(path)
