"""Slurm's topology as claims about hosts: ``scontrol show topology`` prints one switch or block a line.

``topology/tree``: ``SwitchName=s0 Level=0 LinkSpeed=1 Nodes=gpu-[1-4]``; of a switch above others the level is higher.
``topology/block``: ``BlockName=b1 BlockIndex=0 Nodes=gpu-[1-18] BlockSize=18`` (man scontrol, man topology.conf).
"""

from __future__ import annotations

from collections.abc import Mapping

from tocsin.actions.slurm.state import expand
from tocsin.domain.place import PlaceKind
from tocsin.topology.labels import usable

MOST_LINES = 50_000
"""Lines that are read, more than any cluster has switches."""
MOST_CLAIMS = 200_000

Places = Mapping[str, tuple[tuple[PlaceKind, str], ...]]


def places_of_text(text: str, blocks: PlaceKind | None) -> Places:
    """The places of each node by Slurm's name: its leaf switch, and its block as `blocks`, None to leave that out.

    Lines about anything else say nothing. Raises ValueError for a list of nodes that is none.
    """
    found: dict[str, list[tuple[PlaceKind, str]]] = {}
    claims = 0
    for line in text.splitlines()[:MOST_LINES]:
        words = dict(word.partition("=")[::2] for word in line.split() if "=" in word)
        kind, name = _place(words, blocks)
        if kind is None or not usable(name):
            continue
        for node in expand(words.get("Nodes", "")):
            claims += 1
            if claims > MOST_CLAIMS:
                raise ValueError(f"more than {MOST_CLAIMS} nodes in switches and blocks")
            found.setdefault(node, []).append((kind, name))
    return {node: tuple(places) for node, places in found.items()}


def _place(words: Mapping[str, str], blocks: PlaceKind | None) -> tuple[PlaceKind | None, str]:
    if "SwitchName" in words and words.get("Level") == "0":
        return PlaceKind.SWITCH, words["SwitchName"]
    return (blocks, words["BlockName"]) if "BlockName" in words else (None, "")
