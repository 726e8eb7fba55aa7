"""State files: read strictly, every mistake named; and states built from what the brain knows."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tocsin.actions.planning import rehearsal
from tocsin.actions.planning.build import Knowledge, WorkloadFacts, fleet_state_from, host_risk, work_id
from tocsin.actions.planning.defragment import defragment
from tocsin.actions.planning.facts import NodeState
from tocsin.actions.planning.layouts import MigLayout
from tocsin.actions.planning.state import Budget, GpuHold, GpuMode, Pool
from tocsin.actions.planning.statefile import parse_state, read_state, state_json
from tocsin.actions.planning.units import PlanLimits
from tocsin.domain.clock import HOUR
from tocsin.domain.errors import InputError
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.pool import PoolState
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.forecaster.live.unforeseen import beside
from tocsin_testing.builders import T0


@pytest.mark.parametrize("made", [rehearsal.fleet, rehearsal.mig])
def test_a_state_comes_back_from_its_file(made: object, tmp_path: Path) -> None:
    assert callable(made)
    state = made(64, 3)
    path = tmp_path / "state.json"
    path.write_text(state_json(state))
    assert read_state(path) == state


def document() -> dict[str, list[dict[str, object]]]:
    return {
        "nodes": [{"host": "n0"}, {"host": "n1"}],
        "gpus": [{"uuid": "a", "host": "n0"}, {"uuid": "b", "host": "n1"}, {"uuid": "m", "host": "n0", "mode": "mig"}],
        "works": [{"id": "w", "gpus": 1, "holds": [{"gpu": "a"}]}],
        "pools": [{"name": "p"}],
        "mix": [{"gpus": 1}],
    }


def test_a_minimal_file() -> None:
    state = parse_state(json.dumps(document()))
    assert state.works["w"].holds == (GpuHold("a"),)
    assert state.gpus["m"].mode is GpuMode.MIG


MISTAKES = [
    ("works", {"id": "w", "gpu": 1}, "works.1.gpu"),
    ("works", {"id": "w"}, "works"),
    ("works", {"id": "x", "gpus": 1.5}, "work x.gpus"),
    ("works", {"id": "x", "holds": [{"gpu": "gone"}]}, "work x.holds"),
    ("works", {"id": "x", "gpus": 2, "holds": [{"gpu": "b"}]}, "work x.holds"),
    ("works", {"id": "x", "gpus": 2, "holds": [{"gpu": "a"}, {"gpu": "b"}]}, "work x.holds"),
    ("works", {"id": "x", "gpus": 0.5, "holds": [{"gpu": "b", "share": 0.5}]}, "work x.holds"),
    ("works", {"id": "x", "holds": [{"gpu": "b"}], "model": "H100"}, "work x.holds"),
    ("works", {"id": "x", "holds": [{"gpu": "a"}]}, "gpu a"),
    ("works", {"id": "x", "lost_s": -1}, "work x.lost_s"),
    ("works", {"id": "x", "profile": "9g", "holds": [{"gpu": "m", "start": 0}]}, "work x.profile"),
    ("works", {"id": "x", "holds": [{"gpu": "b"}], "pool": "q"}, "work x.holds"),
    ("works", {"id": "x", "profile": "3g", "holds": [{"gpu": "m", "start": 1}]}, "gpu m"),
    ("gpus", {"uuid": "c", "host": "n9"}, "gpu c.host"),
    ("gpus", {"uuid": "c", "host": "n0", "template": "nine"}, "gpu c.template"),
    ("gpus", {"uuid": "", "host": "n0"}, "gpus"),
    ("nodes", {"host": "n2", "risk": 2}, "node n2.risk"),
    ("nodes", {"host": "n2", "cpus": -1}, "node n2.cpus"),
    ("pools", {"name": "q", "node_gpus": 0}, "pool q.node_gpus"),
    ("mix", {"gpus": 2.5}, "mix"),
]


@pytest.mark.parametrize(("part", "entry", "field"), MISTAKES)
def test_mistakes_are_named(part: str, entry: dict[str, object], field: str) -> None:
    wrong = document()
    wrong[part].append(entry)
    with pytest.raises(InputError) as caught:
        parse_state(json.dumps(wrong))
    assert caught.value.field == field


@pytest.mark.parametrize(
    "text", ["", "[]", "{}", '{"nodes": [], "gpus": [], "at": "noon"}', '{"nodes": 1}', "{" * 5000]
)
def test_what_is_no_state_is_refused(text: str) -> None:
    with pytest.raises(InputError):
        parse_state(text)


def test_a_file_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read"):
        read_state(tmp_path / "none.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe\x00")
    with pytest.raises(InputError, match="cannot be read"):
        read_state(tmp_path / "bytes")


def reading(uuid: str, host: str, *owners: Owner, values: dict[str, float] | None = None, **more: object) -> Reading:
    return Reading(Gpu(uuid, host, model="H100", pool="p", rack="r", **more), T0, values or {}, owners=owners)  # type: ignore[arg-type]


JOB = Owner(1, slurm_job="7.0")
POD = Owner(2, pod="serve", namespace="web")
POD2 = Owner(3, pod="serve2", namespace="web")
PLAIN = Owner(4, process="python")


def test_jobs_pods_and_processes_become_work() -> None:
    readings = [
        reading("a", "n0", JOB, Owner(9, slurm_job="7.1"), values={"gpu_power_limit_watts": 700.0}),
        reading("b", "n0", JOB),
        reading("c", "n1", JOB),
        reading("d", "n1", POD, POD2),
        reading("e", "n1", PLAIN),
        reading("f", "n2"),
    ]
    facts = {
        "slurm/7": WorkloadFacts(priority=5, lost_s=60.0, budgets=("b",)),
        "pod/web/serve": WorkloadFacts(restart_s=9.0),
    }
    known = Knowledge(
        facts,
        {"n2": NodeState("n2", schedulable=False)},
        {"b": Budget("b", 1)},
        {"p": Pool("p", floor_gpus=2), "q": Pool("q")},
        healthy={"f": False},
    )
    state = fleet_state_from(readings, [PoolState("p", 4.0)], [], T0, known)
    gang = [state.works[name] for name in ("slurm/7@n0", "slurm/7@n1")]
    assert [(work.gpus, work.gang, work.priority) for work in gang] == [(2.0, "slurm/7", 5), (1.0, "slurm/7", 5)]
    assert state.gpus["d"].mode is GpuMode.TIME_SLICE
    assert state.works["pod/web/serve"].holds == (GpuHold("d", 0.5),)
    assert state.works["pod/web/serve"].restart_s == 9.0
    assert state.works["pod/web/serve2"].lost_s is None
    assert not state.works["process/n1/4"].movable
    assert not state.nodes["n2"].schedulable
    assert not state.gpus["f"].healthy
    assert state.gpus["a"].limit_watts == 700.0
    assert state.pools.keys() == {"p"}
    assert state.pools["p"].waiting_gpus == 4.0
    assert state.pools["p"].utilisation == pytest.approx(5 / 6)
    parse_state(state_json(state))
    assert defragment(state, PlanLimits()).kind == "defragment"


def test_a_job_that_shares_some_gpus_is_one_gang() -> None:
    state = fleet_state_from([reading("a", "n0", POD), reading("b", "n0", POD, POD2)], [], [], T0)
    pieces = [work for work in state.works.values() if work.gang == "pod/web/serve"]
    assert sorted((work.id, work.gpus) for work in pieces) == [("pod/web/serve#0", 1.0), ("pod/web/serve#1", 0.5)]


def test_mig_needs_to_know_where_instances_begin() -> None:
    readings = [reading("g", "n0"), reading("MIG-1", "n0", POD, parent="g"), reading("MIG-2", "n0", parent="g")]
    assert fleet_state_from(readings, [], [], T0).gpus == {}
    layouts = {"g": MigLayout({"MIG-1": ("3g", 0), "MIG-2": ("1g", 4)})}
    state = fleet_state_from(readings, [], [], T0, Knowledge(layouts=layouts))
    assert state.gpus["g"].mode is GpuMode.MIG
    assert state.gpus["g"].instances == (("1g", 4), ("3g", 0))
    assert state.layout("g") == (("3g", 0),), "nobody uses the other"
    assert state.works["pod/web/serve"].holds == (GpuHold("g", 1.0, 0),)
    known = Knowledge(layouts=layouts, at_work=frozenset({"g", "MIG-1", "MIG-2"}), pools={"p": Pool("p", node_gpus=1)})
    state = fleet_state_from(readings, [], [], T0, known)
    assert state.layout("g") == (("1g", 4), ("3g", 0))
    assert state.works["unseen/MIG-2"].holds == (GpuHold("g", 1.0, 4),)
    assert state.pools["p"].utilisation == 5 / 8


def risk(kind: SubjectKind, name: str, probability: float | None, **more: object) -> Prediction:
    fields: dict[str, object] = {"probability": probability, "status": PredictionStatus.LIKELY, **more}
    status = fields.pop("status")
    return Prediction(Subject(kind, name), "failure", T0, 48 * HOUR, status, "m", "1", "s", **fields)  # type: ignore[arg-type]


def test_the_risk_of_a_host_is_that_of_any_of_its_parts() -> None:
    hosts = {"a": "n0", "b": "n0", "c": "n1"}
    gpu = SubjectKind.GPU
    found = host_risk(
        [
            risk(gpu, "a", 0.2),
            risk(gpu, "a", 0.1),
            risk(gpu, "b", 0.5, curve=((HOUR, 0.1), (24 * HOUR, 0.25), (48 * HOUR, 0.5))),
            risk(SubjectKind.HOST, "n1", 0.3, status=PredictionStatus.UNLIKELY),
            risk(gpu, "c", None),
            risk(gpu, "c", 0.9, status=PredictionStatus.CROSSING),
            risk(SubjectKind.POOL, "p", 0.9),
        ],
        hosts,
        T0,
        24 * HOUR,
    )
    assert found == {"n0": pytest.approx(1 - 0.8 * 0.75), "n1": pytest.approx(0.3)}
    assert host_risk([risk(gpu, "a", 0.2)], hosts, T0 + 49 * HOUR, HOUR) == {}


def test_what_no_sign_foretells_makes_no_host_worse_than_another() -> None:
    curve = tuple(
        (ahead, beside(0.02 * ahead / (48 * HOUR), 0.1, ahead / (48 * HOUR))) for ahead in (24 * HOUR, 48 * HOUR)
    )
    said = [
        risk(SubjectKind.GPU, "a", beside(0.02, 0.1), raw=0.02, curve=curve),
        risk(SubjectKind.GPU, "b", beside(0.02, 0.1), raw=0.02),
    ]
    found = host_risk(said, {"a": "n0", "b": "n1"}, T0, 24 * HOUR)
    assert found == {"n0": pytest.approx(0.01), "n1": pytest.approx(0.02)}


def test_names_of_work() -> None:
    assert work_id(Owner(1, slurm_job="9.batch")) == "slurm/9"
    assert work_id(Owner(1, pod="x", namespace="n", pod_uid="u")) == "pod/u"
    assert work_id(Owner(1, container="c")) == "container/c"
    assert work_id(Owner(1, process="python")) == ""


def test_made_up_fleets_are_whole() -> None:
    for seed in range(3):
        for state in (rehearsal.with_waiting(rehearsal.fleet(128, seed), seed), rehearsal.mig(64, seed)):
            assert parse_state(state_json(state)) == state
            assert state.simulated
    assert rehearsal.fleet(64, 1) == rehearsal.fleet(64, 1)
    assert rehearsal.fleet(64, 1) != rehearsal.fleet(64, 2)
