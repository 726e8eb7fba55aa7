"""The token of one node, over HTTP, against another node: what it says of node-1 changes nothing there."""

from __future__ import annotations

import pytest

from tocsin.domain.clock import HOUR
from tocsin_testing.attacked import HONEST, HOSTILE, Victim, readings

MINE, THEIRS = "GPU-0000-0", "GPU-0001-0"
FORGED = {
    "a reading of its GPU": f"gpu,gpu_uuid={THEIRS},host={HONEST} power_watts=1",
    "the same under the own name": f"gpu,gpu_uuid={THEIRS},host={HOSTILE} power_watts=1",
    "a MIG instance of its GPU": f"gpu,mig_uuid=MIG-x,gpu_uuid={THEIRS},host={HOSTILE} power_watts=1",
    "another spelling of its name": f"gpu,gpu_uuid=GPU-new,host={HONEST.upper()} power_watts=1",
    "its attributes": f'gpu_info,gpu_uuid={THEIRS},host={HOSTILE} pool="other"',
    "an event of its GPU": f'gpu_event,kind=xid,gpu_uuid={THEIRS},host={HONEST},code=79 message="x"',
    "its event, under the own name": f'gpu_event,kind=xid,gpu_uuid={THEIRS},host={HOSTILE},code=79 message="x"',
    "an owner of its GPU": f'gpu_owner,gpu_uuid={THEIRS},host={HOSTILE} owners="[]"',
    "a finding": f'gpu_finding,rule=r,subject_kind=gpu,subject={THEIRS} severity="critical"',
    "a prediction": f'gpu_prediction,model=m,target=t,subject_kind=gpu,subject={THEIRS} status="likely"',
}


@pytest.mark.parametrize("name", FORGED)
@pytest.mark.parametrize("ahead", [0, 240_000, -HOUR])
def test_what_one_node_says_of_another_changes_nothing_there(victim: Victim, name: str, ahead: int) -> None:
    victim.write(HONEST)
    before = gpu(victim)
    now = victim.clock.now_ms()
    body = f"{FORGED[name]} {now + ahead}\n{readings(0, now).splitlines()[0]}"
    answer = victim.post("/api/v2/write?precision=ms", HOSTILE, 10, content=body)
    assert answer.status_code in {204, 400, 403}, answer.text
    after = gpu(victim)
    for field in ("host", "pool", "values", "at", "state", "findings"):
        assert after.get(field) == before.get(field), field


@pytest.mark.parametrize("path", ["/v1/pause", "/v1/gpus", "/v1/decisions", "/v1/journal", "/metrics"])
def test_the_token_of_a_node_neither_reads_nor_controls(victim: Victim, path: str) -> None:
    if path == "/v1/pause":
        assert victim.post(path, HOSTILE, 10, json={"reason": "x"}).status_code == 403
    else:
        assert victim.get(path, HOSTILE).status_code == 403


def test_the_orders_of_another_node_are_not_shown(victim: Victim) -> None:
    assert victim.get(f"/v1/orders?host={HONEST}", HOSTILE).status_code == 403


def gpu(victim: Victim) -> dict[str, object]:
    answer = victim.get(f"/v1/gpus/{THEIRS}", "anna")
    assert answer.status_code == 200, answer.text
    found: dict[str, object] = answer.json()
    return found
