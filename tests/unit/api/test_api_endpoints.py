"""What each endpoint answers, and that every failure has the one shape."""

from __future__ import annotations

import pytest
from fastapi.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.client.control import ErrorOut
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import DAY, HOUR, to_iso
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService

HOT = fleet.uuid(*fleet.HOT)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    app = create_app(service, ApiSettings(max_body_bytes=2048))
    return TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False)


def error_of(answer: object) -> tuple[int, str]:
    assert hasattr(answer, "content")
    assert hasattr(answer, "status_code")
    return answer.status_code, ErrorOut.model_validate_json(answer.content).error.code


def test_the_fleet_says_that_it_is_simulated(http: TestClient) -> None:
    fleet_now = http.get("/v1/fleet").json()
    assert (fleet_now["simulated"], fleet_now["gpus"], fleet_now["states"]["lost"]) == (True, 64, 1)


def test_a_lost_gpu_has_no_values_rather_than_zeros(http: TestClient) -> None:
    lost = http.get(f"/v1/gpus/{fleet.uuid(*fleet.LOST)}").json()
    assert lost["summary"]["temperature_celsius"] is None
    assert lost["values"] == {}
    assert lost["missing"]["gpu_temperature_celsius"] == "lost"


def test_a_series_has_a_null_where_there_is_no_value(http: TestClient) -> None:
    query = {"metric": ["gpu_temperature_celsius", "gpu_utilization_ratio"], "max_points": 60}
    series = http.get(f"/v1/gpus/{HOT}/series", params=query).json()
    values = series["metrics"]["gpu_temperature_celsius"]
    assert len(values) == len(series["at"]) == 60
    assert values.count(None) == 3


def test_a_series_covers_the_span_that_is_asked_for(http: TestClient) -> None:
    start, end = to_iso(fleet.NOW_MS - 2 * HOUR), to_iso(fleet.NOW_MS - HOUR)
    query = {"metric": "gpu_power_watts", "start": start, "end": end}
    series = http.get(f"/v1/gpus/{HOT}/series", params=query).json()
    assert (series["start"], series["at"][0], series["end"]) == (start, start, end)
    assert series["at"][-1] < end


@pytest.mark.parametrize(
    ("query", "status", "says"),
    [
        ({"metric": "gpu_temprature_celsius"}, 400, "did you mean gpu_temperature_celsius?"),
        ({"metric": "gpu_power_watts", "start": "yesterday"}, 400, "is no instant"),
        ({"metric": "gpu_power_watts", "start": "0001-01-01T00:00:00+23:59"}, 400, "start"),
        ({"metric": "gpu_power_watts", "end": "1969-12-31T23:59:59Z"}, 400, "outside the years"),
        ({"metric": "gpu_power_watts", "start": "2030-01-01", "end": "2029-01-01"}, 400, "not before end"),
        ({"metric": "gpu_power_watts", "start": "2026-01-01T00:00:00Z"}, 400, "more than 35 days before end = now"),
        ({"metric": "gpu_power_watts", "start": "2026-10-16T11:59:59Z", "end": "2026-11-20T12:00:00Z"}, 400, "start"),
        ({"metric": "gpu_power_watts", "max_points": 3}, 422, "query.max_points"),
        ({}, 422, "query.metric: Field required"),
    ],
)
def test_a_bad_series_query_is_named(http: TestClient, query: dict[str, str], status: int, says: str) -> None:
    answer = http.get(f"/v1/gpus/{HOT}/series", params=query)
    assert error_of(answer)[0] == status
    assert says in answer.json()["error"]["message"]


def test_the_longest_series_is_five_weeks(http: TestClient) -> None:
    query = {"metric": "gpu_power_watts", "end": to_iso(fleet.NOW_MS), "start": to_iso(fleet.NOW_MS - 35 * DAY)}
    assert http.get(f"/v1/gpus/{HOT}/series", params=query).status_code == 200
    said = http.get(f"/v1/gpus/{HOT}/series", params=query | {"start": to_iso(fleet.NOW_MS - 35 * DAY - 1)}).json()
    assert "give a later start, or ask for one part after the other" in said["error"]["message"]


def test_decisions_can_be_filtered_and_limited(http: TestClient) -> None:
    assert [d["state"] for d in http.get("/v1/decisions?state=held").json()] == ["held"] * 3
    assert len(http.get("/v1/decisions?limit=2").json()) == 2
    assert error_of(http.get("/v1/decisions?state=maybe")) == (422, "invalid_request")
    assert error_of(http.get("/v1/decisions?limit=0")) == (422, "invalid_request")


def test_a_misspelt_parameter_is_not_ignored(http: TestClient) -> None:
    answer = http.get("/v1/decisions?limt=2")
    assert error_of(answer) == (422, "invalid_request")
    assert answer.json()["error"]["message"] == "query.limt: there is no such parameter; known here: limit, state"


