"""Random storms over many domains and racks: causes are told apart, and simpler ways fail. `make storms` runs 1,000."""

from __future__ import annotations

import pytest

from tocsin.rules.incidents import collapse
from tocsin_testing.storm_run import NULLS
from tocsin_testing.storm_scores import LEAST_RIGHT, Collapse, Score, score
from tocsin_testing.storms import Storm, make_storm

SEEDS = range(900_000, 900_040)


@pytest.fixture(scope="module")
def storms() -> list[Storm]:
    return [make_storm(seed) for seed in SEEDS]


def scored(storms: list[Storm], run: Collapse) -> Score:
    found = Score()
    for storm in storms:
        score(storm, run(storm.findings, storm.events, storm.topology), found)
    return found


def test_no_merge_across_domains_and_members_under_the_right_root(storms: list[Storm]) -> None:
    found = scored(storms, collapse)
    assert found.merges == 0
    assert found.share >= LEAST_RIGHT
    assert found.members == sum(len({finding.id for finding in storm.findings}) for storm in storms)


@pytest.mark.parametrize("name", NULLS)
def test_simpler_ways_fail(storms: list[Storm], name: str) -> None:
    assert not scored(storms, NULLS[name]).passes


def test_the_storms_are_what_they_are_said_to_be(storms: list[Storm]) -> None:
    many = [*storms]
    assert 0.15 < sum(storm.paired for storm in many) / len(many) < 0.45
    assert 0.08 < sum(storm.lossy for storm in many) / len(many) < 0.35
    assert 0.08 < sum(storm.blind for storm in many) / len(many) < 0.35
    for storm in many:
        first, second = storm.causes[0], storm.causes.get(1)
        if storm.paired and second is not None:
            assert first.domains & second.domains
            assert abs(first.at_ms - second.at_ms) <= 60_000


def test_one_seed_is_one_storm() -> None:
    one, other = make_storm(7), make_storm(7)
    assert (one.findings, one.events, one.truth) == (other.findings, other.events, other.truth)
