"""Hosts by rendezvous hashing: few move, all are somewhere, and no cell has far more than its share."""

from __future__ import annotations

from collections import Counter

from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.rendezvous import owner_of

NAMES = st.sets(st.text(min_size=1, max_size=12), min_size=2, max_size=12)
HOSTS = st.sets(st.text(min_size=1, max_size=20), min_size=1, max_size=60)


@given(NAMES, HOSTS, st.data())
def test_when_one_goes_its_own_move_and_no_others(names: set[str], hosts: set[str], data: st.DataObject) -> None:
    gone = data.draw(st.sampled_from(sorted(names)))
    before = {host: owner_of(host, names) for host in hosts}
    after = {host: owner_of(host, names - {gone}) for host in hosts}
    assert {host for host in hosts if before[host] != after[host]} == {h for h in hosts if before[h] == gone}
    assert gone not in after.values()


@given(NAMES, HOSTS, st.text(min_size=1, max_size=12))
def test_when_one_comes_hosts_move_to_it_alone(names: set[str], hosts: set[str], new: str) -> None:
    moved = {
        host: owner_of(host, names | {new}) for host in hosts if owner_of(host, names) != owner_of(host, names | {new})
    }
    assert set(moved.values()) <= {new}


@given(NAMES, st.text(min_size=1))
def test_the_order_in_which_cells_are_listed_decides_nothing(names: set[str], host: str) -> None:
    assert owner_of(host, sorted(names)) == owner_of(host, sorted(names, reverse=True))
    assert owner_of(host, []) == ""


def test_shares_are_even_and_what_one_had_is_spread_over_all() -> None:
    cells, hosts = [f"cell-{n}" for n in range(10)], [f"gpu-node-{n:05d}" for n in range(12_500)]
    before = {host: owner_of(host, cells) for host in hosts}
    shares = Counter(before.values())
    # Ten cells of 1,250 each by the mean; the deviation of a binomial is 34.
    assert max(abs(count - 1_250) for count in shares.values()) < 5 * 34
    left = Counter(owner_of(host, cells[1:]) for host in hosts if before[host] == cells[0])
    assert len(left) == 9
    assert max(left.values()) < 2 * shares[cells[0]] / 9
