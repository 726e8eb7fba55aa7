"""The work on GPUs, and its mix, that is kept from one look to the next is that which would be worked out anew."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.fleet_state import KnownWork, RunningMix, running_mix, workloads_of

OWNERS: list[tuple[Owner, ...]] = [
    (),
    (Owner(1, slurm_job="7.0"),),
    (Owner(2, slurm_job="7.1"), Owner(3, slurm_job="7.2")),
    (Owner(4, pod_uid="p"),),
    (Owner(5, pod_uid="q"),),
    (Owner(6, container="c"),),
    (Owner(7), Owner(8)),
]
NODES = [
    None,
    NodeState("h", schedulable=True),
    NodeState("h", schedulable=True, jobs={"p": "job", "q": ""}, work=("7",)),
    NodeState("h", schedulable=True, jobs={"p": "other"}, held_by=frozenset({"slurm 7"})),
]
_uuids, _hosts = st.sampled_from(["G1", "G2", "G3"]), st.sampled_from("ij")
_changes = st.one_of(
    st.tuples(st.just("owners"), _uuids, st.integers(0, len(OWNERS) - 1)),
    st.tuples(st.just("host"), _uuids, _hosts),
    st.tuples(st.just("gone"), _uuids, st.none()),
    st.tuples(st.just("node"), _hosts, st.sampled_from(NODES)),
    st.tuples(st.just("blind"), st.just(""), st.booleans()),
)


@given(st.lists(_changes, min_size=1, max_size=20), st.booleans())
def test_work_that_is_kept_is_what_would_be_worked_out_anew(
    changes: list[tuple[str, str, Any]], simulated: bool
) -> None:
    known: dict[str, KnownWork] = {}
    owners, hosts = {"G1": OWNERS[3], "G2": OWNERS[5]}, {"G1": "i", "G2": "i"}
    nodes, blind = dict[str, NodeState](), False
    for at_ms, (what, name, value) in enumerate(changes):
        if what == "owners":
            # A decoder makes the same object for the same text for as long as it remembers that, and another then.
            owners[name], hosts[name] = (*OWNERS[value],), hosts.get(name, "i")
        elif what == "host" and name in hosts:
            hosts[name] = value
        elif what == "gone":
            owners.pop(name, None), hosts.pop(name, None)
        elif what == "node":
            nodes = {host: node for host, node in {**nodes, name: value}.items() if node is not None}
        elif what == "blind":
            blind = value
        gpus = {uuid: Gpu(uuid, hosts[uuid], simulated=simulated) for uuid in sorted(hosts)}
        readings = [Reading(gpu, at_ms, {}, {}, owners[uuid]) for uuid, gpu in gpus.items()]
        found = workloads_of(readings, nodes, blind=blind, known=known)
        assert list(found.items()) == list(workloads_of(readings, nodes, blind=blind).items())
        assert known.keys() == hosts.keys(), "a GPU that leaves is forgotten"


_told = st.tuples(_uuids, _hosts, st.integers(0, len(OWNERS) - 1), st.sampled_from(["", "whole"]), st.booleans())


@given(st.lists(st.lists(_told | _uuids, max_size=3), min_size=1, max_size=12))
def test_the_mix_that_is_kept_is_that_of_all_readings(looks: list[list[tuple[str, str, int, str, bool] | str]]) -> None:
    mix, readings = RunningMix(), dict[str, Reading]()
    for look in looks:
        for told in look:
            if isinstance(told, str):
                readings.pop(told, None)
                continue
            uuid, host, who, parent, divided = told
            values = {"gpu_mig_mode": 1.0} if divided else {}
            readings[uuid] = Reading(Gpu(uuid, host, parent=parent), 0, values, {}, OWNERS[who])
        newest = tuple(readings[uuid] for uuid in sorted(readings))
        assert mix.now(newest) == running_mix(newest)
        assert mix._jobs.keys() == readings.keys(), "a GPU that leaves is forgotten"
