"""The recorded exchanges of a real API server, and answers made of them."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

DATA = Path(__file__).parents[2] / "data" / "kubernetes"


@dataclass
class Answer(Exception):
    """What the server answers; raised where that ends the request."""

    status: int
    body: Any
    headers: dict[str, str]

    def text(self) -> str:
        return self.body if isinstance(self.body, str) else json.dumps(self.body)


@cache
def exchanges() -> dict[str, Any]:
    """Every exchange by name."""
    found: dict[str, Any] = {}
    for name in ("exchanges", "devices"):
        found |= json.loads((DATA / f"{name}.json").read_text())
    return found


def recorded(name: str, **swapped: str) -> Answer:
    """The answer of exchange `name`, with names in it replaced: ``{old: new}``, as keywords or in `swapped`."""
    response = exchanges()[name]["response"]
    body = response.get("body", response.get("body_text"))
    return Answer(response["status"], swap(body, swapped), dict(response["headers"]))


def swap(body: Any, names: dict[str, str]) -> Any:
    """A copy of `body` with every occurrence of the keys replaced by the values."""
    if not names:
        return copy.deepcopy(body)
    text = json.dumps(body)
    for old, new in names.items():
        text = text.replace(json.dumps(old)[1:-1], json.dumps(new)[1:-1])
    return json.loads(text)
