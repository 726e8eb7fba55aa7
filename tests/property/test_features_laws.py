"""Laws of the feature builder: no look-ahead, pieces as good as the whole, no order among GPUs, inputs unchanged."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.domain.event import Event, EventKind
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.examples import Examples
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.table import FeatureTable
from tocsin.forecaster.features.walk import Rules, Span, examples_from
from tocsin.store.port import Columns
from tocsin_testing.feature_data import START, STEP, Recorded, columns, event, fleet, part

PLAN = FeaturePlan()
FLEET = fleet()
KINDS = (EventKind.XID, EventKind.GPU_LOST, EventKind.GPU_FOUND, EventKind.RECOVERY_ACTION, EventKind.DRIVER_RELOAD)

happenings = st.lists(
    st.builds(
        lambda kind, which, step, code: event(kind, FLEET[which], step, code),
        st.sampled_from(KINDS),
        st.integers(0, 7),
        st.floats(0.1, 200),
        st.sampled_from((13, 31, 48, 63, 74, 79, 92, 119)),
    ),
    max_size=12,
)
holes = st.floats(0.0, 0.9)
seeds = st.integers(0, 2**31)
few = settings(max_examples=8)


def history(seed: int, share: float, last: int = 200) -> Columns:
    """A history with gaps, stuck stretches, resets and lost values."""
    whole = columns(FLEET, 0, last, seed=seed)
    rng = np.random.default_rng(seed)
    values = whole.values
    values[rng.random(values.shape) < share / 3] = np.nan
    stuck = (whole.gpu == 2) & (whole.at_ms > START + 50 * STEP) & (whole.at_ms < START + 90 * STEP)
    values[stuck] = values[np.flatnonzero(stuck)[0]]
    values[(whole.gpu == 4) & (whole.at_ms > START + 120 * STEP), 6:8] %= 3.0
    return part(whole, np.flatnonzero(rng.random(whole.at_ms.size) >= share / 2))


def until(rows: Columns, events: list[Event], now: int) -> tuple[Columns, list[Event]]:
    return part(rows, np.flatnonzero(rows.at_ms <= now)), [one for one in events if one.at_ms <= now]


def built(rows: Columns, events: list[Event]) -> FeatureBuilder:
    builder = FeatureBuilder(PLAN, FLEET)
    builder.update(rows, events)
    return builder


def equal(one: FeatureTable, other: FeatureTable) -> None:
    np.testing.assert_array_equal(one.values, other.values)
    np.testing.assert_array_equal(one.seen_ms, other.seen_ms)
    np.testing.assert_array_equal(one.history_ms, other.history_ms)


@few
@given(seeds, holes, happenings, st.lists(st.integers(1, 199), max_size=5))
def test_pieces_are_as_good_as_the_whole(seed: int, share: float, events: list[Event], cuts: list[int]) -> None:
    rows, now = history(seed, share), START + 200 * STEP
    whole = built(rows, events)
    pieces = FeatureBuilder(PLAN, FLEET)
    before = START - 1
    for cut in [*sorted({START + cut * STEP for cut in cuts}), now]:
        mine = np.flatnonzero((rows.at_ms > before) & (rows.at_ms <= cut))
        pieces.update(part(rows, mine), [one for one in events if before < one.at_ms <= cut])
        pieces.table(cut)
        before = cut
    equal(pieces.table(now), whole.table(now))
    np.testing.assert_array_equal(pieces.sequences(now), whole.sequences(now))


@settings(max_examples=4)
@given(seeds, happenings, st.integers(4, 30).map(lambda step: 6 * step))
def test_what_comes_later_changes_nothing(seed: int, events: list[Event], step: int) -> None:
    now = START + step * STEP
    one, other = history(seed, 0.3), history(seed, 0.3)
    other.values[other.at_ms > now] *= 3.0
    # GPU 6 repeats itself from shortly before on; only the other history goes on and shows that it had frozen.
    begins = (one.gpu == 6) & (one.at_ms > now - 3 * STEP)
    for rows, stuck in ((one, begins & (one.at_ms <= now)), (other, begins)):
        rows.values[stuck] = 50.0
    changed = [e for e in events if e.at_ms <= now] + [event(EventKind.XID, FLEET[1], step + 1.5, 79)]
    nothing = Rules(gap_ms=0, quiet_ms=1)
    found = [
        examples_from(Recorded(rows, happened), FLEET, Span(START, START + 200 * STEP, 6 * STEP), PLAN, (), nothing)
        for rows, happened in ((one, events), (other, changed))
    ]
    before = [whole.take(whole.at_ms <= now) for whole in found]
    equal_rows(*before)
    assert (before[0].seen_ms <= before[0].at_ms).all()
    assert not np.array_equal(found[0].features, found[1].features, equal_nan=True)


def equal_rows(one: Examples, other: Examples) -> None:
    np.testing.assert_array_equal(one.features, other.features)
    np.testing.assert_array_equal(one.at_ms, other.at_ms)
    assert one.sequences is not None
    assert other.sequences is not None
    rows = np.arange(len(one))
    np.testing.assert_array_equal(one.sequences.take(rows), other.sequences.take(rows))


@few
@given(seeds, happenings, st.permutations(range(8)))
def test_the_order_of_gpus_does_not_matter(seed: int, events: list[Event], order: list[int]) -> None:
    rows, now = history(seed, 0.3), START + 200 * STEP
    one = built(rows, events).table(now)
    mixed = FeatureBuilder(PLAN, [FLEET[place] for place in order])
    mixed.update(rows, events)
    other = mixed.table(now)
    found = [other.gpus.index(uuid) for uuid in one.gpus]
    np.testing.assert_allclose(other.values[found], one.values, rtol=1e-5, atol=1e-5)


@few
@given(seeds, happenings)
def test_inputs_stay_as_they_are(seed: int, events: list[Event]) -> None:
    rows, now = history(seed, 0.3), START + 200 * STEP
    before = [rows.values.copy(), rows.at_ms.copy(), rows.gpu.copy(), list(events)]
    for array in (rows.values, rows.at_ms, rows.gpu):
        array.setflags(write=False)
    builder = built(rows, events)
    builder.table(now)
    builder.sequences(now)
    np.testing.assert_array_equal(rows.values, before[0])
    np.testing.assert_array_equal(rows.at_ms, before[1])
    np.testing.assert_array_equal(rows.gpu, before[2])
    assert events == before[3]


@few
@given(seeds, holes, happenings)
def test_a_table_is_not_changed_by_what_is_fed_afterwards(seed: int, share: float, events: list[Event]) -> None:
    rows, middle, now = history(seed, share), START + 100 * STEP, START + 200 * STEP
    builder = built(*until(rows, events, middle))
    table, past = builder.table(middle), builder.sequences(middle)
    kept, seen = table.values.copy(), past.copy()
    builder.update(part(rows, np.flatnonzero(rows.at_ms > middle)), [one for one in events if one.at_ms > middle])
    builder.table(now)
    np.testing.assert_array_equal(table.values, kept)
    np.testing.assert_array_equal(past, seen)


@few
@given(seeds, holes, happenings)
def test_values_are_finite_or_missing(seed: int, share: float, events: list[Event]) -> None:
    builder = built(history(seed, share), events)
    now = START + 200 * STEP
    assert not np.isinf(builder.table(now).values).any()
    assert not np.isinf(builder.sequences(now)).any()
