"""What an agent says of who uses its GPUs changes no row of the GPUs of another host."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.accounting import table as table_module
from tocsin.accounting.meter import Use
from tocsin.accounting.prices import PriceList
from tocsin.accounting.table import GROUPS, UsageTable
from tocsin.actions.planning.facts import WorkloadFacts
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
    """Counts two readings a minute; each host is a pool of its own, by which its rows are told.

    `facts` is what managers tell of work.
    """

    def __init__(self, facts: Mapping[str, WorkloadFacts] = MappingProxyType({})) -> None:
        self.metrics, self.table, self.at_ms = OwnMetrics(), UsageTable(None), START
        known, settings = {one.uuid: one for one in GPUS.values()}, UsageSettings()
        parts, clock = UsageParts(self.table, PriceList()), ManualClock(START)
        self.keeper = UsageKeeper(MemoryStore(), parts, settings, clock, self.metrics, known.get, lambda: facts)

    def take(self, steps: Sequence[Step | None]) -> None:
        """A reading of a step's host where there is one; the sums are written after each second one."""
        for number, step in enumerate(steps):
            self.at_ms += MINUTE // 2
            if step is not None:
                gpu = GPUS[step[0]]
                self.keeper.take([Reading(gpu, self.at_ms, {"gpu_utilization_ratio": 0.9}, owners=(step[1],))])
            if number % 2:
                self.keeper.write()
        self.keeper.write()

    def rows(self, host: str) -> dict[tuple[int, tuple[str, ...]], list[float]]:
        """Seconds of the host's GPUs by day and all that sums can be asked by."""
        found = self.table.groups(0, 10**6, GROUPS)
        place = GROUPS.index("pool")
        return {(one.day, one.names): one.row.seconds for one in found if one.names[place] == host}


