"""What others did to what Tocsin did: a person puts a node back, a node leaves while it is drained."""

from __future__ import annotations

from tocsin.actions.model.catalogue import ACTIONS, Scope
from tocsin.actions.model.scope import base_key, hosts_of
from tocsin.actions.model.view import FleetView

OUTSIDE = "someone at the manager"
"""Actor of what was done at Kubernetes or Slurm and not through Tocsin."""


def overruled(view: FleetView) -> list[str]:
    """Hosts that were seen out of service by Tocsin's doing, and take work again though Tocsin did not put them back.

    An effect that was never seen does not count: a manager that accepts a request and does nothing overrules nobody.
    """
    if view.blind:
        return []
    controls = view.controls
    found: set[str] = set()
    for key, effect in controls.effects.items():
        if key not in controls.confirmed or key in controls.doubtful or ACTIONS[effect.action].scope is not Scope.HOST:
            continue
        nodes = [view.nodes[host] for host in hosts_of(effect.subject, view) if host in view.nodes]
        found.update(node.host for node in nodes if node.schedulable)
    return sorted(found)


def departed(view: FleetView) -> list[str]:
    """Keys of lasting effects on hosts that the manager does not list and that no GPU reports from any more.

    Nothing counts as gone while no manager is seen, or while its list is empty.
    """
    if not view.nodes or view.blind:
        return []
    running = set(view.controls.busy)
    found: list[str] = []
    for key, effect in view.controls.effects.items():
        hosts = hosts_of(effect.subject, view)
        if hosts and base_key(effect.subject) not in running and all(_gone(host, view) for host in hosts):
            found.append(key)
    return sorted(found)


def _gone(host: str, view: FleetView) -> bool:
    members = view.by_host.get(host, ())
    seen = any(member.is_fresh(view.now_ms, view.policy.fresh_ms) for member in members)
    return host not in view.nodes and not seen
