"""Decisions, verdicts and outcomes as JSON objects of the journal, and back."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import TypeAdapter

from tocsin.domain.decision import Decision, Outcome, Verdict, parameters_of
from tocsin.domain.finding import ActionKind
from tocsin.domain.parameters import encode

_DECISION = TypeAdapter(Decision)
_LATER: Mapping[str, Any] = {"level": None, "hard_fault": False, "goal": None}
_LATER_OUTCOME: Mapping[str, Any] = {"measured": None, "next_step": "", "detail_zh": "", "next_step_zh": ""}
_TEXTS = TypeAdapter(dict[str, str])
_ACTIONS = {action.value: action for action in ActionKind}
VERDICTS = TypeAdapter(tuple[Verdict, ...])
OUTCOME = TypeAdapter(Outcome)


def dump_verdicts(verdicts: tuple[Verdict, ...]) -> list[dict[str, Any]]:
    """`verdicts` as JSON objects; the figures that a guard compared, and its phrase, are there where it has some."""
    dumped: list[dict[str, Any]] = VERDICTS.dump_python(verdicts, mode="json")
    later = ("observed", "limit", "said")
    return [{name: value for name, value in one.items() if name not in later or value is not None} for one in dumped]


def dump_decision(decision: Decision) -> dict[str, Any]:
    """`decision` as a JSON object, its id beside the fields; without what entries of before did not have either."""
    left_out = {"parameters", *(name for name, default in _LATER.items() if getattr(decision, name) is default)}
    dumped: dict[str, Any] = _DECISION.dump_python(decision, mode="json", exclude=left_out)
    return {"id": decision.id, **dumped, "parameters": encode(decision.parameters)}


def load_decision(payload: dict[str, Any]) -> Decision:
    """The decision of `payload`; raises pydantic's ValidationError where it is none.

    Parameters that are unknown here, or cannot be read, are carried on: `Parameters.problem` tells of them.
    """
    content = {name: value for name, value in payload.items() if name != "id"}
    # What is no action, or no mapping of texts, is left to the validation of the whole to say.
    texts = content.pop("parameters", None)
    action = _ACTIONS.get(str(content.get("action")))
    if texts is not None and action is not None:
        content["parameters"] = parameters_of(action, _TEXTS.validate_python(texts))
    return _DECISION.validate_python(content)


def dump_outcome(outcome: Outcome) -> dict[str, Any]:
    """`outcome` as a JSON object, without what entries of before did not have either."""
    left_out = {name for name, default in _LATER_OUTCOME.items() if getattr(outcome, name) == default}
    dumped: dict[str, Any] = OUTCOME.dump_python(outcome, mode="json", exclude=left_out)
    return dumped


def in_chinese_too(name: str, chinese: str) -> dict[str, str]:
    """What an entry has beside field `name`; nothing where there is English alone, as in entries of before."""
    return {f"{name}_zh": chinese} if chinese else {}
