"""Limits scale, and never give more away than they say: laws of what may be out of service at once."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.guards.base import evaluate
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.scope import out_of_service, taken_out
from tocsin.actions.model.view import FleetView, GpuView
from tocsin.config.settings import ActionSettings, LimitSettings
from tocsin.domain.decision import Decision, Mode, Ruling
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin_testing.builders import T0

SHIPPED = LimitSettings()
ACTIONS = st.sampled_from([ActionKind.DRAIN, ActionKind.CORDON, ActionKind.RESET_GPU, ActionKind.MIGRATE])
hosts = st.integers(1, 6)


@st.composite
def places(draw: st.DrawFn) -> tuple[Decision, FleetView]:
    """A disruptive decision about a GPU of a fleet of whole hosts, some GPUs of which are out or sick."""
    count, per_host = draw(hosts), draw(st.sampled_from([1, 4, 8]))
    pools = draw(st.lists(st.sampled_from(["a", "b"]), min_size=count, max_size=count))
    gpus = [Gpu(f"GPU-{h}-{i}", f"node-{h}", index=i, pool=pools[h]) for h in range(count) for i in range(per_host)]
    drained = draw(st.sets(st.integers(0, count - 1), max_size=1))
    sick = draw(st.sets(st.integers(0, len(gpus) - 1), max_size=2))
    views = {
        gpu.uuid: GpuView(gpu, T0, number not in sick, int(gpu.host.removeprefix("node-")) in drained)
        for number, gpu in enumerate(gpus)
    }
    chosen = draw(st.sampled_from(gpus))
    policy = Policy(ActionSettings(mode=Mode.ACT, earn_waived=["*"], managed_pools=["a", "b"], limits=SHIPPED))
    subject = Subject(SubjectKind.GPU, chosen.uuid, chosen.host, chosen.pool)
    action = draw(ACTIONS)
    decision = Decision(
        "r", subject, action, Mode.ACT, Severity.CRITICAL, Category.HARDWARE, T0, T0 + 1000, f"k|{action}", "s."
    )
    return decision, FleetView(T0, T0, views, policy=policy)


def held(decision: Decision, view: FleetView) -> set[str]:
    return {v.guard for v in evaluate(decision, view, T0) if v.ruling is not Ruling.ALLOW}


LIMITS = {"max_share", "capacity"}


@settings(max_examples=300)
@given(places())
def test_what_is_allowed_keeps_to_the_share_or_to_one_host(made: tuple[Decision, FleetView]) -> None:
    decision, view = made
    if held(decision, view) & LIMITS:
        return
    taken, before = taken_out(decision, view), out_of_service(view)
    out = before | taken
    within = len(out) <= int(SHIPPED.max_concurrent_ratio * len(view.physical) + 1e-9)
    assert taken <= before or within or len({view.gpus[uuid].gpu.host for uuid in out}) == 1


@settings(max_examples=300)
@given(places())
def test_nobody_empties_a_fleet_or_a_pool_without_a_person(made: tuple[Decision, FleetView]) -> None:
    decision, view = made
    usable = {uuid for uuid, one in view.physical.items() if one.healthy and not one.under_action}
    left = usable - taken_out(decision, view)
    pool = decision.subject.pool
    emptied = any(view.gpus[u].gpu.pool == pool for u in usable) and not any(
        view.gpus[u].gpu.pool == pool for u in left
    )
    if emptied:
        assert held(decision, view) & {"approval", *LIMITS}


@settings(max_examples=200)
@given(places())
def test_a_whole_fleet_lets_any_one_host_of_several_go(made: tuple[Decision, FleetView]) -> None:
    decision, view = made
    whole = {uuid: GpuView(one.gpu, T0) for uuid, one in view.gpus.items()}
    sound = FleetView(T0, T0, whole, policy=view.policy)
    assert not held(decision, sound) & LIMITS
    mates = {one.gpu.host for one in whole.values() if one.gpu.pool == decision.subject.pool}
    if len(mates) > 1:
        assert "approval" not in held(decision, sound), "others of the pool remain"
