"""Resetting a GPU: what must be so first, then one command; nobody's work is ever under it.

A reset takes the GPU away from whoever has it open. It is refused unless the node is drained, nothing runs on the GPU,
no MIG instance is left, every GPU that has to be reset with it is free as well, and every client has let go.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.actions.node.ports import ResetFacts, ResetPort
from tocsin.domain.errors import TocsinError

DRAINED = "drained"
"""Parameter of an order: ``true`` where the brain saw the whole node out of service."""


@dataclass(frozen=True, slots=True)
class ResetResult:
    """How it went; `done` is False for a dry run, `ok` for what was refused or failed."""

    ok: bool
    done: bool
    detail: str


def objections(facts: Sequence[tuple[str, ResetFacts]], drained: bool) -> list[str]:
    """Why the GPUs, each with what holds it, must not be reset now; empty where they may."""
    found = [] if drained else ["the node is not drained"]
    for gpu, known in facts:
        if known.processes:
            found.append(f"{gpu} is in use: {', '.join(known.processes[:3])}")
        if known.mig_instances:
            found.append(f"{gpu} has {known.mig_instances} MIG instances")
    return found


def run_reset(port: ResetPort, gpu: str, *, drained: bool, allowed: bool) -> ResetResult:
    """Go through the whole procedure for `gpu`; without `allowed` all of it but the command itself."""
    try:
        peers = port.facts(gpu).peers or (gpu,)
        facts = [(peer, port.facts(peer)) for peer in peers]
    except TocsinError as error:
        return ResetResult(False, False, str(error))
    problems = objections(facts, drained)
    if problems:
        return ResetResult(False, False, "not reset: " + "; ".join(problems))
    try:
        return _with_clients_gone(port, peers, allowed)
    except TocsinError as error:
        return ResetResult(False, False, str(error))
    finally:
        port.take_back()


def _with_clients_gone(port: ResetPort, peers: Sequence[str], allowed: bool) -> ResetResult:
    port.ask_clients_to_let_go()
    left = port.holders()
    while left and port.pause():
        left = port.holders()
    if left:
        return ResetResult(False, False, f"not reset: still open by {', '.join(left[:5])}")
    said = port.reset(peers, dry=not allowed)
    return ResetResult(True, allowed, said)
