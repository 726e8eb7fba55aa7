"""Every question that the client of the wheel beside it can ask of the brain at argv[1]; prints the answers as JSON.

Runs with that wheel on PYTHONPATH alone. Fields that the wheel does not know are passed over: a new brain may say more.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from tocsin.client import wire

wire.Wire.model_config["extra"] = "ignore"

from tocsin.client.client import Client  # noqa: E402  # models take over the setting when they are made
from tocsin.domain.subject import SubjectKind  # noqa: E402


def plain(answer: Any) -> Any:
    """An answer as JSON has it."""
    if isinstance(answer, wire.Wire):
        return json.loads(answer.model_dump_json())
    return [plain(one) for one in answer] if isinstance(answer, (list, tuple)) else answer


def main(url: str) -> None:
    """Ask, and say what was answered."""
    with Client(url) as client:
        found: dict[str, Any] = {
            name: plain(getattr(client, name)())
            for name in (
                "ready", "me", "summary", "gpus", "attention", "findings", "incidents", "predictions", "login_methods",
                "scoreboard", "diagnoses", "journal", "verify_journal", "timeline", "journal_page", "forecast",
                "capacity", "fragmentation", "cost", "planning_state",
            )
        }  # fmt: skip
        decisions = client.decisions(limit=1000)
        found["decisions"] = plain(decisions)
        found["stories"] = [plain(client.story(one.id)) for one in decisions]
        found["one"] = plain(client.decision(decisions[0].id))
        uuid = client.gpus()[0].uuid
        found["gpu"] = plain(client.gpu(uuid))
        found["series"] = plain(client.series(uuid, ["gpu_temperature_celsius"]))
        found["peers"] = plain(client.peers(uuid, ["gpu_temperature_celsius"]))
        found["fleet_map"] = plain(client.fleet_map()[0])
        found["plans"] = [plain(client.plan(name)) for name in ("defragment", "mig", "scale")]
        found["export"] = b"".join(client.export_journal("jsonl")).decode().count("\n")
        found["paused"] = plain(client.pause("a look"))
        found["resumed"] = plain(client.resume())
        found["released"] = plain(client.release("gpu", uuid, "looked at it"))
    assert SubjectKind(found["released"]["subject"]["kind"]) is SubjectKind.GPU
    sys.stdout.write(json.dumps(found))


if __name__ == "__main__":
    main(sys.argv[1])
