"""Resetting a GPU: what must be so first, then one command; nobody's work is ever under it.

A reset takes the GPU away from whoever has it open. It is refused unless the node is drained, nothing runs on the GPU,
no MIG instance is left, every GPU that has to be reset with it is free as well, and every client has let go. It has
worked only where the driver knows each of the GPUs again afterwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.actions.node.ports import ResetFacts, ResetPort
from tocsin.domain.errors import TocsinError


@dataclass(frozen=True, slots=True)
class ResetResult:
    """How it went: `done` says that the GPU was reset, `ok` that it was and answers, or that all but the last step of a
    dry run went well."""

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
    # GPUs that are reset together are so for their NVLink, whose fabric manager is a client as well.
    fabric = len(peers) > 1
    left = port.holders(fabric=fabric)
    while left and port.pause():
        left = port.holders(fabric=fabric)
    if left:
        return ResetResult(False, False, f"not reset: still open by {', '.join(left[:5])}")
    said = port.reset(peers, dry=not allowed)
    silent = [f"{peer} ({problem})" for peer in peers if allowed and (problem := _silent(port, peer))]
    if silent:
        return ResetResult(False, True, f"reset, no answer since: {'; '.join(silent)}")
    return ResetResult(True, allowed, said)


def _silent(port: ResetPort, gpu: str) -> str:
    """Why the driver does not know `gpu` after its reset; empty where it does."""
    try:
        port.facts(gpu)
    except TocsinError as error:
        return str(error)
    return ""
