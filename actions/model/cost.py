"""The cheapest thing to do about a fault that is only expected, in GPU-hours."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from tocsin.actions.model.controls import Tally
from tocsin.actions.model.view import FleetView
from tocsin.config.settings import CostSettings
from tocsin.domain.finding import PREDICTION_EVIDENCE, ActionKind, Category, Finding
from tocsin.domain.phrase import Phrase, say, say_list


@dataclass(frozen=True, slots=True)
class Stake:
    """What is at stake: `gpus` of the job on the subject, 0 while it is idle, with the `probability` of a fault."""

    gpus: int
    probability: float


def stake_of(root: Finding, view: FleetView) -> Stake | None:
    """The stake of a finding that tells of a hardware fault to come; None where it tells of none, or of no chance."""
    if root.category is not Category.HARDWARE:
        return None
    chance = next((item.value for item in root.evidence if item.name.startswith(PREDICTION_EVIDENCE)), None)
    if chance is None:
        return None
    member = view.gpus.get(root.subject.name)
    job = member.job if member is not None else ""
    ranks = sum(other.job == job for other in view.physical.values()) if job else int(bool(root.owners))
    return Stake(ranks, chance)


def prices(
    stake: Stake, cost: CostSettings, experience: Mapping[ActionKind, Tally] | None = None
) -> dict[ActionKind, float]:
    """Expected loss of each choice in GPU-hours; NOTIFY stands for going on as before.

    With G GPUs at stake, chance p, restart time r, checkpoint time c, half the usual span between checkpoints l and d
    GPU-hours that an unforeseen fault costs beyond its job:

    - going on: p (G (l + r) + d)
    - a checkpoint now: G c + p (G r + d)
    - moving now: G (c + r), and the GPU stands idle for the horizon: s
    - placing new work elsewhere, where the GPU is idle: s

    What fails costs the loss of going on beside its own price, as often as `experience` says. The formula is our own;
    its numbers are settings.
    """
    gpus, chance = stake.gpus, stake.probability
    restart, checkpoint = cost.restart_hours, cost.checkpoint_hours
    lost = cost.checkpoint_interval_hours / 2
    going_on = chance * (gpus * (lost + restart) + cost.fault_gpu_hours)
    own = {ActionKind.PLACE_ELSEWHERE: cost.idle_gpu_hours}
    if gpus:
        own = {
            ActionKind.CHECKPOINT: gpus * checkpoint + chance * (gpus * restart + cost.fault_gpu_hours),
            ActionKind.MIGRATE: gpus * (checkpoint + restart) + cost.idle_gpu_hours,
        }
    known = experience or {}
    tried = {action: price + (1 - known.get(action, Tally()).chance) * going_on for action, price in own.items()}
    return {ActionKind.NOTIFY: going_on, **tried}


def cheapest(priced: dict[ActionKind, float], most: ActionKind) -> ActionKind:
    """The choice of least expected loss among those not beyond `most`, the more harmless of two alike."""
    order = list(ActionKind)
    allowed = [action for action in priced if order.index(action) <= order.index(most)]
    return min(allowed, key=lambda action: (priced[action], order.index(action)), default=most)


def in_words(priced: dict[ActionKind, float], chosen: ActionKind) -> Phrase:
    """The comparison as a clause, the chosen first."""
    names = {ActionKind.NOTIFY: "going on"}
    ordered = sorted(priced, key=lambda action: (action is not chosen, priced[action]))
    each = [say("{what} {n}", what=names.get(a, str(a).replace("_", " ")), n=f"{priced[a]:.2g}") for a in ordered]
    return say("expected loss in GPU-hours: {losses}", losses=say_list(each))
