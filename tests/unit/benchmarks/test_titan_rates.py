"""Decision instants and rates of Titan: exact weights, nothing from the future, and what the rates learn."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.domain.clock import DAY, HOUR, from_iso
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import NEVER, Mask
from tocsin_benchmarks.titan.data import Fleet, fleet_of, read_lives
from tocsin_benchmarks.titan.examples import examples
from tocsin_benchmarks.titan.own_rate import FIRST_RATE, own_rate
from tocsin_benchmarks.titan.place_effects import fit, past_of
from tocsin_benchmarks.titan.snapshots import HORIZON_MS, Snapshots, snapshots
from tocsin_benchmarks.titan.walk import Pace, walk
from tocsin_testing import event_sets

START, CUT = from_iso("2014-03-01"), from_iso("2016-01-01")
PACE = Pace(28 * DAY, (120.0,))


@pytest.fixture(scope="module")
def lines() -> list[tuple[str, ...]]:
    return event_sets.titan_lines()


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory, lines: list[tuple[str, ...]]) -> Fleet:
    return fleet_of(read_lives(event_sets.write_titan(tmp_path_factory.mktemp("titan"), lines)))


def _all_lives(fleet: Fleet) -> Mask:
    return np.ones(fleet.insert_ms.size, dtype=np.bool_)


def _teachers(fleet: Fleet) -> Mask:
    return np.ones(len(fleet.devices), dtype=np.bool_)


def _rows(fleet: Fleet, sample: int, seed: int = 0) -> Snapshots:
    return snapshots(fleet, START, CUT, sample, seed, _all_lives(fleet))


def test_a_full_sample_is_every_day_in_place(fleet: Fleet) -> None:
    rows = _rows(fleet, 10**6)
    assert (rows.weight == 1).all()
    assert np.unique(np.stack([rows.life, rows.at_ms]), axis=1).shape[1] == len(rows)
    assert (rows.at_ms % DAY == 0).all()
    assert ((rows.at_ms >= fleet.insert_ms[rows.life]) & (rows.at_ms < fleet.remove_ms[rows.life])).all()
    assert rows.at_ms.max() + HORIZON_MS <= CUT
    onsets = np.unique(np.stack([fleet.life_device[rows.life], rows.next_ms]), axis=1)
    inside = fleet.onset & (fleet.event_ms > START + 2 * DAY) & (fleet.event_ms < CUT - 2 * DAY)
    assert onsets.shape[1] > 0
    assert inside.sum() > 50


def test_weights_make_up_for_the_sampling(fleet: Fleet) -> None:
    whole, some = _rows(fleet, 10**6), _rows(fleet, 20_000)
    assert len(some) < len(whole) / 2
    assert some.weight.sum() == pytest.approx(whole.weight.sum(), rel=0.02)
    late = some.at_ms > from_iso("2015-06-01")
    assert some.weight[late].sum() == pytest.approx((whole.at_ms > from_iso("2015-06-01")).sum(), rel=0.04)
    happened = some.next_ms <= some.at_ms + HORIZON_MS
    assert (some.weight[happened] == 1).all()
    assert happened.sum() == (whole.next_ms <= whole.at_ms + HORIZON_MS).sum()


def test_the_week_after_an_error_and_unknown_ends_are_left_out(fleet: Fleet) -> None:
    rows = _rows(fleet, 10**6)
    for device, at_ms in zip(fleet.event_device, fleet.event_ms, strict=True):
        near = (fleet.life_device[rows.life] == device) & (rows.at_ms >= at_ms) & (rows.at_ms <= at_ms + 7 * DAY)
        assert not near.any()
    known = (rows.next_ms <= rows.at_ms + HORIZON_MS) | (rows.until_ms >= rows.at_ms + HORIZON_MS)
    assert known.all()


def test_no_gpu_in_place_is_said(fleet: Fleet) -> None:
    with pytest.raises(InputError, match="no GPU is in place"):
        snapshots(fleet, from_iso("2012-01-01"), from_iso("2012-06-01"), 100, 0, _all_lives(fleet))


def _forgotten(lines: list[tuple[str, ...]], at_ms: int) -> list[tuple[str, ...]]:
    """What had been written down at an instant, with another future: no errors, everything taken out at once."""
    kept = []
    for serial, place, insert, remove, *_, event in lines:
        later = remove != "" and from_iso(remove) > at_ms
        if (insert and from_iso(insert) > at_ms) or (event and later):
            continue
        kept.append((serial, place, insert, "2017-06-01 00:00:00" if later or not remove else remove, "", "", event))
    return kept


def test_another_future_changes_no_feature(fleet: Fleet, lines: list[tuple[str, ...]], tmp_path: Path) -> None:
    at_ms = from_iso("2015-09-10")
    other = fleet_of(read_lives(event_sets.write_titan(tmp_path, _forgotten(lines, at_ms))))
    rows = _rows(fleet, 10**6)
    rows = rows.take((rows.at_ms <= at_ms) & (rows.at_ms > at_ms - 40 * DAY))
    stays = {key: place for place, key in enumerate(_stays(other))}
    there = np.asarray([stays[key] for key in _stays(fleet, rows.life)])
    moved = replace(rows, life=there)
    first, second = examples(fleet, rows, None, PACE), examples(other, moved, None, PACE)
    assert first.names == second.names
    np.testing.assert_allclose(first.features, second.features, rtol=1e-5, atol=1e-6)
    assert (first.seen_ms <= first.at_ms).all()


def _stays(fleet: Fleet, life: np.ndarray | None = None) -> list[tuple[str, str, int]]:
    chosen = range(fleet.insert_ms.size) if life is None else life
    device, slot = fleet.life_device, fleet.life_slot
    return [(fleet.devices[device[one]], fleet.slots[slot[one]], int(fleet.insert_ms[one])) for one in chosen]


def test_the_upper_cage_is_learned(fleet: Fleet) -> None:
    rows = _rows(fleet, 20_000)
    late = rows.take(rows.at_ms > from_iso("2015-06-01"))
    walked = walk(fleet, late.life, late.at_ms, _teachers(fleet), PACE)
    cage = fleet.place[fleet.life_slot[late.life], 2]
    means = [walked.log_rate[cage == one].mean() for one in range(3)]
    assert means[2] > means[1] > means[0]
    assert walked.place[cage == 2].mean() - walked.place[cage == 0].mean() > 1.0


def test_the_fleets_level_is_the_onsets_over_the_days(fleet: Fleet) -> None:
    past = past_of(fleet, _teachers(fleet))
    effects = fit(past, CUT, 1e6, np.zeros(len(past.prior)))
    rate = np.exp(effects[past.code].sum(axis=0))
    served = np.clip(np.minimum(fleet.remove_ms, CUT) - fleet.insert_ms, 0, None) / DAY
    assert (rate * served).sum() == pytest.approx((past.onset_ms <= CUT).sum(), rel=0.05)


def test_who_does_not_teach_is_not_learned_from(fleet: Fleet) -> None:
    rows = _rows(fleet, 5_000)
    nobody = ~_teachers(fleet)
    walked = walk(fleet, rows.life, rows.at_ms, nobody, PACE)
    assert np.ptp(walked.place) == 0
    rates = own_rate(fleet, rows.life, rows.at_ms, nobody)
    np.testing.assert_allclose(np.unique(rates), [0.0, FIRST_RATE])


def test_repetition_is_counted(fleet: Fleet) -> None:
    rows = _rows(fleet, 10**6)
    late = rows.take(rows.at_ms > from_iso("2015-06-01"))
    rates = own_rate(fleet, late.life, late.at_ms, _teachers(fleet))
    table = examples(fleet, late, None, PACE)
    had = table.column("own_onsets") > 0
    assert (rates[~had] == 0).all()
    assert rates[had].min() > 0
    happened = (late.next_ms <= late.at_ms + DAY)[had].mean()
    assert rates[had].mean() == pytest.approx(happened, rel=0.4)


def test_labels_and_classes_follow_the_onsets(fleet: Fleet) -> None:
    table = examples(fleet, _rows(fleet, 5_000), None, PACE)
    label, known = table.label(HORIZON_MS)
    assert known.all()
    assert set(np.unique(table.event_class[label])) == {"DBE", "OTB"}
    assert (table.event_ms[label] - table.at_ms[label] <= 48 * HOUR).all()
    assert (table.event_class[table.event_ms == NEVER] == "").all()
    assert table.groups[table.group[0]].startswith("c")
