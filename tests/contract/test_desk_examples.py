"""The examples of docs/desk_calls.md as they stand there: a shell with OpenSSL and curl, a script, an Ingress."""

from __future__ import annotations

import base64
import json
import re
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml
from playwright.sync_api import Page, sync_playwright

from tocsin.actions.notifications.delivery import sign
from tocsin.api.gate import SIGNED_PATHS
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import SystemClock
from tocsin_testing import needs
from tocsin_testing.browsing import launch
from tocsin_testing.fake_service import FakeService, serving
from tocsin_testing.signed import DESK_KEY, desks_and_slack

PAGES = Path(__file__).parents[2] / "docs"
PAGE = (PAGES / "desk_calls.md").read_text()


def example(language: str) -> str:
    found = re.search(rf"^```{language}\n(.*?)^```", PAGE, re.MULTILINE | re.DOTALL)
    assert found is not None
    return found[1]


def test_the_shell_signs_what_the_brain_takes() -> None:
    service = FakeService()
    for name in ("curl", "openssl"):
        needs.program(name, name)
    script = example("sh").replace("0123456789abcdef", service.cards(1).items[0].id)
    with serving(service, ApiSettings.model_validate(desks_and_slack())) as url:
        environ = {"PATH": "/usr/bin:/bin", "BRAIN": url, "SECRET": DESK_KEY}
        done = subprocess.run(["sh", "-ec", script], env=environ, capture_output=True, text=True, check=True)
    assert json.loads(done.stdout)["outcome"] == "done", done.stdout
    (made,) = service.silences.stand
    assert (made.by, made.reason) == ("ticket:ops", "OPS-123 taken on")


def test_the_function_in_python_signs_what_the_brain_takes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NO_PROXY", "127.0.0.1")
    service, names = FakeService(), dict[str, Any]()
    exec(example("python"), names)
    card = service.cards(1).items[0].id
    with serving(service, ApiSettings.model_validate(desks_and_slack())) as url:
        answer = names["send"](url, DESK_KEY, action="resolve", card=card, ticket="OPS-123")
    assert (answer["outcome"], answer["card"]) == ("done", card)


def test_the_ingress_passes_the_two_paths_and_leads_to_the_brain() -> None:
    (rule,) = yaml.safe_load(example("yaml"))["spec"]["rules"]
    paths = rule["http"]["paths"]
    assert {one["path"] for one in paths} == set(SIGNED_PATHS)
    assert {one["pathType"] for one in paths} == {"Exact"}
    brain = (PAGES.parent / "deploy/kubernetes/base/brain.yaml").read_text()
    services = {one["metadata"]["name"]: one for one in yaml.safe_load_all(brain) if one["kind"] == "Service"}
    for one in paths:
        service = one["backend"]["service"]
        assert service["port"]["name"] in {port["name"] for port in services[service["name"]]["spec"]["ports"]}


GLIDE = """([now, key, mac]) => {
    const sent = {headers: {}, told: []};
    const gs = {getUserName: () => "anna", getProperty: name => ({'tocsin.desk.secret': key, 'tocsin.url': 'https://brain'})[name]};
    const GlideStringUtil = {base64Encode: text => btoa(text)};
    function GlideDateTime() { this.getNumericValue = () => now; }
    function GlideCertificateEncryption() {
        this.generateMac = (given, kind, text) => { sent.told.push(given, kind, text); return mac; };
    }
    const sn_ws = {RESTMessageV2: function () {
        this.setEndpoint = url => { sent.url = url; };
        this.setHttpMethod = method => { sent.method = method; };
        this.setRequestHeader = (name, value) => { sent.headers[name] = value; };
        this.setRequestBody = body => { sent.body = body; };
        this.executeAsync = () => { sent.done = true; };
    }};
    const current = {state: STATE, correlation_id: 'c0ffee', number: 'INC001'}, previous = {};
    SCRIPT
    return sent;
}"""
"""What ServiceNow gives a script, as far as the example uses it; `mac` is what its HMAC would give."""


@pytest.fixture(scope="module")
def page() -> Iterator[Page]:
    """A page of a browser, which runs JavaScript."""
    with sync_playwright() as playwright, launch(playwright) as browser:
        yield browser.new_page()


STATES = [("1", "reopen"), ("2", "acknowledge"), ("3", ""), ("6", "resolve"), ("7", "resolve"), ("8", "reopen")]


@pytest.mark.parametrize(("state", "action"), STATES)
def test_the_script_for_servicenow_signs_as_the_brain_checks(page: Page, state: str, action: str) -> None:
    now_ms = SystemClock().now_ms()
    body = json.dumps({"action": action, "card": "c0ffee", "ticket": "INC001", "by": "anna"}, separators=(",", ":"))
    signed = sign(DESK_KEY, body.encode(), now_ms)
    mac = base64.b64encode(bytes.fromhex(signed.partition("v1=")[2])).decode()
    script = GLIDE.replace("STATE", json.dumps(state)).replace("SCRIPT", example("js"))
    sent = page.evaluate(script, [now_ms, DESK_KEY, mac])
    if not action:
        assert "done" not in sent
        return
    assert (sent["url"], sent["method"], sent["body"], sent["done"]) == ("https://brain/v1/desk", "post", body, True)
    assert sent["headers"] == {"Content-Type": "application/json", "Tocsin-Signature": signed}
    key = base64.b64encode(DESK_KEY.encode()).decode()
    assert sent["told"] == [key, "HmacSHA256", f"{now_ms // 1000}.{body}"]
