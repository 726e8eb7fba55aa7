"""What is remembered of hosts that have settled changes no weight."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.planning.facts import NodeState
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE
from tocsin.domain.reading import Gpu, Reading
from tocsin.runtime.brain.counting import Counting
from tocsin.runtime.brain.ownership import Ownership
from tocsin_testing.builders import T0

NEWCOMER_MS, LABEL = 10 * MINUTE, "managed"
steps = st.tuples(
    st.sampled_from(("come", "move pool", "move rack", "opt in", "leave", "show", "wait", "again", "pass by")),
    st.sampled_from("abc"),
    st.integers(0, 5),
    st.sampled_from((0, MINUTE, 11 * MINUTE)),
)


@settings(max_examples=150)
@given(st.lists(steps, max_size=25))
def test_weights_are_those_of_a_look_at_every_host(found: list[tuple[str, str, int, int]]) -> None:
    owners = Ownership(256, NEWCOMER_MS)
    owners.seed((), T0 - DAY, ())
    remembering, forgetting = (Counting(owners, 4, LABEL, ("a5",)) for _ in range(2))
    gpus, nodes, now_ms = dict[str, Gpu](), dict[str, NodeState](), T0
    for what, host, number, ahead in found:
        now_ms += ahead
        uuid = f"{host}{number}"
        gpu = gpus.get(uuid, Gpu(uuid, host, rack="r"))
        if what == "leave":
            gpus.pop(uuid, None)
        elif what == "show":
            nodes[host] = NodeState(host, True, gpus=number)
        elif what == "pass by":
            # One that is known by its event alone, and has gone before all are looked at.
            remembering.look_at_new([Gpu(f"alone{uuid}", f"alone-{host}", rack="r")], nodes, now_ms)
        elif what != "wait":
            change = {"move pool": {"pool": "other"}, "move rack": {"rack": "s"}, "opt in": {"labels": {LABEL: "true"}}}
            gpus[uuid] = replace(gpu, **change.get(what, {}))  # type: ignore[arg-type]
            owners.refuse(Batch(readings=[Reading(gpus[uuid], now_ms, {})]), now_ms)
        forgetting._looked_at.clear()
        seen = list(gpus.values())
        assert remembering.look(seen, nodes, now_ms) == forgetting.look(seen, nodes, now_ms)
        assert remembering.surplus == forgetting.surplus


@settings(max_examples=100)
@given(st.lists(st.tuples(st.sampled_from("abcd"), st.integers(0, 5)), max_size=12), st.integers(0, 6), st.booleans())
def test_a_look_at_a_new_host_alone_is_that_of_all(found: list[tuple[str, int]], shown: int, managed: bool) -> None:
    owners = Ownership(256, NEWCOMER_MS)
    owners.seed((), T0 - DAY, ())
    old = [Gpu(f"old{n}", "old", rack="r") for n in range(4)]
    new = [Gpu(f"{host}{number}", host, rack="r") for host, number in dict.fromkeys(found)]
    nodes = {"a": NodeState("a", True, gpus=shown)} if managed else {}
    counting = Counting(owners, 6, LABEL, ("b5",))  # as many as any host here comes with
    owners.refuse(Batch(readings=[Reading(gpu, T0, {}) for gpu in old]), T0)
    counting.look(old, nodes, T0)
    owners.refuse(Batch(readings=[Reading(gpu, T0 + MINUTE, {}) for gpu in new]), T0 + MINUTE)
    counting.look_at_new(new, nodes, T0 + MINUTE)
    alone = {gpu.uuid: counting.of(gpu) for gpu in [*old, *new]}
    counting.look([*old, *new], nodes, T0 + MINUTE)
    assert alone == {gpu.uuid: counting.of(gpu) for gpu in [*old, *new]}
