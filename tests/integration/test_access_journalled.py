"""Every write leaves its actor in the journal, and no secret is left anywhere."""

from __future__ import annotations

import io
import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2
import pytest
import structlog
from fastapi import FastAPI
from fastapi.testclient import TestClient

from tocsin.actions.executors.journal_only import JournalOnly
from tocsin.actions.model.controls import Breaker
from tocsin.actions.model.executor import ExecutionResult
from tocsin.actions.notifications.slack_buttons import Button, Deed
from tocsin.api.app import create_app
from tocsin.api.directory import Directory
from tocsin.api.principal import Principal, simple
from tocsin.config.access import Role
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, ManualClock
from tocsin.domain.entry import Entry, EntryKind
from tocsin.journal.files import read_entries
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.telemetry.log import configure_logging
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.signed import (
    DESK_KEY,
    OLD_DESK_KEY,
    SLACK_KEY,
    call_headers,
    desks_and_slack,
    press_body,
    press_headers,
    pressed,
)

TOKEN = "an-operator-s-token-0123456789"
PASSWORD = "anna's-password-0123456789"
BIND_PASSWORD = "the-reader-s-password-0123456789"
WEBHOOK = "the-webhook-s-key-0123456789"

UNRECORDED = {
    "POST /v1/what-if": "a question: it changes nothing",
    "POST /api/v2/write": "telemetry: every reading is in the store; the journal is for what is decided and done",
    "POST /api/v1/write": "telemetry, by remote write",
    "POST /v1/metrics": "telemetry, by OTLP",
    "POST /v1/alertmanager": "what another tool says: evidence on cards, which starts nothing",
    "POST /v1/orders/{order_id}/report": "how an order stands: the loop puts its outcome on record",
}
"""Changing routes that journal nothing under the sender's name, and why."""


class Injector:
    """A stand-in for the simulator."""

    def inject(self, kind: str, gpu: str) -> tuple[str, int, str]:
        return gpu, T0, f"{kind} starts on {gpu}"


