"""Buttons of messages in Slack: what each stands for, and how a press shows that the button is Tocsin's own.

Slack signs that somebody pressed a button, not whose button it was: whoever has the webhook's URL can post one with a
harmless label. So the value of each is sealed with the app's signing secret.
"""

from __future__ import annotations

import hashlib
import hmac
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from tocsin.actions.notifications.channel import Message
from tocsin.domain.decision import NotifyParameters

BLOCK = "tocsin"
"""Start of the id of the block of buttons; the language of the message follows."""

_WORDS = {
    "en": {
        "approve": "Approve",
        "decline": "Decline",
        "acknowledge": "Acknowledge",
        "sure": "Approve it?",
        "runs": "It runs once the guards allow it.",
        "no": "Cancel",
    },
    "zh": {
        "approve": "批准",
        "decline": "拒绝",
        "acknowledge": "认领",
        "sure": "确认批准？",
        "runs": "各项防护条件允许后即执行。",
        "no": "取消",
    },
}


class Deed(StrEnum):
    """What a button does."""

    APPROVE = "approve"
    DECLINE = "decline"
    ACKNOWLEDGE = "acknowledge"


@dataclass(frozen=True, slots=True)
class Button:
    """A deed and the id that it is about: of a decision, or of a card."""

    deed: Deed
    target: str

    def value(self, key: str) -> str:
        """What Slack keeps of the button and sends back."""
        return f"{self.deed}:{self.target}:{self._seal(key)}"

    def _seal(self, key: str) -> str:
        said = f"tocsin slack button\n{self.deed}\n{self.target}".encode()
        return hmac.new(key.encode(), said, hashlib.sha256).hexdigest()[:32]

    @classmethod
    def read(cls, value: str, key: str) -> Button | None:
        """The button whose value this is; None where `key` did not seal it."""
        deed, _, rest = value.partition(":")
        target, _, seal = rest.rpartition(":")
        if deed not in set(Deed) or not target:
            return None
        made = cls(Deed(deed), target)
        return made if hmac.compare_digest(made._seal(key).encode(), seal.encode()) else None


def buttons_of(message: Message) -> list[Button]:
    """The buttons that fit `message`: none where it is an end, a test or a summary."""
    if message.resolved or message.test or message.summary:
        return []
    decision = message.first
    parameters = decision.parameters
    proposed = parameters.proposes if isinstance(parameters, NotifyParameters) else ""
    made = [Button(deed, proposed) for deed in (Deed.APPROVE, Deed.DECLINE)] if proposed else []
    return made + ([Button(Deed.ACKNOWLEDGE, decision.incident)] if decision.incident else [])


def block_of(made: list[Button], key: str, language: str) -> dict[str, Any]:
    """The block of the message that shows them: https://docs.slack.dev/reference/block-kit/blocks/actions-block."""
    return {
        "type": "actions",
        "block_id": f"{BLOCK}-{language}",
        "elements": [_element(button, key, language) for button in made],
    }


def _element(button: Button, key: str, language: str) -> dict[str, Any]:
    words = _WORDS[language]
    element = {
        "type": "button",
        "action_id": f"{BLOCK}_{button.deed}",
        "text": _plain(words[button.deed]),
        "value": button.value(key),
    }
    if button.deed is Deed.APPROVE:
        element |= {
            "style": "primary",
            "confirm": {
                "title": _plain(words["sure"]),
                "text": _plain(words["runs"]),
                "confirm": _plain(words["approve"]),
                "deny": _plain(words["no"]),
            },
        }
    return element


def _plain(text: str) -> dict[str, Any]:
    return {"type": "plain_text", "text": text, "emoji": False}
