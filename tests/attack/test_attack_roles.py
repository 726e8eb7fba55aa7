"""Every endpoint, with generated requests, by each role: no role gets what it may not have, nobody gets a 500."""

from __future__ import annotations

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error

from tocsin.api.app import create_app
from tocsin.config.access import ApiSettings, RequestLimits, Role, Token
from tocsin_testing.fake_service import FakeService

OPEN = {"/healthz", "/readyz", "/ping", "/api/v2/ping", "/v1/login", "/v1/login/methods"}
AGENT = {"/api/v2/write", "/v1/orders", "/v1/me", "/v1/logout"}
LIMITS = RequestLimits(requests_per_second=1e6, request_burst=10**6, refused_per_second=1e6, refused_burst=10**6)
TOKENS = [
    Token(name=role, role=role, secret=SecretStr(f"{role}-secret-of-sixteen"), host="n" if role is Role.AGENT else "")
    for role in Role
]
APP = create_app(FakeService(), ApiSettings(tokens=TOKENS, limits=LIMITS))
CONFIG = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG)


@pytest.mark.parametrize("who", ["", "wrong", *Role])
@SCHEMA.parametrize()
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_role_gets_what_it_may_not_have(case: schemathesis.Case, who: str) -> None:
    headers = {"Authorization": f"Bearer {who}-secret-of-sixteen"} if who else {}
    answer = case.call(headers=headers)
    case.validate_response(answer, checks=[not_a_server_error])
    good = answer.status_code < 400
    if case.path in OPEN:
        return
    if who in {"", "wrong"}:
        assert answer.status_code == 401, answer.status_code
    elif who == Role.AGENT and case.path not in AGENT:
        assert not good, case.path
    elif who == Role.VIEWER and case.method != "GET":
        assert not good or case.path == "/v1/logout" or case.path in OPEN, case.path
