"""Groups of GPUs that are brought up to date are those that would be made anew."""

from __future__ import annotations

from unittest import mock

from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.model import view
from tocsin.actions.model.view import GpuGroups, GpuView
from tocsin.domain.reading import Gpu

POOLS, LABEL = ("a",), "tocsin"
NOW, FRESH = 100, 50

_uuids = st.sampled_from([f"G{n}" for n in range(6)])


@st.composite
def gpus(draw: st.DrawFn) -> GpuView:
    uuid = draw(_uuids)
    part = draw(st.integers(0, 9)) == 0
    labels = {LABEL: "true"} if draw(st.booleans()) else {}
    host, pool = draw(st.sampled_from("hij")), draw(st.sampled_from("ab"))
    gpu = Gpu(uuid, host, pool=pool, parent=draw(_uuids) if part else "", labels=labels)
    read_ms = draw(st.none() | st.integers(0, 200))
    healthy, under_action, counted = draw(st.tuples(st.booleans(), st.booleans(), st.booleans()))
    return GpuView(gpu, read_ms, healthy=healthy, under_action=under_action, counted=counted)


fleets = st.lists(gpus(), max_size=8).map(lambda views: {view.gpu.uuid: view for view in views})


def _asked(groups: GpuGroups) -> tuple[object, ...]:
    return (
        dict(groups.gpus),
        dict(groups.physical),
        {host: set(map(_name, members)) for host, members in groups.by_host.items()},
        {host: set(map(_name, members)) for host, members in groups.parts_by_host.items()},
        {pool: set(map(_name, members)) for pool, members in groups.by_pool.items()},
        groups.flagged,
        groups.counted,
        {pool: count for pool, count in groups.counted_in.items() if count},
        groups.managed(POOLS, LABEL),
        groups.managed_and_counted(POOLS, LABEL),
        {pool: (dict(groups.pool(pool).sound), groups.pool(pool).fresh(NOW, FRESH)) for pool in "ab"},
    )


def _name(view: GpuView) -> str:
    return view.gpu.uuid


@given(fleets, st.lists(fleets, max_size=4), st.sampled_from([0, view.MOST_FOLLOWED]))
def test_changed_groups_are_those_made_anew(
    first: dict[str, GpuView], later: list[dict[str, GpuView]], followed: int
) -> None:
    groups, now = GpuGroups(first), dict(first)
    with mock.patch.object(view, "MOST_FOLLOWED", followed):
        for views in later:
            # What was asked for is kept, and has to follow.
            _asked(groups)
            groups, now = groups.changed(views), now | views
            assert _asked(groups) == _asked(GpuGroups(now))


def test_an_instance_is_no_gpu_of_its_own_once_its_gpu_is_known() -> None:
    part, whole = (GpuView(Gpu(uuid, "h", pool="a", parent=parent), 1) for uuid, parent in (("M", "G"), ("G", "")))
    groups = GpuGroups({"M": part}).prepared()
    assert set(groups.physical) == {"M"}
    assert set(groups.changed({"G": whole}).physical) == {"G"}


@given(fleets)
def test_a_pool_counts_as_fresh_what_each_gpu_says_of_itself(fleet: dict[str, GpuView]) -> None:
    groups = GpuGroups(fleet)
    for pool in "ab":
        members = groups.pool(pool)
        assert members.fresh(NOW, FRESH) == sum(one.is_fresh(NOW, FRESH) for one in members.sound.values())