owners = st.builds(
    Owner,
    pid=st.just(1),
    slurm_job=st.sampled_from(["", "7", "8"]),
    pod_uid=st.sampled_from(["", "u1"]),
    pod=st.sampled_from(["", "p", "q"]),
    namespace=st.sampled_from(["", "research", "evil"]),
    user=st.sampled_from(["", "bob", "eve"]),
)
facts = st.dictionaries(
    st.sampled_from(["slurm/7", "slurm/8", "pod/u1"]),
    st.builds(
        WorkloadFacts,
        gang=st.sampled_from(["", "research/job/x"]),
        account=st.sampled_from(["", "physics"]),
        user=st.sampled_from(["", "ann"]),
        hosts=st.sampled_from([None, frozenset(), frozenset({"node-a"}), frozenset({"node-b"})]),
    ),
)


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from(["node-a", "node-b"]), owners), max_size=12), facts)
def test_whatever_one_host_says_the_rows_of_another_are_those_without_it(
    steps: list[Step], told: dict[str, WorkloadFacts]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(table_module, "MOST_HOLDERS", 3)
        both, alone = Site(told), Site(told)
        both.take(steps)
        alone.take([one if one[0] == "node-b" else None for one in steps])
        assert both.rows("node-b") == alone.rows("node-b")
        for site in (both, alone):
            site.table.close_days(10**6, 0)
        assert both.rows("node-b") == alone.rows("node-b")


def test_a_host_that_names_many_jobs_takes_no_room_of_another(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: after 400 KB of owner lines by node-a a new job of node-b was other work until the end of the day."""
    monkeypatch.setattr(table_module, "MOST_HOLDERS", 5)
    site = Site()
    site.take([("node-a", Owner(1, slurm_job=str(job))) for job in range(20)])
    site.take([("node-b", Owner(1, slurm_job="900", user="bob"))] * 3)
    assert [names[GROUPS.index("job")] for _, names in site.rows("node-b")] == ["Slurm job 900"]
    assert site.metrics.value("tocsin_dropped_total", what="usage", reason="many_holders") == 14


def test_hosts_that_use_up_the_room_of_the_site_leave_each_other_one_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    """Before: a thousand hosts could have a million holders on file each day."""
    monkeypatch.setattr(table_module, "MOST_OF_SITE", 8)
    site = Site()
    site.take([("node-a", Owner(1, slurm_job=str(job))) for job in range(20)])
    site.take([("node-b", Owner(1, slurm_job=str(job), user="bob")) for job in range(900, 910)])
    jobs = {host: {names[GROUPS.index("job")] for _, names in site.rows(host)} for host in GPUS}
    assert jobs["node-a"] == {*(f"Slurm job {job}" for job in range(8)), "other work"}
    assert jobs["node-b"] == {*(f"Slurm job {job}" for job in range(900, 904)), "other work"}
    assert site.metrics.value("tocsin_dropped_total", what="usage", reason="many_holders_of_site") == 16


def test_a_host_that_names_a_job_first_does_not_name_it_for_another() -> None:
    """Before: the time that job 900 had on node-b was eve's, and tenant evil saw it."""
    site, mine = Site(), Owner(1, slurm_job="900", namespace="evil", user="eve")
    site.take([("node-a", mine), ("node-a", mine)])
    site.take([("node-b", Owner(1, slurm_job="900", user="bob"))] * 3)
    users = {one.names: one.row.seconds[Use.USED] for one in site.table.groups(0, 10**6, ["user"])}
    assert users == {("eve",): 30, ("bob",): 60}
    seen = site.table.groups(0, 10**6, ["pool", "job"], {"evil"})
    assert [one.names for one in seen] == [("node-a", "Slurm job 900")]
    assert {one.holder.user for one in site.table.profiles(0, 10**6)} == {"eve", "bob"}


def test_hosts_that_say_the_same_of_a_job_have_it_together() -> None:
    site, job = Site(), Owner(1, slurm_job="900", user="bob")
    site.take([("node-a", job), ("node-b", job)] * 3)
    assert site.table.words_of("slurm/900") == 1
    (found,) = site.table.profiles(0, 10**6)
    assert found.profile.seconds == 240


def test_what_a_manager_tells_of_a_job_counts_before_what_hosts_say() -> None:
    site = Site({"slurm/900": WorkloadFacts(user="bob", account="physics")})
    # A host that says something else later is told as well.
    for host, user in (("node-b", "1001"), ("node-a", "eve")):
        site.take([(host, Owner(1, slurm_job="900", user=user))] * 3)
    assert {one.names for one in site.table.groups(0, 10**6, ["user", "account"])} == {("bob", "physics")}


PHYSICS = WorkloadFacts(user="bob", account="physics", team="lasers", gang="bob/job/x", hosts=frozenset({"node-b"}))


def test_a_job_that_its_manager_has_elsewhere_lends_a_host_no_account() -> None:
    """Before: node-a named job 901 before Slurm started it on node-b, and its hours were bob's and physics'."""
    told: dict[str, WorkloadFacts] = {}
    site, job = Site(told), Owner(1, slurm_job="901")
    site.take([("node-a", job)] * 4)
    told["slurm/901"] = PHYSICS
    site.take([("node-b", job), ("node-a", job)] * 4)
    by = ["pool", "user", "team", "account", "job"]
    shown = {one.names: one.row.seconds[Use.USED] for one in site.table.groups(0, 10**6, by)}
    assert shown == {
        ("node-a", "", "", "", "Slurm job 901"): 330,
        ("node-b", "bob", "lasers", "physics", "bob/job/x"): 180,
    }
    assert {one.names for one in site.table.groups(0, 10**6, ["pool"], {"physics"})} == {("node-b",)}


def test_a_job_that_goes_on_elsewhere_keeps_what_it_had_and_takes_nobody_along() -> None:
    told = {"slurm/901": PHYSICS}
    site, job = Site(told), Owner(1, slurm_job="901")
    site.take([("node-b", job)] * 4)
    told["slurm/901"] = replace(PHYSICS, hosts=frozenset({"node-a"}))
    site.take([("node-a", job)] * 4)
    del told["slurm/901"]
    site.take([("node-a", job)] * 2)
    rows = {one.names: one.row.seconds[Use.USED] for one in site.table.groups(0, 10**6, ["pool", "account"])}
    assert rows == {("node-a", "physics"): 150, ("node-b", "physics"): 90}
