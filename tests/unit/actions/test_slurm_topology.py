"""What ``scontrol show topology`` prints, as places of hosts (man scontrol, man topology.conf)."""

from __future__ import annotations

import pytest

from tocsin.actions.executors.slurm import SlurmExecutor
from tocsin.actions.slurm import topology
from tocsin.actions.slurm.client import CommandResult
from tocsin.actions.slurm.topology import places_of_text
from tocsin.config.slurm import SlurmSettings
from tocsin.domain.clock import ManualClock
from tocsin.domain.place import Place, PlaceKind
from tocsin.topology.claims import Claim, ClaimSource
from tocsin_testing.builders import T0
from tocsin_testing.fake_slurm import FakeSlurm

TREE = """\
SwitchName=s0 Level=0 LinkSpeed=1 Nodes=gpu-[1-2],gpu-07
SwitchName=s1 Level=0 LinkSpeed=1 Nodes=gpu-3
SwitchName=spine Level=1 LinkSpeed=1 Nodes=gpu-[1-3],gpu-07 Switches=s[0-1]
"""
BLOCK = """\
BlockName=b1 BlockIndex=0 Nodes=gpu-[1-2] BlockSize=2
BlockName=b2 BlockIndex=1 Nodes=gpu-3 BlockSize=2
AggregatedBlock=b[1-2] BlockIndex=2 Nodes=gpu-[1-3] BlockSize=4
"""


def test_leaf_switches_hold_nodes_and_switches_above_them_do_not() -> None:
    places = places_of_text(TREE, None)
    assert places == {
        "gpu-1": ((PlaceKind.SWITCH, "s0"),),
        "gpu-2": ((PlaceKind.SWITCH, "s0"),),
        "gpu-07": ((PlaceKind.SWITCH, "s0"),),
        "gpu-3": ((PlaceKind.SWITCH, "s1"),),
    }


def test_blocks_are_what_the_settings_say() -> None:
    assert places_of_text(BLOCK, PlaceKind.NVLINK_DOMAIN)["gpu-2"] == ((PlaceKind.NVLINK_DOMAIN, "b1"),)
    assert places_of_text(BLOCK, PlaceKind.RACK)["gpu-3"] == ((PlaceKind.RACK, "b2"),)
    assert places_of_text(BLOCK, None) == {}


def test_other_text_says_nothing_and_a_broken_list_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert places_of_text("No topology information available\n", PlaceKind.RACK) == {}
    with pytest.raises(ValueError, match="brackets"):
        places_of_text("SwitchName=s0 Level=0 Nodes=gpu-[1", None)
    monkeypatch.setattr(topology, "MOST_CLAIMS", 3)
    with pytest.raises(ValueError, match="more than 3 nodes"):
        places_of_text(TREE, None)


class Tree(FakeSlurm):
    """A cluster that tells its topology; `says` is what it prints."""

    says = "SwitchName=leaf-7 Level=0 LinkSpeed=1 Nodes=node-0\n"
    looks = 0

    def run(self, command: list[str], seconds: float) -> CommandResult:  # type: ignore[override]
        if list(command) == ["scontrol", "show", "topology"]:
            self.looks += 1
            return CommandResult(0, self.says)
        return super().run(command, seconds)


def test_nodes_of_the_executor_carry_their_places() -> None:
    cluster, clock = Tree(), ManualClock(T0)
    executor = SlurmExecutor(SlurmSettings(host_suffix=".x", topology_seconds=60, snapshot_seconds=0), cluster, clock)
    claim = Claim(Place(PlaceKind.HOST, "node-0.x"), Place(PlaceKind.SWITCH, "leaf-7"), ClaimSource.SLURM)
    assert executor.nodes()["node-0.x"].places == (claim,)
    executor.nodes()
    assert cluster.looks == 1, "asked for anew only after a while"
    clock.advance(61_000)
    cluster.says = "SwitchName=leaf-8 Level=0 Nodes=node-[0"
    assert executor.nodes()["node-0.x"].places == (claim,), "what cannot be read changes nothing"
    assert cluster.looks == 2
