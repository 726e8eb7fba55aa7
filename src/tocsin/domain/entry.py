"""An entry of the journal and its kinds. The hash of an entry covers its content and the hash of the one before it."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

# What an entry is about.


class EntryKind(StrEnum):
    """Kinds of entries; there is one at every arrow of the loop."""

    SERVICE_STARTED = "service_started"
    SERVICE_STOPPED = "service_stopped"
    FINDING_OPENED = "finding_opened"
    FINDING_CLEARED = "finding_cleared"
    INCIDENT_OPENED = "incident_opened"
    INCIDENT_UPDATED = "incident_updated"
    INCIDENT_CLOSED = "incident_closed"
    PREDICTION = "prediction"
    DECISION = "decision"
    VERDICT = "verdict"
    APPROVAL = "approval"
    REJECTION = "rejection"
    EXECUTION_STARTED = "execution_started"
    EXECUTION_GOES_ON = "execution_goes_on"
    OUTCOME = "outcome"
    VERIFICATION = "verification"
    NOTIFICATION = "notification"
    PAUSE = "pause"
    RESUME = "resume"
    BREAKER_TRIPPED = "breaker_tripped"
    BREAKER_RESET = "breaker_reset"
    HOLD_OFF = "hold_off"
    EFFECT_ENDED = "effect_ended"
    CAUSE_ACKNOWLEDGED = "cause_acknowledged"
    SNOOZED = "snoozed"
    MAINTENANCE_PLANNED = "maintenance_planned"
    SILENCE_ENDED = "silence_ended"
    INJECTION = "injection"
    IMPORT_DONE = "import_done"
    MODEL_IN_SERVICE = "model_in_service"
    FORECAST_MUTED = "forecast_muted"
    FORECAST_HEARD = "forecast_heard"
    MANUAL_ACTION = "manual_action"
    RULE_EARNED_ACT = "rule_earned_act"
    RULE_FELL_BACK = "rule_fell_back"
    VERSIONS_CHANGED = "versions_changed"
    LOGIN = "login"
    LOGOUT = "logout"
    LOGIN_LOCKED = "login_locked"
    READS = "reads"
    CHECKPOINT = "checkpoint"
    ARCHIVED = "archived"


GENESIS = "0" * 64
"""What the first entry names as the hash before it."""


@dataclass(frozen=True, slots=True)
class Entry:
    """One entry.

    `seq` counts from 1 without gaps. `epoch` counts the openings of the journal for writing. `actor` is ``tocsin`` or
    the name of a person. `payload` is JSON. `hash` is SHA-256 in hexadecimal over everything else.
    """

    seq: int
    epoch: int
    at_ms: int
    kind: str
    actor: str
    payload: Mapping[str, object]
    simulated: bool
    hash: str
    previous_hash: str


@dataclass(frozen=True, slots=True)
class Verification:
    """Whether the chain holds; `events` counts the entries up to the end or the first problem.

    Of a slice, which is not `done`, `events` counts the entries up to its end; `hash` is that of its last one, `head`
    the number of the newest.
    """

    ok: bool
    events: int
    problem: str = ""
    done: bool = True
    hash: str = ""
    head: int = 0


def canonical(payload: Mapping[str, object]) -> str:
    """`payload` as JSON text with sorted keys and no spaces: the form that is stored and hashed.

    Raises ValueError for NaN and infinities, which JSON does not have, and TypeError for what is no JSON at all.
    """
    return json.dumps(payload, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def digest(
    previous_hash: str, seq: int, epoch: int, at_ms: int, kind: str, actor: str, simulated: bool, payload: str
) -> str:
    """Hash of an entry; `payload` is its stored text."""
    head = json.dumps([previous_hash, seq, epoch, at_ms, kind, actor, int(simulated)], ensure_ascii=False)
    return hashlib.sha256(f"{head}\n{payload}".encode()).hexdigest()
