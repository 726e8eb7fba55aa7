"""The embedded store against the one in memory: whatever is written, compacted, cut off, reopened, in any order."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.memory import MemoryStore
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import gpu, xid

START = 1_795_000_000_000 // DAY * DAY + 23 * HOUR
"""An hour before midnight: the instants of the test lie in two days."""
NAMES = [
    "gpu_power_watts",
    "gpu_temperature_celsius",
    "gpu_energy_joules_total",
    "gpu_clocks_event_reasons_bitmask",
    variant("gpu_nvlink_crc_flit_errors_total", "link", "3"),
    variant("gpu_process_memory_used_bytes", "pid", "4242"),
    "a name that no table has",
]
FOREVER = Retention(10**6 * DAY, 10**6 * DAY, 10**6 * DAY)

values = st.one_of(
    st.floats(allow_nan=False, allow_infinity=False),
    st.integers(0, 2**53).map(float),
    st.integers(0, 100).map(lambda n: n / 100),
    st.sampled_from([0.0, -0.0, 5e-324, 1.7976931348623157e308, 2.0**63]),
)
instants = st.one_of(
    st.sampled_from([START + n * 40 * MINUTE for n in (0, 0, 0, 1, 2, 5)]),
    st.integers(0, 4 * HOUR).map(lambda ms: START + ms),
)
owners = st.sampled_from([(), (Owner(7, "python", pod="train-0", namespace="ml"),), (Owner(8), Owner(9, user="ann"))])
readings = st.builds(
    Reading,
    st.sampled_from([0, 0, 0, 1, 2]).map(gpu),
    instants,
    st.dictionaries(st.sampled_from(NAMES), values, max_size=4),
    st.dictionaries(st.sampled_from(NAMES), st.sampled_from(list(Missing)), max_size=3),
    owners,
)


def bits(reading: Reading) -> tuple[object, ...]:
    """All of a reading in a form that tells 0.0 from -0.0."""
    found = {name: np.float64(value).tobytes() for name, value in reading.values.items()}
    missing = {name: reason for name, reason in reading.missing.items() if name not in found}
    return reading.gpu.uuid, reading.at_ms, found, missing, reading.owners


class EmbeddedStore(RuleBasedStateMachine):
    """Every rule does to both stores the same, or to the embedded one what must not change what it answers."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.model = MemoryStore()
        self.store = SqliteStore(self.path)
        self.store.init()
        self.rounds = 0

    @rule(batch=st.lists(readings, min_size=1, max_size=6))
    def write(self, batch: list[Reading]) -> None:
        for store in (self.model, self.store):
            store.write(Batch(readings=batch, events=[xid(79, batch[0].gpu, batch[0].at_ms)]))

    @rule(hours=st.integers(1, 80))
    def maintain(self, hours: int) -> None:
        self.rounds += 1
        self.store.maintain(START + hours * HOUR, FOREVER)

    @precondition(lambda self: self.rounds)
    @rule(before=instants)
    def prune(self, before: int) -> None:
        assert self.store.prune(before) == self.model.prune(before)

    @rule()
    def reopen(self) -> None:
        self.store.close()
        self.store = SqliteStore(self.path)

    @rule(start=instants, end=instants)
    def read_a_range(self, start: int, end: int) -> None:
        found, expected = ([bits(r) for r in store.readings(start, end)] for store in (self.store, self.model))
        assert found == expected
        one = NAMES[:5]
        for number in range(4):
            mine, its = (store.series(f"GPU-{number:08d}", one, start, end) for store in (self.store, self.model))
            assert mine.at_ms.tolist() == its.at_ms.tolist()
            np.testing.assert_array_equal(mine.values, its.values)

    @rule(since=instants)
    def read_the_newest(self, since: int) -> None:
        expected = [bits(r) for r in self.model.latest(since)]
        assert [bits(r) for r in self.store.latest(since)] == expected
        columns = self.store.latest_columns(NAMES, since)
        assert list(zip(columns.gpus, columns.at_ms.tolist(), strict=True)) == [(e[0], e[1]) for e in expected]
        for row, reading in enumerate(self.model.latest(since)):
            wanted = [reading.values.get(name, np.nan) for name in NAMES]
            np.testing.assert_array_equal(columns.values[row], wanted)

    @invariant()
    def everything_is_there(self) -> None:
        expected = [bits(r) for r in self.model.readings(0, START + 10 * DAY)]
        assert [bits(r) for r in self.store.readings(0, START + 10 * DAY)] == expected
        keys = self.store.columns([], 0, START + 10 * DAY)
        assert [(int(at), keys.gpus[g]) for at, g in zip(keys.at_ms, keys.gpu, strict=True)] == [
            (e[1], e[0]) for e in expected
        ]
        assert self.store.gpus() == self.model.gpus()
        assert self.store.damaged() == []

    def teardown(self) -> None:
        self.store.close()
        self.folder.cleanup()


TestEmbeddedStore = EmbeddedStore.TestCase
TestEmbeddedStore.settings = settings(max_examples=40, stateful_step_count=25, suppress_health_check=list(HealthCheck))
