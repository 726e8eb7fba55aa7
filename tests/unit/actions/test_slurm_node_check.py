"""A node's own health check: it drains itself where it may, never many at once, and leaves what others did alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest

from tocsin.actions.slurm.client import CommandResult, Slurm
from tocsin.actions.slurm.node_check import CheckOutcome, NodeCheck, NodeVerdict, reason_of
from tocsin.actions.slurm.nodes import foreign, is_ours
from tocsin.actions.slurm.state import states_of_text
from tocsin.config.slurm import SlurmHealthSettings, SlurmSettings
from tocsin.domain.clock import ManualClock
from tocsin_testing.builders import T0
from tocsin_testing.fake_slurm import FakeSlurm, Node

BAD = NodeVerdict(True, 'critical: GPU 3 "fell" off the bus. [xid_bus]')
REASON = "gpu health: critical: GPU 3 fell off the bus. [xid_bus]"


def check(cluster: FakeSlurm, verdict: NodeVerdict = BAD, *, may_act: bool = True, share: float = 0.1) -> CheckOutcome:
    slurm = Slurm(SlurmSettings(), cluster, ManualClock(T0))
    return NodeCheck(slurm, SlurmHealthSettings(max_share=share), may_act=may_act).run("n0", verdict)


def of(count: int, out: int = 0) -> FakeSlurm:
    nodes = {f"n{number}": Node() for number in range(count)}
    for number in range(count - out, count):
        nodes[f"n{number}"] = Node(flags={"DRAIN"}, reason="fan", by="ann")
    return FakeSlurm(nodes)


def test_a_bad_node_drains_itself_and_its_comment_stays() -> None:
    cluster = of(20)
    cluster.nodes["n0"].comment = "rack 7"
    assert check(cluster) == CheckOutcome("drained", True)
    node = cluster.nodes["n0"]
    assert (node.flags, node.reason, node.comment) == ({"DRAIN"}, REASON, "rack 7")
    again = check(cluster)
    assert again.said == f"out of service already: {REASON} (root)"
    assert len(cluster.log) == 1


def test_no_brain_takes_it_for_its_own_drain() -> None:
    cluster = of(20)
    check(cluster)
    node = Slurm(SlurmSettings(), cluster, ManualClock(T0)).node("n0")
    assert not is_ours(node)
    assert "left as is" in foreign(node)


@pytest.mark.parametrize("verdict", [NodeVerdict(False, "8 GPUs read"), NodeVerdict(True, "hot", simulated=True)])
def test_a_well_or_a_simulated_node_asks_nothing(verdict: NodeVerdict) -> None:
    cluster = of(4)
    assert not check(cluster, verdict).drained
    assert cluster.asked == 0


def test_without_leave_it_says_what_it_would_do() -> None:
    cluster = of(20)
    assert "would be drained with actions.mode" in check(cluster, may_act=False).said
    assert cluster.log == []


def test_the_drain_of_a_person_is_left_alone() -> None:
    cluster = of(20)
    cluster.nodes["n0"] = Node(flags={"DRAIN"}, reason="fan, ask Ann", by="ann")
    assert check(cluster).said == "out of service already: fan, ask Ann (ann)"
    cluster.nodes["n0"] = Node(state="down", reason="Not responding", by="slurm")
    assert not check(cluster).drained
    assert cluster.log == []


@pytest.mark.parametrize(("nodes", "out", "drains"), [(20, 1, True), (20, 2, False), (4, 0, True), (4, 1, False)])
def test_no_more_than_a_share_is_out_of_service(nodes: int, out: int, drains: bool) -> None:
    cluster = of(nodes, out)
    outcome = check(cluster)
    assert outcome.drained is drains
    if not drains:
        assert f"{out + 1} of {nodes} nodes would be out of service, at most" in outcome.said
        assert cluster.log == []


def test_nodes_without_power_count_neither_as_members_nor_as_out() -> None:
    cluster = of(4)
    cluster.nodes |= {f"c{number}": Node("idle", {"CLOUD", "POWERED_DOWN"}) for number in range(100)}
    cluster.nodes["n1"] = Node(flags={"DRAIN"}, reason="fan")
    assert not check(cluster).drained, "one of four is out already"


class Crowd(FakeSlurm):
    """When this node drains, others do so at the same moment."""

    meanwhile: Callable[[], None]

    def run(self, command: Sequence[str], seconds: float) -> CommandResult:
        answer = super().run(command, seconds)
        if "state=drain" in command:
            self.meanwhile()
        return answer


def test_where_too_many_drained_at_once_it_takes_its_own_back() -> None:
    cluster = Crowd(of(20).nodes)

    def crowd() -> None:
        for number in range(1, 10):
            cluster.nodes[f"n{number}"].flags.add("DRAIN")

    cluster.meanwhile = crowd
    outcome = check(cluster)
    assert not outcome.drained
    assert outcome.said.startswith("drained and given back at once: 10 of 20")
    assert cluster.nodes["n0"].flags == set()
    assert "DRAIN" in cluster.nodes["n1"].flags, "the others' are theirs"


def test_it_never_takes_back_what_somebody_has_taken_over() -> None:
    cluster = Crowd(of(20).nodes)

    def crowd() -> None:
        for number in range(10):
            cluster.nodes[f"n{number}"].flags.add("DRAIN")
        cluster.nodes["n0"].reason = "Ann is on it"

    cluster.meanwhile = crowd
    assert check(cluster).drained
    assert cluster.nodes["n0"].reason == "Ann is on it"


def test_a_slurm_that_does_not_answer_or_know_the_node_is_said() -> None:
    cluster = of(4)
    cluster.down = True
    assert "start slurmctld" in check(cluster).said
    assert "n0 not found" in check(FakeSlurm()).said
    cluster = of(20)
    cluster.refuses = "Access/permission denied"
    assert "AdminLevel=Operator" in check(cluster).said


def test_reasons_are_one_plain_line() -> None:
    assert reason_of("a\n'b' $(c)  91 °C") == "gpu health: a b (c) 91 C"
    assert len(reason_of("x" * 1000)) == 200


def test_states_of_sinfos_table() -> None:
    nodes = states_of_text("n1|drained\nn2|mixed\nn2|mixed\nc1|idle~\nn3|down*\nsinfo: warning\n\n")
    assert [(node.name, node.out, node.off) for node in nodes.values()] == [
        ("n1", True, False),
        ("n2", False, False),
        ("c1", False, True),
        ("n3", True, False),
    ]
