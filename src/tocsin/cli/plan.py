"""`tocsin plan`: what the planners would do, without doing it."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from tocsin.cli.common import CliContext, all_of, connect, json_option, pass_context, show
from tocsin.cli.progress import with_bars
from tocsin.domain.errors import InputError
from tocsin.domain.progress import track

if TYPE_CHECKING:
    from tocsin.actions.planning.compare import ComparisonRow
    from tocsin.actions.planning.drill import DrillResult
    from tocsin.actions.planning.plan import Plan
    from tocsin.actions.planning.scaling import PoolDemand, ScalingPolicy
    from tocsin.actions.planning.state import FleetState
    from tocsin.actions.planning.units import PlanLimits

_SHOWN = 40
"""Steps that a person is shown; --json has them all."""
_REASONS = 10
MINUTE_MS = 60_000
_STATE = "JSON file of the fleet's state; live: that of the running brain."
LIVE = Path("live")
"""In place of a file: the fleet of the brain at ``dashboard.api_url``."""


@click.group()
def plan() -> None:
    """Show a plan without acting: defragmentation, placement, scaling, power limits.

    Plans are made from a state file (docs/planning.md), the fleet of a running brain or a simulated fleet, and are
    tried step by step on a copy of it.
    """


_state_options = all_of(
    click.option("--state", "state_file", type=click.Path(path_type=Path), help=_STATE),
    click.option("--simulated", type=click.IntRange(8, 100_000), help="Plan for a simulated fleet of this many GPUs."),
    click.option("--seed", type=int, default=0, show_default=True, help="Random seed of the simulated fleet."),
)
_move_options = all_of(
    click.option("--moves", type=click.IntRange(0), help="Maximum moves; default: setting planning.max_moves."),
    click.option("--hours", type=float, help="Hours over which gains count; default: setting planning.horizon_hours."),
    click.option("--pack-to", type=float, default=0.0, help="Stop once so few fragmented GPUs are left."),
    click.option("--at-once", is_flag=True, help="Neither request checkpoints nor wait for them."),
)


def _state(
    context: CliContext, state_file: Path | None, simulated: int | None, made: Callable[[int], FleetState]
) -> FleetState:
    from tocsin.actions.planning.statefile import parse_state, read_state

    if (state_file is None) == (simulated is None):
        given = "(unset)" if state_file is None else str(state_file)
        problem = "names no fleet, nor does --simulated" if state_file is None else "goes not with --simulated"
        raise InputError("--state", given, problem, "give one of the two; --state live is that of the running brain")
    if state_file == LIVE:
        with connect(context, None, None) as client:
            return parse_state(json.dumps(client.planning_state()))
    if state_file is not None:
        return read_state(state_file)
    assert simulated is not None
    return made(simulated)


def _limits(
    context: CliContext,
    moves: int | None = None,
    hours: float | None = None,
    pack_to: float = 0.0,
    at_once: bool = False,
) -> PlanLimits:
    from tocsin.actions.planning.units import PlanLimits

    settings = context.settings.planning
    horizon_h = settings.horizon_hours if hours is None else hours
    if not horizon_h > 0 or pack_to < 0:
        raise InputError("--hours", horizon_h, "or --pack-to is not positive", "give a number above 0")
    return PlanLimits(
        settings.max_moves if moves is None else moves,
        horizon_h,
        settings.max_risk,
        settings.patience_seconds,
        settings.effort,
        pack_to=pack_to,
        at_once=at_once,
    )


def _policy(context: CliContext) -> ScalingPolicy:
    from tocsin.actions.planning.scaling import ScalingPolicy

    settings = context.settings.planning
    return ScalingPolicy(
        settings.scale_in_below,
        settings.most_after_scale_in,
        settings.fill_to,
        settings.scale_out_rest_seconds,
        settings.scale_in_rest_seconds,
    )


def _moved(
    context: CliContext,
    planner: Callable[[FleetState, PlanLimits], Plan],
    made: Callable[[int, int], FleetState],
    *,
    state_file: Path | None,
    simulated: int | None,
    seed: int,
    as_json: bool,
    **limits: Any,
) -> None:
    state = _state(context, state_file, simulated, lambda gpus: made(gpus, seed))
    _show([planner(state, _limits(context, **limits))], as_json)


@plan.command("defragment")
@_state_options
@_move_options
@json_option
@pass_context
def plan_defragment(context: CliContext, /, **wanted: Any) -> None:
    """Move workloads between hosts so that free GPUs fit the jobs that are expected."""
    from tocsin.actions.planning.defragment import defragment
    from tocsin.actions.planning.rehearsal import fleet

    _moved(context, defragment, fleet, **wanted)


@plan.command("mig")
@_state_options
@_move_options
@json_option
@pass_context
def plan_mig(context: CliContext, /, **wanted: Any) -> None:
    """Move workloads between MIG instances so that more of the profiles in demand can be created."""
    from tocsin.actions.planning.defragment import repack_mig
    from tocsin.actions.planning.rehearsal import mig

    _moved(context, repack_mig, mig, **wanted)


@plan.command("place")
@_state_options
@json_option
@pass_context
def plan_place(context: CliContext, state_file: Path | None, simulated: int | None, seed: int, as_json: bool) -> None:
    """Find a host for every pending workload."""
    from tocsin.actions.planning.placement import place
    from tocsin.actions.planning.rehearsal import fleet, with_waiting

    state = _state(context, state_file, simulated, lambda gpus: with_waiting(fleet(gpus, seed), seed))
    _show([place(state, _limits(context))], as_json)


@plan.command("scale")
@_state_options
@click.option("--drain", multiple=True, metavar="HOST", help="Replace and drain this node; may be repeated.")
@click.option("--demand", multiple=True, metavar="POOL=GPUS@MIN", help="GPUs that a pool needs in that many minutes.")
@json_option
@pass_context
def plan_scale(
    context: CliContext,
    state_file: Path | None,
    simulated: int | None,
    seed: int,
    drain: tuple[str, ...],
    demand: tuple[str, ...],
    as_json: bool,
) -> None:
    """Add nodes before unhealthy ones are drained, follow demand, and scale in idle pools.

    Without --drain, nodes whose risk is above planning.max_risk are replaced.
    """
    from tocsin.actions.planning.rehearsal import fleet
    from tocsin.actions.planning.scaling import follow_demand, replace_before_drain, scale_in

    state = _state(context, state_file, simulated, lambda gpus: fleet(gpus, seed))
    limits, policy = _limits(context), _policy(context)
    risky = [node for node in state.nodes.values() if node.schedulable and node.risk > limits.most_risk]
    hosts = drain or tuple(node.host for node in sorted(risky, key=lambda node: (-node.risk, node.host)))
    demands = [_demand(text, state) for text in demand]
    plans = [replace_before_drain(state, hosts, limits)] if hosts else []
    plans += [follow_demand(state, demands, policy, limits)] if demands else []
    _show([*plans, *([] if demands else [scale_in(state, policy, limits)])], as_json)


def _demand(text: str, state: FleetState) -> PoolDemand:
    from tocsin.actions.planning.scaling import PoolDemand

    pool, _, rest = text.partition("=")
    gpus, _, minutes = rest.partition("@")
    try:
        at_ms, wanted = state.at_ms + int(float(minutes or "0") * MINUTE_MS), float(gpus)
    except (ValueError, OverflowError):
        raise InputError("--demand", text, "is not understood", "write POOL=GPUS@MINUTES") from None
    return PoolDemand(pool, ((at_ms, wanted, wanted),))


@plan.command("power")
@_state_options
@click.option("--facility", type=float, help="Watts for all GPUs; default: setting planning.facility_watts.")
@click.option("--rack", multiple=True, metavar="RACK=WATTS", help="Watts for a rack's GPUs; may be repeated.")
@json_option
@pass_context
def plan_power(
    context: CliContext,
    state_file: Path | None,
    simulated: int | None,
    seed: int,
    facility: float | None,
    rack: tuple[str, ...],
    as_json: bool,
) -> None:
    """Divide a power budget among the GPUs; all GPUs of a job get the same limit."""
    from tocsin.actions.planning.power import PowerBudget, power_caps
    from tocsin.actions.planning.rehearsal import fleet

    state = _state(context, state_file, simulated, lambda gpus: fleet(gpus, seed))
    settings = context.settings.planning
    racks = {**settings.rack_watts, **dict(_rack(text) for text in rack)}
    whole = settings.facility_watts if facility is None else facility
    _show([power_caps(state, PowerBudget(float("inf") if whole is None else whole, racks))], as_json)


def _rack(text: str) -> tuple[str, float]:
    name, _, watts = text.rpartition("=")
    try:
        found = float(watts)
    except ValueError:
        found = -1.0
    if not name or not found > 0:
        raise InputError("--rack", text, "is not understood", "write RACK=WATTS")
    return name, found


def _show(plans: Sequence[Plan], as_json: bool) -> None:
    lines = [line for one in plans for line in ("", *plan_lines(one))]
    show(as_json, [one.as_json() for one in plans], lines[1:])


def plan_lines(made: Plan) -> list[str]:
    """A plan for people: what it comes to, a line for each step, figures before and after, what was refused."""
    lines = [made.sentence + (" (simulated)" if made.simulated else "")]
    columns = [
        (title, [getattr(step, name) for step in made.steps])
        for title, name in (("gain h", "gain_gpu_hours"), ("cost h", "cost_gpu_hours"))
        if any(getattr(step, name) for step in made.steps)
    ]
    if made.steps:
        lines += ["", "  no" + "".join(f"  {title}" for title, _ in columns) + "  step"]
    for number, step in enumerate(made.steps[:_SHOWN]):
        figures = "".join(f"  {values[number]:6.2f}" for _, values in columns)
        lines.append(f"{number + 1:4d}{figures}  {step.sentence}")
    if len(made.steps) > _SHOWN:
        lines.append(f"      and {len(made.steps) - _SHOWN} more steps (see --json)")
    return lines + _changes(made.before, made.after) + _refusals(made)


def _changes(before: Mapping[str, float], after: Mapping[str, float]) -> list[str]:
    changed = {
        name: (value, after[name]) for name, value in before.items() if abs(after.get(name, value) - value) > 1e-9
    }
    if not changed:
        return []
    width = max(len(name) for name in changed)
    return ["", *(f"  {name:<{width}}  {was:10.2f} -> {now:.2f}" for name, (was, now) in changed.items())]


def _refusals(made: Plan) -> list[str]:
    if not made.refused:
        return []
    reasons = Counter(one.reason for one in made.refused)
    first = {one.reason: one.subject for one in reversed(made.refused)}
    lines = ["", "not changed:"]
    for reason, count in reasons.most_common(_REASONS):
        others = f" and {count - 1} more" if count > 1 else ""
        lines.append(f"  {first[reason]}{others}: {reason}")
    hidden = sum(reasons.values()) - sum(count for _, count in reasons.most_common(_REASONS))
    return [*lines, f"  and {hidden} more (see --json)"] if hidden else lines


@plan.command("compare")
@click.option("--kind", type=click.Choice(["defragment", "mig"]), multiple=True, help="Default: both.")
@click.option("--gpus", default="64,256,1000", show_default=True, help="Simulated fleet sizes, comma-separated.")
@click.option("--seeds", type=click.IntRange(1), default=3, show_default=True, help="Fleets of each size.")
@json_option
@pass_context
@with_bars
def plan_compare(context: CliContext, kind: tuple[str, ...], gpus: str, seeds: int, as_json: bool) -> None:
    """Compare the defragmentation planner with a greedy descent of F on simulated fleets, at equal packing."""
    from dataclasses import asdict

    from tocsin.actions.planning.compare import compare
    from tocsin.domain.clock import SystemClock

    sizes = [int(part) for part in gpus.split(",") if part.strip().isdecimal()]
    if not sizes or min(sizes) < 8:
        raise InputError("--gpus", gpus, "holds no sizes from 8 up", "write for example 64,256")
    kinds = kind or ("defragment", "mig")
    # A table that grows line by line would be torn by a bar: it is printed once it is whole.
    rows = list(compare(kinds, sizes, range(seeds), SystemClock().monotonic, _limits(context)))
    head = [
        "                        fragmented GPUs (F)      GPU-hours lost (moves)                     net GPU-hours",
        "kind        GPUs seed  before greedy planner    greedy         planner  ratio  now least"
        "   greedy planner    s",
    ]
    document = [asdict(row) | {"ratio": row.ratio, "meets": row.meets} for row in rows]
    show(as_json, document, [*head, *map(_row, rows)])


def _row(row: ComparisonRow) -> str:
    at_once = row.at_once / row.greedy_cost if row.greedy_cost > 0 else 0.0
    least = "    -" if row.least is None or row.greedy_cost <= 0 else f"{row.least / row.greedy_cost:5.3f}"
    return (
        f"{row.kind:<10} {row.gpus:5d} {row.seed:4d} {row.before:7.2f} {row.greedy_f:6.2f} {row.planner_f:7.2f}  "
        f"{row.greedy_cost:7.2f} ({row.greedy_moves:3d})  {row.planner_cost:6.2f} ({row.planner_moves:3d})  "
        f"{row.ratio:5.2f} {at_once:4.2f} {least}  {row.greedy_net:7.1f} {row.net:7.1f} {row.seconds:4.1f}"
        f"{'' if row.meets else '  misses'}"
    )


@plan.command("drill")
@click.option("--runs", type=click.IntRange(1), default=100, show_default=True, help="Number of simulated days.")
@click.option("--surprises", type=click.FloatRange(0, 1), default=0.0, help="Share of failures without warning.")
@json_option
@with_bars
def plan_drill(runs: int, surprises: float, as_json: bool) -> None:
    """Simulate node failures in a pool and compare its capacity with scale-out before drain and with drain first."""
    from dataclasses import asdict

    from tocsin.actions.planning.drill import DrillSpec, Way, drill

    spec = DrillSpec(surprises=surprises)
    wanted = [(way, seed) for way in Way for seed in range(runs)]
    found: dict[Way, list[DrillResult]] = {way: [] for way in Way}
    for way, seed in track(wanted, "drill, days"):
        found[way].append(drill(seed, way, spec))
    lines = [
        f"{runs} days of a pool of {spec.nodes} nodes (simulated): {spec.failures} fail, {surprises:.0%} of them "
        f"unforeseen; {spec.false_alarms} false alarm a day",
        "way           runs below floor  minutes below, mean  broken by an action  drained  added  works lost",
        *(_drilled(way.value, results) for way, results in found.items()),
    ]
    show(as_json, {way.value: [asdict(one) for one in results] for way, results in found.items()}, lines)


def _drilled(way: str, results: Sequence[DrillResult]) -> str:
    minutes = sum(one.seconds_below for one in results) / 60 / len(results)
    return (
        f"{way:<12}  {sum(one.least < one.floor for one in results):16d}  {minutes:19.1f}  "
        f"{sum(one.broken_by_action for one in results):19d}  {sum(one.drained for one in results):7d}  "
        f"{sum(one.added for one in results):5d}  {sum(one.lost_works for one in results):10d}"
    )


COMMANDS: list[click.Command] = [plan]
