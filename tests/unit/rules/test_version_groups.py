"""How the versions of like hosts are judged: drift, roll-out, mixture, and too few to tell."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.reading import Gpu
from tocsin.domain.versions import (
    COMPONENTS,
    LONGEST,
    Standing,
    VersionBefore,
    by_number,
    clean,
    missing_of,
    missing_text,
    versions_of,
)
from tocsin.rules.version_groups import Group, a_day_ago, host_versions, judge, judge_group

H100 = Group("training", "H100", "")


def fleet(**counts: int) -> dict[str, str]:
    """Hosts by version: ``fleet(a=3, b=1)`` has n0 to n2 with a and n3 with b."""
    versions = [version for version, count in counts.items() for _ in range(count)]
    return {f"n{i}": version for i, version in enumerate(versions)}


@pytest.mark.parametrize(
    ("now", "ago", "standing", "odd"),
    [
        (fleet(a=8), fleet(a=8), Standing.SAME, []),
        (fleet(a=3), fleet(a=3), Standing.FEW, []),
        (fleet(a=2, b=1), fleet(a=2, b=1), Standing.FEW, []),
        (fleet(a=3, b=1), fleet(a=3, b=1), Standing.DRIFT, ["b"]),
        (fleet(a=62, b=1, c=1), fleet(a=62, b=1, c=1), Standing.DRIFT, ["b", "c"]),
        (fleet(a=6, b=2), fleet(a=6, b=2), Standing.DRIFT, ["b"]),
        (fleet(a=5, b=3), fleet(a=5, b=3), Standing.MIXED, []),
        (fleet(a=2, b=2), fleet(a=2, b=2), Standing.MIXED, []),
        # The first hosts of a roll-out, the middle of it, and the last that wait for it.
        (fleet(a=7, b=1), fleet(a=8), Standing.ROLLOUT, []),
        (fleet(a=4, b=4), fleet(a=7, b=1), Standing.ROLLOUT, []),
        (fleet(b=7, a=1), fleet(b=4, a=4), Standing.ROLLOUT, []),
        # It has stood still for a day: what is left is drift.
        (fleet(b=7, a=1), fleet(b=7, a=1), Standing.DRIFT, ["a"]),
        # One falls back while another is odd for long: only that one is.
        (fleet(a=10, b=1, c=1), fleet(a=11, c=1), Standing.DRIFT, ["c"]),
    ],
)
def test_standing(now: dict[str, str], ago: dict[str, str], standing: Standing, odd: list[str]) -> None:
    # The hosts of both are the same, whatever they have.
    found = judge("driver", now, dict(zip(now, ago.values(), strict=True)) if len(now) == len(ago) else ago)
    assert (found.standing, [one.version for one in found.odd]) == (standing, odd)


def test_hosts_that_join_with_a_new_version_are_a_roll_out_for_a_day() -> None:
    now = fleet(a=8, b=1)
    joined = VersionBefore("n8", "H100", "driver", "")
    ago = a_day_ago(now, [joined], H100, "driver")
    assert len(ago) == 8
    assert judge("driver", now, ago).standing is Standing.ROLLOUT
    assert judge("driver", now, now).standing is Standing.DRIFT


def test_a_fleet_that_nobody_knew_a_day_ago_rolls_nothing_out() -> None:
    now = fleet(a=8, b=1)
    assert judge("driver", now, {}).standing is Standing.DRIFT


def test_the_past_is_that_of_the_group_alone() -> None:
    now = fleet(a=8)
    before = [
        VersionBefore("n0", "A100", "driver", "x"),
        VersionBefore("n0", "H100", "kernel", "x"),
        VersionBefore("elsewhere", "H100", "driver", "x"),
    ]
    assert a_day_ago(now, before, H100, "driver") == now


def gpu(host: str, number: int = 0, *, pool: str = "training", parent: str = "", **labels: str) -> Gpu:
    return Gpu(f"{host}-{number}", host, number, "H100", pool=pool, parent=parent, labels=labels)


def test_hosts_are_grouped_by_pool_model_and_role() -> None:
    found = host_versions(
        [
            gpu("a", driver_version="1"),
            gpu("a", 1, driver_version="1", vbios_version="96"),
            gpu("a", 2, driver_version="1", vbios_version="97"),
            gpu("a", 3, parent="a-0", driver_version="9"),
            gpu("b", role="decode", driver_version="2"),
            gpu("c", pool="batch"),
        ]
    )
    assert found == {
        H100: {"a": {"driver": "1", "vbios": "96 / 97"}},
        Group("training", "H100", "decode"): {"b": {"driver": "2"}},
        Group("batch", "H100", ""): {"c": {}},
    }
    assert Group("training", "H100", "decode").label == "H100, role decode"


def test_what_the_driver_brings_is_no_drift_of_its_own() -> None:
    old = {"driver": "1", "gsp_firmware": "1", "fabric_manager": "1", "kernel": "6"}
    hosts = {f"n{i}": dict(old) for i in range(8)}
    hosts["n0"] = {"driver": "2", "gsp_firmware": "2", "fabric_manager": "2", "kernel": "5"}
    found = {one.component: one for one in judge_group(H100, hosts, [])}
    assert {key: one.because for key, one in found.items()} == {
        "driver": "",
        "gsp_firmware": "driver",
        "fabric_manager": "driver",
        "kernel": "",
    }
    hosts["n1"]["fabric_manager"] = "2"
    assert {one.component: one.because for one in judge_group(H100, hosts, [])}["fabric_manager"] == ""


VERSIONS = st.sampled_from(["1", "2", "3", "4"])


@given(st.dictionaries(st.text(max_size=3), st.tuples(VERSIONS, VERSIONS | st.none()), max_size=40))
def test_what_holds_of_every_judgement(hosts: dict[str, tuple[str, str | None]]) -> None:
    now = {host: pair[0] for host, pair in hosts.items()}
    ago = {host: pair[1] for host, pair in hosts.items() if pair[1] is not None}
    found = judge("driver", now, ago)
    assert sorted(host for one in found.shares for host in one.hosts) == sorted(now)
    assert sum(one.ago for one in found.shares) <= len(ago)
    assert bool(found.odd) is (found.standing is Standing.DRIFT)
    for one in found.odd:
        assert 4 * len(one.hosts) <= found.total
        assert len(one.hosts) < len(found.shares[0].hosts)
    if len(set(now.values())) == 1 and len(now) >= 4:
        assert found.standing is Standing.SAME
    if now == ago:
        assert found.standing is not Standing.ROLLOUT


# ---------------------------------------------------------------------- versions as labels

TEXTS = st.text(max_size=300)


@given(TEXTS)
def test_a_version_is_short_and_printable(text: str) -> None:
    made = clean(text)
    assert len(made) <= LONGEST
    assert made.isprintable()
    assert made == clean(made) == made.strip()


@given(st.dictionaries(st.sampled_from(["driver_version", "kernel_version", "nonsense_version", "x"]), TEXTS))
def test_only_what_has_a_version_is_read(labels: dict[str, str]) -> None:
    assert versions_of(labels).keys() <= {"driver", "kernel"}
    assert all(versions_of(labels).values())


@given(st.dictionaries(st.sampled_from(list(COMPONENTS)), TEXTS))
def test_reasons_come_back(reasons: dict[str, str]) -> None:
    back = missing_of({"versions_missing": missing_text(reasons)})
    assert back == {key: clean(reason.replace(";", ",")) for key, reason in reasons.items()}


@given(TEXTS)
def test_whatever_the_label_of_reasons_holds_nothing_is_raised(text: str) -> None:
    assert missing_of({"versions_missing": text}).keys() <= COMPONENTS.keys()


@given(TEXTS, TEXTS)
def test_any_two_versions_have_an_order(one: str, other: str) -> None:
    assert sorted([one, other], key=by_number) == sorted([other, one], key=by_number) or by_number(one) == by_number(
        other
    )


def test_versions_stand_as_people_count_them() -> None:
    assert sorted(["9.10", "9.9", "9.9-rc1", "10"], key=by_number) == ["9.9", "9.9-rc1", "9.10", "10"]
