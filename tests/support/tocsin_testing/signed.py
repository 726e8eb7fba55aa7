"""What a receiver of signed requests checks, and signed requests of others as they come back."""

from __future__ import annotations

import hashlib
import hmac
import json
from typing import Any
from urllib.parse import urlencode

from tocsin.actions.notifications.delivery import SIGNATURE_HEADER, sign
from tocsin.actions.notifications.slack_buttons import Button
from tocsin.domain.clock import MINUTE, SECOND


def is_valid(header: str, secret: str, body: bytes, now_ms: int, tolerance_ms: int = 5 * MINUTE) -> bool:
    """Whether the signature is of this body, and at most `tolerance_ms` old or ahead."""
    parts = dict(part.split("=", 1) for part in header.split(",") if "=" in part)
    if not parts.get("t", "").isdecimal() or not parts["t"].isascii():
        return False
    at_ms = int(parts["t"]) * SECOND
    expected = sign(secret, body, at_ms).partition("v1=")[2]
    return hmac.compare_digest(expected.encode(), parts.get("v1", "").encode()) and abs(now_ms - at_ms) <= tolerance_ms


DESK_KEY, OLD_DESK_KEY = "desk-key-of-thirty-two-characters", "an-old-key-of-thirty-two-characters"
SLACK_KEY = "8f742231b10e8888abcd99yyyzzz85a5"
ANNA, VERA, STRANGER = "U0ANNA00", "U0VERA00", "U0NOBODY"
"""An operator, a viewer and somebody whom the settings do not name."""


def call_headers(body: bytes, now_ms: int, key: str = DESK_KEY) -> dict[str, str]:
    """The headers with which a ticket system sends `body`."""
    return {SIGNATURE_HEADER: sign(key, body, now_ms), "Content-Type": "application/json"}


def press_headers(body: bytes, now_ms: int, key: str = SLACK_KEY) -> dict[str, str]:
    """The headers with which Slack sends `body`."""
    seconds = str(now_ms // SECOND)
    mac = hmac.new(key.encode(), f"v0:{seconds}:".encode() + body, hashlib.sha256).hexdigest()
    return {
        "X-Slack-Request-Timestamp": seconds,
        "X-Slack-Signature": f"v0={mac}",
        "Content-Type": "application/x-www-form-urlencoded",
    }


def press_body(payload: object) -> bytes:
    """`payload` as Slack's form."""
    return urlencode({"payload": json.dumps(payload)}).encode()


def pressed(button: Button, user: str = ANNA, *, key: str = SLACK_KEY, **more: object) -> dict[str, Any]:
    """What Slack says when `user` presses `button`, the one beside another in a message."""
    value = button.value(key)
    action = {"action_id": f"tocsin_{button.deed}", "block_id": "tocsin-en", "value": value, "type": "button"}
    other = {"action_id": "tocsin_acknowledge", "type": "button", "value": "x"}
    return {
        "type": "block_actions",
        "user": {"id": user, "username": "x", "team_id": "T0TEAM"},
        "team": {"id": "T0TEAM", "domain": "example"},
        "message": {
            "ts": "1",
            "blocks": [
                {"type": "header", "text": {"type": "plain_text", "text": "Tocsin PAGE"}},
                {"type": "actions", "block_id": "tocsin-en", "elements": [action, other]},
            ],
        },
        "actions": [action | {"action_ts": "1"}],
        "response_url": "https://hooks.slack.com/actions/T0TEAM/1/secret-part-of-it",
        "trigger_id": "1",
    } | more


def desks_and_slack() -> dict[str, Any]:
    """Settings of section `api` for both ways back."""
    return {
        "desks": [{"name": "ops", "secret": DESK_KEY, "previous_secret": OLD_DESK_KEY}],
        "slack": {
            "signing_secret": SLACK_KEY,
            "people": [
                {"user": ANNA, "name": "anna", "role": "operator"},
                {"user": VERA, "name": "vera", "role": "viewer"},
            ],
        },
    }
