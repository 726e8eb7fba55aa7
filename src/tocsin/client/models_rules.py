"""Wire models of rules: how far each may go, and the record by which it earns to act alone."""

from __future__ import annotations

from tocsin.client.wire import Count, Instant, Ratio, Wire
from tocsin.domain.decision import Mode


class RuleRecord(Wire):
    """One rule in one world, real or simulated GPUs: its mode, and its settled cases that count now."""

    rule: str
    simulated: bool
    """Whether the record is of simulated GPUs; those of real ones are another."""
    mode_set: Mode
    """How far the settings let it go: the more cautious of rule and service."""
    mode: Mode
    """The mode in force: `propose` where it is set to act and its record does not allow that."""
    waived: bool
    """Whether `actions.earn_waived` lets it act without a record."""
    settled: Count
    """Cases whose statement was right or wrong."""
    right: Count
    """Of these, what a person approved and ran without failing, or did by hand, and what was seen to work."""
    measured: Count
    """Cases whose goal was reached or missed."""
    reached: Count
    settled_needed: Count
    right_proven: Ratio
    """Share of right statements that the settled cases prove."""
    right_needed: Ratio
    reached_proven: Ratio
    """Share of reached goals that the measured cases prove."""
    reached_needed: Ratio
    lacking: str
    """What the record lacks before the rule may act alone, in one sentence; empty where it lacks nothing."""
    since: Instant | None = None
    """When it last began to act alone or fell back; null where it never acted by its record."""