def test_an_approval_is_recorded_once(http: TestClient, service: FakeService) -> None:
    chosen = next(d for d in service.decisions(10) if d.approvable)
    approved = http.post(f"/v1/decisions/{chosen.id}/approve", json={}).json()
    assert (approved["state"], approved["approved_by"]) == ("approved", "loopback")
    assert error_of(http.post(f"/v1/decisions/{chosen.id}/approve", json={})) == (409, "conflict")
    kinds = [entry["kind"] for entry in http.get("/v1/journal").json()]
    assert kinds == ["service_started", "approval"]


def test_a_rejection_is_final(http: TestClient, service: FakeService) -> None:
    chosen = next(d for d in service.decisions(10) if d.approvable)
    answer = http.post(f"/v1/decisions/{chosen.id}/reject", json={"reason": "busy"}).json()
    assert (answer["state"], answer["overall"], answer["rejected_by"]) == ("rejected", "deny", "loopback")


def test_pause_resume_and_breaker(http: TestClient) -> None:
    assert http.post("/v1/pause", json={"reason": "x"}).json()["paused"] is True
    assert http.get("/v1/fleet").json()["paused_reason"] == "x"
    assert http.post("/v1/resume", json={}).json()["paused"] is False
    assert http.post("/v1/breaker/reset", json={}).json()["breaker"]["tripped"] is False


def test_injection_is_for_simulated_gpus(http: TestClient, service: FakeService) -> None:
    assert http.post("/v1/inject", json={"kind": "gsp_timeout", "gpu": HOT}).status_code == 200
    assert error_of(http.post("/v1/inject", json={"kind": "volcano", "gpu": HOT})) == (400, "invalid_input")
    assert error_of(http.post("/v1/inject", json={"kind": "gsp_timeout", "gpu": "GPU-0"})) == (404, "not_found")
    service.simulated = False
    assert error_of(http.post("/v1/inject", json={"kind": "gsp_timeout", "gpu": HOT})) == (409, "conflict")


def test_the_journal_is_read_in_steps(http: TestClient) -> None:
    for _ in range(3):
        http.post("/v1/pause", json={})
    assert [e["seq"] for e in http.get("/v1/journal?after=2&limit=1").json()] == [3]
    found = http.get("/v1/journal/verify").json()
    assert found == {"ok": True, "events": 4, "problem": "", "done": True, "hash": "", "head": 4}


def test_readiness_says_why_not(http: TestClient, service: FakeService) -> None:
    assert http.get("/readyz").json() == {"ready": True, "reasons": []}
    service.not_ready = ["the store does not answer"]
    answer = http.get("/readyz")
    assert (answer.status_code, answer.json()["reasons"]) == (503, ["the store does not answer"])


def test_metrics_are_prometheus_text(http: TestClient) -> None:
    answer = http.get("/metrics")
    assert answer.headers["content-type"] == "text/plain; version=0.0.4; charset=utf-8"
    assert "tocsin_gpus 64.0" in answer.text


def test_what_does_not_exist(http: TestClient) -> None:
    assert error_of(http.get("/v2/fleet")) == (404, "not_found")
    assert error_of(http.get("/v1/gpus/GPU-none")) == (404, "not_found")
    assert error_of(http.get("/v1/decisions/none")) == (404, "not_found")
    wrong = http.delete("/v1/fleet")
    assert error_of(wrong) == (405, "method_not_allowed")
    assert wrong.headers["allow"] == "GET"


@pytest.mark.parametrize("body", ["{", "[]", '{"reason": 3}', '{"raeson": "x"}', '{"reason": "\\ud800"}'])
def test_a_bad_body_is_named(http: TestClient, body: str) -> None:
    answer = http.post("/v1/pause", content=body, headers={"Content-Type": "application/json"})
    assert error_of(answer) == (422, "invalid_request")
    assert answer.json()["error"]["details"]["problems"][0]["at"].startswith("body")


def test_a_body_that_is_no_text(http: TestClient) -> None:
    answer = http.post("/v1/pause", content=b'{"reason": "\xff"}', headers={"Content-Type": "application/json"})
    assert error_of(answer) == (400, "bad_request")


def test_a_body_that_is_too_large_is_not_read(http: TestClient) -> None:
    answer = http.post("/v1/pause", json={"reason": "x" * 4096})
    assert error_of(answer) == (413, "content_too_large")
    assert "max_body_bytes" not in answer.text, "the bound of what people send is no setting"

    def chunks() -> object:
        for _ in range(8):
            yield b" " * 512

    answer = http.post("/v1/pause", content=chunks(), headers={"Content-Type": "application/json"})
    assert error_of(answer) == (413, "content_too_large")


def test_a_defect_is_one_clean_error_without_a_trace(http: TestClient, service: FakeService) -> None:
    service.broken = True
    answer = http.get("/v1/gpus")
    assert error_of(answer) == (500, "internal_error")
    assert "a defect" not in answer.text
