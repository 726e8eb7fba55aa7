"""The newest readings as every process that has the embedded store open finds them, whoever wrote last."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule, run_state_machine_as_test

from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE
from tocsin.domain.metrics import variant
from tocsin.domain.reading import Reading
from tocsin.store.embedded import chunks as embedded_chunks
from tocsin.store.embedded import store as embedded_store
from tocsin.store.embedded.store import SqliteStore
from tocsin.store.port import Columns, StoreRejected
from tocsin.store.upkeep import Retention
from tocsin_testing.builders import gpu, xid

START = 1_795_000_000_000 // DAY * DAY + 22 * HOUR
PLAIN = ["gpu_power_watts", "gpu_temperature_celsius", "gpu_energy_joules_total"]
OTHER = [variant("gpu_nvlink_crc_flit_errors_total", "link", "3"), "a name that no table has"]
RAW, ROLLED = (Retention(raw, 10**6 * DAY, 10**6 * DAY) for raw in (10**6 * DAY, 0))
GONE = Retention(0, 0, 0)

instants = st.one_of(
    st.sampled_from([START + n * MINUTE for n in (0, 1, 1, 1, 70, 200)]),
    st.integers(0, 4 * HOUR).map(lambda ms: START + ms),
)
readings = st.builds(
    Reading,
    st.integers(0, 4).map(gpu),
    instants,
    st.dictionaries(st.sampled_from(PLAIN + OTHER), st.floats(allow_nan=False, allow_infinity=False), max_size=4),
)
batches = st.lists(readings, min_size=1, max_size=8)


def same(found: Columns, expected: Columns) -> None:
    assert (found.gpus, found.metrics) == (expected.gpus, expected.metrics)
    assert (found.gpu.tolist(), found.at_ms.tolist()) == (expected.gpu.tolist(), expected.at_ms.tolist())
    np.testing.assert_array_equal(found.values, expected.values)


class Newest(RuleBasedStateMachine):
    """Two writers, whose answers must be those of a third store that never writes."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.writers = [SqliteStore(self.path), SqliteStore(self.path)]
        self.reader = SqliteStore(self.path)

    @rule(some=st.lists(batches, min_size=1, max_size=4))
    def write(self, some: list[list[Reading]]) -> None:
        for batch in some:
            self.writers[0].write(Batch(readings=batch))

    @rule(batch=batches)
    def another_writes(self, batch: list[Reading]) -> None:
        self.writers[1].write(Batch(readings=batch))

    @rule(which=st.integers(0, 1), batch=batches)
    def a_write_fails(self, which: int, batch: list[Reading]) -> None:
        with pytest.raises(StoreRejected):
            self.writers[which].write(Batch(readings=batch, events=[xid(2**64)]))

    @rule(which=st.integers(0, 1), before=instants)
    def prune(self, which: int, before: int) -> None:
        self.writers[which].prune(before)

    @rule(which=st.integers(0, 1), hours=st.integers(1, 80), retention=st.sampled_from([RAW, RAW, RAW, ROLLED, GONE]))
    def maintain(self, which: int, hours: int, retention: Retention) -> None:
        self.writers[which].maintain(START + hours * HOUR, retention)

    @rule(which=st.integers(0, 1))
    def reopen(self, which: int) -> None:
        self.writers[which].close()
        self.writers[which] = SqliteStore(self.path)

    @rule(since=instants, metrics=st.lists(st.sampled_from(PLAIN + OTHER), max_size=4))
    def ask(self, since: int, metrics: list[str]) -> None:
        expected = self.reader.latest_columns(metrics, since)
        for writer in self.writers:
            same(writer.latest_columns(metrics, since), expected)

    @invariant()
    def writers_say_what_the_reader_says(self) -> None:
        expected = self.reader.latest_columns(PLAIN, 0)
        readings = list(self.reader.latest(0))
        assert [(r.gpu.uuid, r.at_ms) for r in readings] == list(
            zip(expected.gpus, expected.at_ms.tolist(), strict=True)
        )
        np.testing.assert_array_equal(
            expected.values, np.array([[r.values.get(n, np.nan) for n in PLAIN] for r in readings]).reshape(-1, 3)
        )
        for writer in self.writers:
            same(writer.latest_columns(PLAIN, 0), expected)

    def teardown(self) -> None:
        for store in (*self.writers, self.reader):
            store.close()
        self.folder.cleanup()


@pytest.mark.parametrize(("chunk_rows", "front_ms"), [(512, MINUTE), (2, 1)], ids=["usual", "everything_cut_small"])
def test_a_writer_says_what_the_file_says(monkeypatch: pytest.MonkeyPatch, chunk_rows: int, front_ms: int) -> None:
    monkeypatch.setattr(embedded_chunks, "CHUNK_ROWS", chunk_rows)
    monkeypatch.setattr(embedded_store, "_FRONT_MS", front_ms)
    run_state_machine_as_test(
        Newest,
        settings=settings(
            max_examples=30,
            stateful_step_count=25,
            suppress_health_check=list(HealthCheck),
        ),
    )
