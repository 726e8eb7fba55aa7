"""The lease of the single active brain against an API server: the double, or a real one by kubeconfig."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tocsin.actions.kubernetes.api import Json
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.domain.clock import HOUR, SECOND, ManualClock
from tocsin.journal.witness import Seen, WitnessAway
from tocsin.runtime.brain.lease import KubernetesLease
from tocsin.runtime.brain.witnesses import LeaseWitness
from tocsin_testing.builders import T0
from tocsin_testing.kube_site import SITES, Site, open_site


@pytest.fixture(params=SITES)
def site(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[Site]:
    with open_site(tmp_path, request.param) as found:
        yield found


def _lease(site: Site, name: str, clock: ManualClock) -> KubernetesLease:
    return KubernetesLease(Cluster(site.door), f"{site.space}/tocsin-brain", name, 15.0, clock)


def _spec(site: Site) -> dict[str, object]:
    path = f"/apis/coordination.k8s.io/v1/namespaces/{site.space}/leases/tocsin-brain"
    found: dict[str, object] = site.get(path)["spec"]
    return found


def test_the_first_gets_it_and_renews_and_the_second_waits(site: Site) -> None:
    clock = ManualClock(T0)
    first, second = _lease(site, "a", clock), _lease(site, "b", clock)
    for _ in range(20):
        first.tick()
        second.tick()
        assert (first.held(), second.held()) == (True, False)
        clock.advance(2 * SECOND)
    assert (first.trouble, second.trouble, second.holder()) == ("", "", "a")
    assert _spec(site)["leaseTransitions"] == 0
    assert str(_spec(site)["renewTime"]).endswith("Z")


def test_a_holder_that_is_gone_is_replaced_after_the_duration_in_a_new_epoch(site: Site) -> None:
    clock = ManualClock(T0)
    first, second = _lease(site, "a", clock), _lease(site, "b", clock)
    first.tick()
    second.tick()
    clock.advance(10 * SECOND)
    assert not first.held(), "it stops by itself before another may begin"
    second.tick()
    clock.advance(4 * SECOND)
    second.tick()
    assert not second.held()
    clock.advance(2 * SECOND)
    second.tick()
    assert (second.held(), second.epoch) == (True, 1)
    first.tick()
    assert (first.held(), first.holder()) == (False, "b")


def test_what_is_released_is_free_at_once(site: Site) -> None:
    clock = ManualClock(T0)
    first, second = _lease(site, "a", clock), _lease(site, "b", clock)
    first.tick()
    second.tick()
    first.release()
    first.release()
    assert not first.held()
    clock.advance(2 * SECOND)
    second.tick()
    assert (second.held(), second.epoch) == (True, 1)


def test_a_restarted_holder_is_another_one(site: Site) -> None:
    clock = ManualClock(T0)
    _lease(site, "a", clock).tick()
    again = _lease(site, "a2", clock)
    for _ in range(7):
        again.tick()
        assert not again.held()
        clock.advance(2 * SECOND)
    clock.advance(2 * SECOND)
    again.tick()
    assert (again.held(), again.epoch) == (True, 1)


def test_accident_a_clock_jump_gives_nobody_the_lease(site: Site) -> None:
    mine, theirs = ManualClock(T0), ManualClock(T0 + 7 * HOUR)
    first, second = _lease(site, "a", mine), _lease(site, "b", theirs)
    for _ in range(10):
        first.tick()
        second.tick()
        assert (first.held(), second.held()) == (True, False)
        theirs.set(theirs.now_ms() + HOUR)
        mine.set(mine.now_ms() - HOUR)
        mine.advance(2 * SECOND)
        theirs.advance(2 * SECOND)


def test_two_that_find_no_lease_do_not_both_get_it(site: Site) -> None:
    clock = ManualClock(T0)
    leases = [_lease(site, name, clock) for name in "abc"]
    for lease in leases:
        lease.tick()
    assert [lease.held() for lease in leases] == [True, False, False]


def test_an_absent_server_is_trouble_and_no_exception(site: Site) -> None:
    if site.double is None:
        pytest.skip("a real server is not switched off")
    clock = ManualClock(T0)
    lease = _lease(site, "a", clock)
    lease.tick()
    from tocsin_testing.kube_recorded import recorded

    site.double.before = lambda _: recorded("list_future_rv_504")
    clock.advance(4 * SECOND)
    lease.tick()
    assert "answered 504" in lease.trouble
    assert lease.held()
    clock.advance(6 * SECOND)
    assert not lease.held()
    lease.release()
    site.double.before = lambda _: None
    lease.tick()
    assert (lease.held(), lease.epoch, lease.trouble) == (True, 0, "")


def test_it_is_a_witness_of_journals_and_renewals_leave_that_alone(site: Site) -> None:
    clock = ManualClock(T0)
    holder = _lease(site, "a", clock)
    witness = LeaseWitness(Cluster(site.door), f"{site.space}/tocsin-brain")
    assert dict(witness.read()) == {}
    with pytest.raises(WitnessAway):
        witness.write("a" * 64, Seen(1, 1, "b" * 64))
    holder.tick()
    witness.write("a" * 64, Seen(1, 5, "b" * 64))
    witness.write("c" * 64, Seen(3, 9, "d" * 64))
    for _ in range(3):
        clock.advance(3 * SECOND)
        holder.tick()
    assert (holder.held(), holder.trouble) == (True, "")
    witness.write("a" * 64, Seen(2, 6, "e" * 64))
    assert dict(witness.read()) == {"a" * 64: Seen(2, 6, "e" * 64), "c" * 64: Seen(3, 9, "d" * 64)}
    assert _spec(site)["holderIdentity"] == "a"


def test_a_renewal_between_its_two_requests_makes_the_witness_try_again(site: Site) -> None:
    clock = ManualClock(T0)
    holder = _lease(site, "a", clock)
    holder.tick()

    class Crossed(Cluster):
        crossings = 1

        def lease(self, namespace: str, name: str) -> Json:
            found = super().lease(namespace, name)
            if self.crossings:
                self.crossings -= 1
                clock.advance(3 * SECOND)
                holder.tick()
            return found

    witness = LeaseWitness(Crossed(site.door), f"{site.space}/tocsin-brain")
    witness.write("a" * 64, Seen(1, 5, "b" * 64))
    assert dict(witness.read()) == {"a" * 64: Seen(1, 5, "b" * 64)}
    assert holder.held()
