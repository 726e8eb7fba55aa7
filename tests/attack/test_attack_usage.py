"""What an agent says of who uses its GPUs changes no row of the GPUs of another host."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.accounting import table as table_module
from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import GROUPS, UsageTable
from tocsin.config.usage import UsageSettings
from tocsin.domain.clock import DAY, MINUTE, ManualClock
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.runtime.brain.usage_keeper import UsageKeeper, UsageParts
from tocsin.store.memory import MemoryStore
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

START = T0 // DAY * DAY
GPUS = {host: Gpu(f"GPU-{host}", host, pool=host) for host in ("node-a", "node-b")}
Step = tuple[str, Owner]


class Site:
    """Counts one reading a minute; each host is a pool of its own, by which its rows are told."""

    def __init__(self) -> None:
        self.metrics, self.table, self.at_ms = OwnMetrics(), UsageTable(None), START
        known = {one.uuid: one for one in GPUS.values()}
        parts, clock = UsageParts(self.table, PriceList()), ManualClock(START)
        self.keeper = UsageKeeper(MemoryStore(), parts, UsageSettings(), clock, self.metrics, known.get, dict)

    def take(self, steps: Sequence[Step | None]) -> None:
        """A reading of a step's host where there is one; the sums are written after each."""
        for step in steps:
            self.at_ms += MINUTE // 2
            if step is not None:
                gpu = GPUS[step[0]]
                self.keeper.take([Reading(gpu, self.at_ms, {"gpu_utilization_ratio": 0.9}, owners=(step[1],))])
                self.keeper.write()

    def rows(self, host: str) -> dict[tuple[int, tuple[str, ...]], list[float]]:
        """Seconds of the host's GPUs by day and all that sums can be asked by."""
        found = self.table.groups(0, 10**6, GROUPS)
        place = GROUPS.index("pool")
        return {(one.day, one.names): one.row.seconds for one in found if one.names[place] == host}


def owners(prefix: str) -> st.SearchStrategy[Owner]:
    return st.builds(
        Owner,
        pid=st.just(1),
        slurm_job=st.sampled_from(["", f"{prefix}7", f"{prefix}8"]),
        pod_uid=st.sampled_from(["", f"{prefix}u1", f"{prefix}u2"]),
        pod=st.sampled_from(["", f"{prefix}p"]),
        namespace=st.sampled_from(["", "research", "evil"]),
        user=st.sampled_from(["", "bob", "eve"]),
    )


@settings(max_examples=60)
@given(
    st.lists(
        st.tuples(st.just("node-a"), owners("a")) | st.tuples(st.just("node-b"), owners("b")),
        max_size=12,
    )
)
def test_whatever_one_host_says_the_rows_of_another_are_those_without_it(steps: list[Step]) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "MOST_HOLDERS", 3)
        both, alone = Site(), Site()
        both.take(steps)
        alone.take([one if one[0] == "node-b" else None for one in steps])
        assert both.rows("node-b") == alone.rows("node-b")
        both.table.close_days(10**6, 0)
        assert both.rows("node-b") == alone.rows("node-b")


def test_a_host_that_names_many_jobs_takes_no_room_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: after 400 KB of owner lines by node-a a new job of node-b was other work until the end of the day."""
    monkeypatch.setattr(table_module, "MOST_HOLDERS", 5)
    site = Site()
    site.take([("node-a", Owner(1, slurm_job=str(job))) for job in range(20)])
    site.take([("node-b", Owner(1, slurm_job="900", user="bob"))] * 3)
    assert [names[GROUPS.index("job")] for _, names in site.rows("node-b")] == ["Slurm job 900"]
    assert site.metrics.value("tocsin_dropped_total", what="usage", reason="many_holders") == 14
