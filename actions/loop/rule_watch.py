"""The policy as the records of the rules stand, and who is told when a rule begins to act alone or falls back."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from tocsin.actions.model.decision_json import in_chinese_too
from tocsin.actions.model.decision_log import DecisionLog
from tocsin.actions.model.earning import RecordKey, standing_of
from tocsin.actions.model.policy import Policy
from tocsin.actions.model.rule_record import Acting
from tocsin.actions.model.sentences import joined
from tocsin.actions.model.view import FleetView
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import Clock
from tocsin.domain.decision import Decision, DecisionContext, Mode, NotifyParameters
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.phrase import in_chinese, say


class RuleWatch:
    """Safe to use from several threads. `policy` is what the settings say."""

    def __init__(self, decision_log: DecisionLog, policy: Policy, clock: Clock) -> None:
        self._decision_log = decision_log
        self._policy = policy
        self._clock = clock
        self._version = -1
        self._until_ms: int | None = None

    def policy(self) -> Policy:
        """The policy with the records as they are at this moment; the same object until one changes it."""
        now_ms = self._clock.now_ms()
        with self._decision_log.lock:
            records = self._decision_log.ledger.rules
            over = self._until_ms is not None and now_ms >= self._until_ms
            if self._version != records.version or over:
                found = records.window(now_ms)
                standings = {key: standing_of(cases, self._policy.settings) for key, cases in found.items()}
                self._policy = replace(self._policy, standings=standings)
                self._version, self._until_ms = records.version, records.changes_ms(now_ms)
            return self._policy

    def follow(self) -> None:
        """Put on record which rules have begun to act alone since the last look, and which do not any more."""
        with self._decision_log.lock:
            policy, acting = self.policy(), dict(self._decision_log.ledger.rules.acting)
            for key in sorted({*policy.standings, *acting}):
                rule, simulated = key
                if policy.mode_set(rule) is not Mode.ACT or policy.is_waived(rule):
                    continue
                before = acting.get(key)
                acts = not policy.standing(rule, simulated=simulated).lacking
                if acts != (before is not None and before.acts):
                    self._note(policy, key, acts)

    def _note(self, policy: Policy, key: RecordKey, acts: bool) -> None:
        rule, simulated = key
        now = policy.standing(rule, simulated=simulated)
        counts = {"settled": now.settled, "right": now.right, "measured": now.measured, "reached": now.reached}
        template = (
            "rule {rule} acts alone from now on: "
            "right in {right} of {settled} cases, goal reached in {reached} of {measured}"
        )
        said = say(template, rule=rule, **counts)
        if now.missing is not None:
            said = say("rule {rule} waits for approval from now on: it has {missing}", rule=rule, missing=now.missing)
        told = {"sentence": str(said), **in_chinese_too("sentence", in_chinese(said))}
        kind = EntryKind.RULE_EARNED_ACT if acts else EntryKind.RULE_FELL_BACK
        self._decision_log.note(kind, {"rule": rule, **told, **counts}, simulated=simulated)

    def notices(self, view: FleetView) -> Iterator[Decision]:
        """A warning for each rule that fell back; that one has earned to act is for the record alone."""
        with self._decision_log.lock:
            acting = dict(self._decision_log.ledger.rules.acting)
        for (rule, simulated), said in acting.items():
            if not said.acts:
                yield _fell_back(rule, said, simulated, view)


def _fell_back(rule: str, said: Acting, simulated: bool, view: FleetView) -> Decision:
    world = "|simulated" if simulated else ""
    return Decision(
        rule=rule,
        subject=Subject(SubjectKind.FLEET, "fleet"),
        action=ActionKind.NOTIFY,
        mode=Mode.PROPOSE,
        severity=Severity.WARNING,
        level=AlertLevel.WARNING,
        category=Category.CAPACITY,
        at_ms=view.now_ms,
        expires_ms=view.now_ms + view.policy.time_box_ms,
        key=f"{rule}|fleet:fleet|notify|fell_back|{said.at_ms}{world}",
        sentence=joined(f"{said.sentence[0].upper()}{said.sentence[1:]}"),
        parameters=NotifyParameters(context=DecisionContext(cause_zh=said.sentence_zh)),
        simulated=simulated,
    )
