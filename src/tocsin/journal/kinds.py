"""What an entry is about."""

from __future__ import annotations

from enum import StrEnum


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
    INJECTION = "injection"
    IMPORT_DONE = "import_done"
    MODEL_IN_SERVICE = "model_in_service"
    MANUAL_ACTION = "manual_action"
    LOGIN = "login"
    LOGOUT = "logout"
    LOGIN_LOCKED = "login_locked"
