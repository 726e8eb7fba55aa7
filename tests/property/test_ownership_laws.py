"""Whatever a node with its own token sends, what another node reports stays as it was."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.api.principal import simple
from tocsin.api.write_access import WriteAccess
from tocsin.config.access import Role
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.brain.brain import FleetMemory
from tocsin.runtime.brain.ownership import DUPLICATE, TOO_MANY, Ownership
from tocsin.store.line_protocol.decode import decode
from tocsin_testing.builders import T0

MOST, NEWCOMER_MS = 16, 10 * MINUTE
THEIRS = Gpu("GPU-b", "node-b", index=0, model="H200")
CHILD = Gpu("MIG-b", "node-b", parent="GPU-b")
UUIDS = ("GPU-a", "GPU-b", "MIG-a", "MIG-b", "GPU-x")
HOSTS = ("node-a", "node-b", "NODE-A", "", "node-c")


class Site:
    """The way of a line into the memory of the brain."""

    def __init__(self) -> None:
        self.owners = Ownership(MOST, NEWCOMER_MS)
        self.memory = FleetMemory()
        self.owners.seed((), T0 - DAY, ())
        self.take(Batch(readings=[Reading(one, T0, {"gpu_power_watts": 100.0}) for one in (THEIRS, CHILD)]))

    def take(self, batch: Batch, now_ms: int = T0) -> None:
        refused = self.owners.refuse(batch, now_ms)
        readings = [one for place, one in enumerate(batch.readings) if place not in refused.readings]
        events = [one for place, one in enumerate(batch.events) if place not in refused.events]
        self.memory.put(Batch(readings=readings, events=[*events, *refused.told]))

    def push(self, text: str, host: str, now_ms: int = T0) -> None:
        def against(gpu: str, claimant: str) -> str:
            return self.owners.against(gpu, claimant, now_ms)[0]

        access = WriteAccess(simple(host, Role.AGENT, host=host), against)
        self.take(decode(text, now_ms=now_ms, admit=access).batch, now_ms)


def tag(name: str, value: str) -> str:
    return f",{name}={value}" if value else ""


lines = st.builds(
    lambda measurement, uuid, mig, host, field, ahead: (
        f"{measurement}{tag('gpu_uuid', uuid)}{tag('mig_uuid', mig)}{tag('host', host)} {field} {T0 + ahead}"
    ),
    st.sampled_from(("gpu", "gpu_missing", "gpu_info", "gpu_event,kind=xid,code=79", "gpu_owner,pid=1")),
    st.sampled_from(UUIDS),
    st.sampled_from(("", *UUIDS)),
    st.sampled_from(HOSTS),
    st.sampled_from(("power_watts=1", 'model="T4"', 'message="x"', "power_watts=2i", 'process="p"')),
    st.integers(-DAY, MINUTE),
)


@settings(max_examples=300)
@given(sent=st.lists(st.lists(lines, max_size=20), max_size=5))
def test_a_node_with_its_token_changes_nothing_of_another(sent: list[list[str]]) -> None:
    site = Site()
    before = {uuid: site.memory.reading(uuid) for uuid in ("GPU-b", "MIG-b")}
    for body in sent:
        site.push("\n".join(body), "node-a")
    assert {uuid: site.memory.reading(uuid) for uuid in before} == before
    assert {reading.gpu.host for reading in site.memory.latest()} <= {"node-a", "NODE-A", "node-b"}
    assert len({reading.gpu.host for reading in site.memory.latest()}) <= 2
    assert not [event for event in site.memory.events_since(0) if event.gpu in before]


@given(uuid=st.sampled_from(("GPU-b", "MIG-b")), parent=st.sampled_from(("", "GPU-b")), ahead=st.integers(0, MINUTE))
def test_a_shared_token_cannot_take_a_gpu_over_either(uuid: str, parent: str, ahead: int) -> None:
    site = Site()
    claim = Reading(Gpu(uuid if not parent else "MIG-new", "node-a", parent=parent), T0 + ahead, {"gpu_power_watts": 1})
    refused = site.owners.refuse(Batch(readings=[claim]), T0)
    assert (refused.readings, refused.reasons) == ({0}, {("reading", DUPLICATE): 1})
    (event,) = refused.told
    assert (event.kind, event.host, event.gpu) == (EventKind.DUPLICATE_IDENTITY, "node-a", "")
    assert site.owners.refuse(Batch(readings=[claim]), T0 + 1).told == []


def test_an_agent_cannot_say_that_identities_are_duplicate() -> None:
    site = Site()
    forged = Event(EventKind.DUPLICATE_IDENTITY, "", "node-a", T0)
    assert site.owners.refuse(Batch(events=[forged]), T0).events == {0}


def test_a_gpu_that_was_forgotten_or_released_may_have_moved() -> None:
    site = Site()
    site.owners.forget([THEIRS, CHILD])
    moved = Gpu("GPU-b", "node-a")
    site.take(Batch(readings=[Reading(moved, T0 + 1, {"gpu_power_watts": 7.0})]))
    assert site.owners.host_of("GPU-b") == "node-a"
    found = site.memory.reading("GPU-b")
    assert found is not None
    assert found.gpu.host == "node-a", "a bare reading of the new host has its host"
    site.take(Batch(readings=[Reading(Gpu("GPU-c", "NODE-B"), T0, {"gpu_power_watts": 7.0})]))
    assert site.owners.host_of("GPU-c") == "NODE-B", "no spelling outlives the last GPU that had it"


def test_parents_of_parts_are_bounded_and_forgotten_too() -> None:
    owners = Ownership(MOST, NEWCOMER_MS)
    parts = [Gpu("MIG-one", "node-a", parent=f"GPU-made-up-{n}") for n in range(1_000)]
    refused = owners.refuse(Batch(readings=[Reading(part, T0, {}) for part in parts]), T0)
    assert len(refused.readings) == 1_000 - (MOST - 1)


def test_of_two_spellings_in_the_store_the_newest_counts() -> None:
    owners = Ownership(MOST, NEWCOMER_MS)
    old, new = Gpu("GPU-1", "Node-A"), Gpu("GPU-2", "node-a")
    owners.seed([Reading(old, T0 - DAY, {}), Reading(new, T0, {})], T0 - DAY, ())
    assert not owners.refuse(Batch(readings=[Reading(new, T0, {})]), T0).reasons
    owners.forget([old, new])
    assert owners.host_of("GPU-1") == ""


def test_a_gpu_in_parts_is_forgotten_with_the_last_of_them() -> None:
    owners = Ownership(MOST, NEWCOMER_MS)
    parts = [Gpu(f"MIG-{n}", "node-b", parent="GPU-whole") for n in range(2)]
    owners.refuse(Batch(readings=[Reading(part, T0, {}) for part in parts]), T0)
    owners.forget(parts[:1])
    assert owners.host_of("GPU-whole") == "node-b"
    owners.forget(parts[1:])
    assert owners.host_of("GPU-whole") == ""


def test_a_host_has_so_many_gpus_and_no_more() -> None:
    site = Site()
    fakes = [Reading(Gpu(f"GPU-fake-{n}", "node-a"), T0, {"gpu_power_watts": 1.0}) for n in range(1_000)]
    refused = site.owners.refuse(Batch(readings=fakes), T0)
    assert (len(refused.readings), refused.reasons) == (1_000 - MOST, {("reading", TOO_MANY): 1_000 - MOST})


def test_a_newcomer_counts_after_a_while_and_those_of_a_new_site_at_once() -> None:
    owners = Ownership(MOST, NEWCOMER_MS)
    owners.seed((), T0, ())
    new = Gpu("GPU-new", "node-n")
    owners.refuse(Batch(readings=[Reading(new, T0, {})]), T0)
    assert owners.counts("GPU-new", T0)
    owners.seed((), T0 - DAY, ())
    assert not owners.counts("GPU-new", T0 + NEWCOMER_MS - 1)
    assert owners.counts("GPU-new", T0 + NEWCOMER_MS)
    assert not owners.counts("GPU-unknown", T0 + DAY)


def test_what_the_store_has_known_for_long_counts_after_a_start() -> None:
    owners = Ownership(MOST, NEWCOMER_MS)
    owners.seed([Reading(Gpu(uuid, "h"), T0, {}) for uuid in ("GPU-old", "GPU-young")], T0 - DAY, {"GPU-old"})
    assert owners.counts("GPU-old", T0)
    assert not owners.counts("GPU-young", T0)


OTHER = Gpu("GPU-b2", "node-b", index=1, model="H200")
HERE = Gpu("GPU-b", "node-a", index=0, model="H200")


def reported(site: Site, gpu: Gpu, at_ms: int, *, by_token: bool) -> bool:
    """`gpu` is reported at that time, with a token of its host or a shared one; whether that host has it then."""
    if by_token:
        site.push(f"gpu,gpu_uuid={gpu.uuid},host={gpu.host} power_watts=1 {at_ms}", gpu.host, at_ms)
    else:
        site.take(Batch(readings=[Reading(gpu, at_ms, {"gpu_power_watts": 1.0})]), at_ms)
    return site.owners.host_of(gpu.uuid) == gpu.host


def told(site: Site) -> list[str]:
    return [one.message for one in site.memory.events_since(0) if one.kind is EventKind.DUPLICATE_IDENTITY]


@given(by_token=st.booleans(), minutes=st.lists(st.integers(0, 60), max_size=8), at=st.integers(0, 60))
def test_a_gpu_passes_on_only_where_its_host_reports_others_and_not_it(
    by_token: bool, minutes: list[int], at: int
) -> None:
    site = Site()
    spoke = [minute for minute in sorted(minutes) if minute <= at]
    for minute in spoke:
        reported(site, OTHER, T0 + minute * MINUTE, by_token=by_token)
    passed = reported(site, HERE, T0 + at * MINUTE, by_token=by_token)
    assert passed == (bool(spoke) and spoke[-1] * MINUTE >= NEWCOMER_MS)
    if passed:
        assert told(site) == ["node-a reports GPU-b, which node-b reported before: taken over"]
        assert not site.owners.counts("GPU-b", T0 + at * MINUTE), "it settles before it widens a limit"


@given(by_token=st.booleans(), back=st.integers(1, 2 * 24 * 60))
def test_the_host_before_has_its_gpu_back_at_once_within_a_day(by_token: bool, back: int) -> None:
    site = Site()
    reported(site, OTHER, T0 + NEWCOMER_MS, by_token=by_token)
    assert reported(site, HERE, T0 + NEWCOMER_MS, by_token=by_token)
    later = T0 + NEWCOMER_MS + back * MINUTE
    assert reported(site, replace(THEIRS, index=None, model=""), later, by_token=by_token) == (back < 24 * 60)
    if back < 24 * 60:
        assert not reported(site, HERE, later + 1, by_token=by_token), "two that both report it: the first has it"


def test_a_host_of_another_name_takes_over_where_the_manager_has_it_alone() -> None:
    managed = {"node-a"}
    owners = Ownership(MOST, NEWCOMER_MS, lambda old, new: new in managed and old not in managed)
    first = Batch(readings=[Reading(THEIRS, T0, {})])
    assert not owners.refuse(first, T0).reasons
    claim = Batch(readings=[Reading(HERE, T0 + NEWCOMER_MS, {})])
    assert owners.refuse(claim, T0 + NEWCOMER_MS - 1).reasons
    managed.add("node-b")
    assert owners.refuse(claim, T0 + NEWCOMER_MS).reasons
    managed.discard("node-b")
    assert not owners.refuse(claim, T0 + NEWCOMER_MS).reasons


def test_a_token_that_claims_anothers_gpu_is_told_too() -> None:
    site = Site()
    assert not reported(site, HERE, T0, by_token=False)
    (message,) = told(site)
    assert "refused; if it has moved, run tocsin release gpu GPU-b once node-b is silent about it" in message
    owner, events = Site().owners.against("GPU-b", "node-a", T0)
    assert (owner, [one.host for one in events]) == ("node-b", ["node-a"])