class World:
    """A brain whose first GPU is hot, behind its API."""

    def __init__(self, folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = folder / "journal.db"
        self.settings = Settings.model_validate(
            {
                "store": {"path": folder / "store.db"},
                "journal": {"path": self.path},
                "forecast": {"worker": False},
                "webhook": {"secret": WEBHOOK},
                "actions": {
                    "mode": "propose",
                    "confirmations": 2,
                    "boot_grace_seconds": 0,
                    "managed_pools": ["default"],
                },
                "api": {
                    **desks_and_slack(),
                    "tokens": [{"name": "otto", "role": "admin", "secret": TOKEN}],
                    "ldap": {
                        "url": "ldaps://ldap.example",
                        "user_dn": "uid={user},dc=x",
                        "group_base": "dc=x",
                        "bind_dn": "cn=reader",
                        "bind_password": BIND_PASSWORD,
                        "groups": [{"group": "x", "role": "admin"}],
                    },
                },
            }
        )
        monkeypatch.setattr(Directory, "__init__", lambda _self, _settings: None)
        monkeypatch.setattr(
            JournalOnly, "execute", lambda _self, _decision: ExecutionResult(True, "done", lasting=True)
        )
        monkeypatch.setattr(Directory, "login", lambda _self, user, password: self._login(user, password))
        self.clock = ManualClock(T0)
        self.running: RunningBrain = open_brain(self.settings, self.clock, propose=True)
        self.told: list[object] = []
        self.app: FastAPI = create_app(BrainService(self.running.brain, Injector()), self.settings.api, self.clock)
        self.app.state.slack.replies.post = lambda _url, answer: self.told.append(answer)
        self.http = TestClient(
            self.app, base_url="http://127.0.0.1", client=("127.0.0.1", 1), raise_server_exceptions=False
        )
        self.token = TOKEN
        self.carried_out: list[str] = []
        self.made: list[str] = []
        for _ in range(6):
            self.minute()

    def _login(self, user: str, password: str) -> Principal | None:
        return simple(f"ldap:{user}", Role.ADMIN) if password == PASSWORD else None

    def minute(self) -> None:
        self.clock.advance(MINUTE)
        now = self.clock.now_ms()
        fleet = [gpu(n, host=f"node-{n}") for n in range(8)]
        readings = [
            reading(one, now, temperature_celsius=91.0 if n < 2 else 50.0 + (now // MINUTE) % 3, power_watts=200.0)
            for n, one in enumerate(fleet)
        ]
        self.running.brain.accept(Batch(readings=readings))
        self.running.brain.tick()

    def post(self, path: str, body: dict[str, object]) -> object:
        return self._ask("POST", path, json=body)

    def delete(self, path: str) -> object:
        return self._ask("DELETE", path)

    def _ask(self, verb: str, path: str, **more: Any) -> object:
        answer = self.http.request(verb, path, headers={"Authorization": f"Bearer {self.token}"}, **more)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def acknowledge(self) -> None:
        """The first card, the path of which is kept."""
        self.made.append(f"/v1/cards/{self.first_card()}/acknowledge")
        self.post(self.made[-1], {})

    def silence(self, path: str) -> None:
        """A snooze or maintenance of a host, whose path is kept."""
        made = self.post(path, {"kind": "host", "name": "node-3", "for_seconds": 3600})
        assert isinstance(made, dict)
        self.made.append(f"{path}/{made['id']}")

    def call(self, action: str, card: str = "") -> httpx2.Response:
        """A ticket system sends back what became of the ticket of a card, the first by default."""
        body = json.dumps({"action": action, "card": card or self.first_card()}).encode()
        headers = call_headers(body, self.clock.now_ms())
        return self.http.post("/v1/desk", content=body, headers=headers)

    def press(self, deed: Deed) -> None:
        """Anna presses a button in Slack."""
        target = self.first_card() if deed is Deed.ACKNOWLEDGE else self.decision()
        body = press_body(pressed(Button(deed, target)))
        headers = press_headers(body, self.clock.now_ms())
        answer = self.http.post("/v1/slack/interactive", content=body, headers=headers)
        assert answer.is_success, answer.text

    def first_card(self) -> str:
        found = self.http.get("/v1/cards", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        return str(found["items"][0]["id"])

    def decision(self) -> str:
        found = self.http.get("/v1/decisions", headers={"Authorization": f"Bearer {TOKEN}"}).json()
        return str(next(one["id"] for one in found if one["approvable"]))

    def done(self) -> str:
        """A decision that was approved and carried out, and whose effect lasts."""
        identity = self.decision()
        self.post(f"/v1/decisions/{identity}/approve", {})
        for _ in range(4):
            self.minute()
        return identity

    def entries(self, after: int) -> list[Entry]:
        return list(read_entries(self.path, after=after))

    def trip(self) -> None:
        note = self.running.brain.actions._decision_log.note
        note(EntryKind.BREAKER_TRIPPED, {"causes": [], "reason": "a test"})
        assert isinstance(self.running.brain.actions.controls().breaker, Breaker)

    def log_in(self) -> None:
        answer = self.http.post("/v1/login", json={"user": "anna", "password": PASSWORD})
        self.token = answer.json()["token"]


@pytest.fixture
def world(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[World]:
    made = World(tmp_path, monkeypatch)
    yield made
    made.running.stop()


DEED: dict[str, object] = {
    "id": "0" * 16, "phase": "begun", "action": "drain", "subject": {"kind": "host", "name": "node-3"}
}  # fmt: skip
Step = Callable[[World], object]
WRITES: dict[str, tuple[Step | None, Step, str]] = {
    "POST /v1/decisions/{decision_id}/approve": (
        None, lambda w: w.post(f"/v1/decisions/{w.decision()}/approve", {}), "otto"
    ),
    "POST /v1/decisions/{decision_id}/approve-alike": (
        None, lambda w: w.post(f"/v1/decisions/{w.decision()}/approve-alike", {}), "otto"
    ),
    "POST /v1/decisions/{decision_id}/reject": (
        None, lambda w: w.post(f"/v1/decisions/{w.decision()}/reject", {"reason": "no"}), "otto"
    ),
    "POST /v1/decisions/{decision_id}/undo": (
        lambda w: w.carried_out.append(w.done()),
        lambda w: w.post(f"/v1/decisions/{w.carried_out[-1]}/undo", {}),
        "otto",
    ),
    "POST /v1/pause": (None, lambda w: w.post("/v1/pause", {"reason": "x"}), "otto"),
    "POST /v1/resume": (lambda w: w.post("/v1/pause", {}), lambda w: w.post("/v1/resume", {}), "otto"),
    "POST /v1/breaker/reset": (lambda w: w.trip(), lambda w: w.post("/v1/breaker/reset", {}), "otto"),
    "POST /v1/cells/pause": (None, lambda w: w.post("/v1/cells/pause", {"reason": "x"}), "otto"),
    "POST /v1/cells/resume": (lambda w: w.post("/v1/pause", {}), lambda w: w.post("/v1/cells/resume", {}), "otto"),
    "POST /v1/cells/breaker/reset": (lambda w: w.trip(), lambda w: w.post("/v1/cells/breaker/reset", {}), "otto"),
    "POST /v1/release": (None, lambda w: w.post("/v1/release", {"kind": "host", "name": "node-3"}), "otto"),
    "POST /v1/manual": (None, lambda w: w.post("/v1/manual", DEED), "otto"),
    "POST /v1/inject": (None, lambda w: w.post("/v1/inject", {"kind": "x", "gpu": "GPU-1"}), "otto"),
    "POST /v1/login": (None, lambda w: w.log_in(), "ldap:anna"),
    "POST /v1/cards/{card_id}/acknowledge": (None, lambda w: w.acknowledge(), "otto"),
    "DELETE /v1/cards/{card_id}/acknowledge": (lambda w: w.acknowledge(), lambda w: w.delete(w.made[-1]), "otto"),
    "POST /v1/snoozes": (None, lambda w: w.silence("/v1/snoozes"), "otto"),
    "DELETE /v1/snoozes/{silence_id}": (
        lambda w: w.silence("/v1/snoozes"), lambda w: w.delete(w.made[-1]), "otto"
    ),
    "POST /v1/maintenance": (None, lambda w: w.silence("/v1/maintenance"), "otto"),
    "DELETE /v1/maintenance/{silence_id}": (
        lambda w: w.silence("/v1/maintenance"), lambda w: w.delete(w.made[-1]), "otto"
    ),
    "POST /v1/desk": (lambda w: w.call("acknowledge"), lambda w: w.call("resolve"), "ticket:ops"),
    "POST /v1/slack/interactive": (None, lambda w: w.press(Deed.APPROVE), "slack:anna"),
    "POST /v1/cells/at/{cell}/{path}": (None, lambda w: w.post("/v1/cells/at/fleet/v1/pause", {"reason": "x"}), "otto"),
    "DELETE /v1/cells/at/{cell}/{path}": (
        lambda w: w.silence("/v1/snoozes"), lambda w: w.delete(f"/v1/cells/at/fleet{w.made[-1]}"), "otto"
    ),
    "POST /v1/logout": (lambda w: w.log_in(), lambda w: w.post("/v1/logout", {}), "ldap:anna"),
}  # fmt: skip
"""For each changing route what has to be before, the request, and under whose name it is to be found."""


def changing(app: FastAPI) -> set[str]:
    paths = app.openapi()["paths"]
    return {f"{verb.upper()} {path}" for path, verbs in paths.items() for verb in verbs if verb.upper() != "GET"}


def test_every_changing_route_is_in_one_of_the_two_lists(world: World) -> None:
    assert changing(world.app) == set(WRITES) | set(UNRECORDED)
    assert not set(WRITES) & set(UNRECORDED)


@pytest.mark.parametrize("route", sorted(WRITES))
def test_a_write_leaves_its_actor_in_the_journal(world: World, route: str) -> None:
    before, request, actor = WRITES[route]
    if before is not None:
        before(world)
    head = world.running.brain.journal.head
    request(world)
    written = world.entries(head)
    assert written
    assert {entry.actor for entry in written} == {actor}


@pytest.mark.parametrize("deed", list(Deed))
def test_every_button_leaves_the_person_in_the_journal(world: World, deed: Deed) -> None:
    head = world.running.brain.journal.head
    world.press(deed)
    written = world.entries(head)
    assert {entry.actor for entry in written} == {"slack:anna"}
    assert [isinstance(answer, dict) and answer["replace_original"] for answer in world.told] == [True]


def test_a_ticket_system_is_no_person_and_hides_for_a_while_alone(world: World) -> None:
    card = world.first_card()
    assert [world.call(action, card).status_code for action in ("acknowledge", "resolve")] == [200, 200]
    (taken,) = read_entries(world.path, kinds=["cause_acknowledged"])
    (hidden,) = read_entries(world.path, kinds=["snoozed"])
    (ended,) = read_entries(world.path, kinds=["silence_ended"])
    assert {one.actor for one in (taken, hidden, ended)} == {"ticket:ops"}
    assert "breaker_until_ms" not in taken.payload
    assert hidden.payload["until_ms"] - hidden.payload["starts_ms"] == 4 * HOUR
    world.clock.advance(4 * HOUR)
    again = world.call("resolve", card)
    assert again.status_code == 409
    assert "for as long as it may" in again.json()["error"]["message"]


def test_a_call_that_is_sent_again_after_a_restart_undoes_no_persons_word(world: World) -> None:
    card = world.first_card()
    body = json.dumps({"action": "acknowledge", "card": card}).encode()
    headers = call_headers(body, world.clock.now_ms())
    assert world.http.post("/v1/desk", content=body, headers=headers).is_success
    world.delete(f"/v1/cards/{card}/acknowledge")
    app = create_app(BrainService(world.running.brain, Injector()), world.settings.api, world.clock)
    head = world.running.brain.journal.head
    answer = TestClient(app, base_url="http://127.0.0.1").post("/v1/desk", content=body, headers=headers)
    assert (answer.status_code, answer.json()["outcome"]) == (200, "repeated")
    assert world.entries(head) == []


def test_a_refused_write_leaves_nothing(world: World) -> None:
    head = world.running.brain.journal.head
    world.token = "no-such-token-0123456789"
    answer = world.http.post("/v1/pause", json={}, headers={"Authorization": f"Bearer {world.token}"})
    assert answer.status_code == 401
    assert world.entries(head) == []
    counted = world.running.brain.metrics.value("tocsin_api_refused_total", reason="token_unknown")
    assert counted == 1


def test_a_release_cancels_and_holds_off(world: World) -> None:
    held = world.http.post(
        "/v1/release",
        json={"kind": "gpu", "name": "GPU-00000000", "reason": "re-seated"},
        headers={"Authorization": f"Bearer {TOKEN}"},
    ).json()
    assert held["subject"]["host"] == "node-0"
    (entry,) = read_entries(world.path, kinds=["hold_off"])
    assert (entry.actor, entry.payload["reason"], bool(entry.payload["cancelled"])) == ("otto", "re-seated", True)
    for kind, name in (("gpu", "GPU-none"), ("host", "node-99")):
        answer = world.http.post(
            "/v1/release", json={"kind": kind, "name": name}, headers={"Authorization": f"Bearer {TOKEN}"}
        )
        assert answer.status_code == 404


def test_no_secret_is_in_answers_metrics_log_or_journal(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    log = io.StringIO()
    configure_logging("debug", "json", log)
    try:
        world.log_in()
        session = world.token
        seen = [world.http.post("/v1/login", json={"user": "anna", "password": PASSWORD + "x"}).text]
        seen += [world.http.post("/v1/login", json={"user": {"n": 1}, "password": [PASSWORD]}).text]
        for token in (TOKEN, TOKEN + "x", session, session + "x", "a.b." + TOKEN):
            bearer = {"Authorization": f"Bearer {token}"}
            for path in (
                "/v1/me",
                "/v1/fleet",
                "/v1/journal?limit=1000",
                "/metrics",
                "/v1/nowhere",
                "/v1/login/methods",
            ):
                seen.append(world.http.get(path, headers=bearer).text)
            seen.append(world.http.post("/v1/pause", json={"reason": 1}, headers=bearer).text)
        world.post("/v1/pause", {"reason": "x"})
        world.minute()
    finally:
        structlog.reset_defaults()
    seen += [json.dumps(world.app.openapi()), world.settings.model_dump_json(), repr(world.settings)]
    seen += [repr(entry) for entry in read_entries(world.path)]
    everything = "\n".join([*seen, log.getvalue(), *capfd.readouterr()])
    secrets = (TOKEN, PASSWORD, BIND_PASSWORD, WEBHOOK, DESK_KEY, OLD_DESK_KEY, SLACK_KEY, session)
    found = [secret for secret in secrets if secret in everything]
    assert found == []
