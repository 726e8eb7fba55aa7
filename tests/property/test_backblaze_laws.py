"""Daily snapshots against a plain enumeration, for drives of any history."""

from itertools import pairwise
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin_benchmarks.backblaze.drives import Drives, read_drives
from tocsin_benchmarks.backblaze.folds import starts
from tocsin_benchmarks.backblaze.snapshots import Sampling, snapshots
from tocsin_testing import drive_data

histories = st.lists(
    st.tuples(
        st.integers(0, 60),
        st.lists(st.integers(1, 90), min_size=1, max_size=5),
        st.booleans(),
        st.lists(st.sampled_from([0.0, 0.0, 3.0, 9.0]), min_size=5, max_size=5),
    ),
    min_size=1,
    max_size=4,
)


def build(folder: Path, given_drives: list[tuple[int, list[int], bool, list[float]]]) -> Drives:
    rows: list[drive_data.Row] = []
    for number, (zero, lengths, fails, values) in enumerate(given_drives):
        bounds = np.cumsum([zero, *lengths]).tolist()
        spans = list(pairwise(bounds))
        rows += drive_data.drive(f"A{number}", spans, fails=fails, zero=zero, smart_5=values[: len(spans)])
    return read_drives(drive_data.write(folder, drive_data.frame(rows)))


def plain(drives: Drives, since: float) -> list[tuple[int, int]]:
    """Every whole day of known label, one by one."""
    found = []
    for one in range(len(drives)):
        for hour in range(int(drives.zero_hour[one]), int(drives.last_hour[one]) + 1, 24):
            late = drives.day(np.array([one]), np.array([hour]))[0] >= since
            if drives.failed[one]:
                known = hour < drives.fail_hour[one]
            else:
                known = hour + 48 <= drives.last_hour[one]
            if late and known:
                found.append((one, hour))
    return found


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(histories, st.integers(0, 6), st.integers(1, 6))
def test_snapshots_are_those_of_a_plain_count(tmp_path: Path, drives: list, after: int, few: int) -> None:
    made = build(tmp_path, drives)
    since = np.maximum(starts(made), drive_data.FIRST_DAY + after)
    expected = plain(made, drive_data.FIRST_DAY + after)
    whole = snapshots(made, since, Sampling(1_000, 1_000, 0))
    assert list(zip(whole.drive.tolist(), whole.hour.tolist(), strict=True)) == expected
    some = snapshots(made, since, Sampling(few, few, 1))
    assert abs(some.weight.sum() - len(expected)) < 1e-9
    pairs = set(zip(some.drive.tolist(), some.hour.tolist(), strict=True))
    assert len(pairs) == some.hour.size
    assert pairs <= set(expected)
    ahead = {(one, hour) for one, hour in expected if made.failed[one] and made.fail_hour[one] - hour <= 48}
    assert ahead <= pairs
