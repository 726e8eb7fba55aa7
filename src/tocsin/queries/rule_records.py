"""The rules of a running brain: how far each may go now, and what its record lacks."""

from __future__ import annotations

from tocsin.actions.model.earning import proven_share
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.rule_record import Acting
from tocsin.actions.model.sentences import joined
from tocsin.actions.planning.foresight import PLANNED
from tocsin.client.models_rules import RuleRecord
from tocsin.domain.clock import to_iso
from tocsin.domain.finding import ActionKind
from tocsin.queries.live import LiveBrain


def rule_records(brain: LiveBrain) -> list[RuleRecord]:
    """Every rule, by name, for real GPUs and for simulated ones as far as there are such; rules of plans among them.

    A rule that is gone but has cases in the record is listed as well.
    """
    policy, acting = brain.actions.policy, brain.actions.rules_acting()
    worlds = {gpu.simulated for gpu in brain.gpus} or {False}
    names = {*PLANNED, *(rule.name for rule in brain.ruleset)}
    keys = {(name, world) for name in names for world in worlds} | policy.standings.keys()
    return [_record(policy, *key, acting.get(key)) for key in sorted(keys)]


def _record(policy: Policy, rule: str, simulated: bool, said: Acting | None) -> RuleRecord:
    standing, settings = policy.standing(rule, simulated=simulated), policy.settings
    # Of what gives back a record is not asked, so any other action stands for what the rule may do.
    in_force = policy.mode_of(rule, ActionKind.DRAIN, simulated=simulated)
    return RuleRecord(
        rule=rule,
        simulated=simulated,
        mode_set=policy.mode_set(rule),
        mode=in_force,
        waived=policy.is_waived(rule),
        settled=standing.settled,
        right=standing.right,
        measured=standing.measured,
        reached=standing.reached,
        settled_needed=settings.earn_cases,
        right_proven=proven_share(standing.right, standing.settled),
        right_needed=settings.earn_precision,
        reached_proven=proven_share(standing.reached, standing.measured),
        reached_needed=settings.earn_goal_share,
        lacking=joined(f"Rule {rule} has {standing.lacking}") if standing.lacking else "",
        since=None if said is None else to_iso(said.at_ms),
    )
