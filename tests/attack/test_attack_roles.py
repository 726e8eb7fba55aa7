"""Every endpoint, with generated requests, by each role: no role gets what it may not have, nobody gets a 500."""

from __future__ import annotations

from collections import Counter

import pytest
import schemathesis
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.checks import not_a_server_error
from schemathesis.python.asgi import ASGIClient, get_client

from tocsin.api.app import create_app
from tocsin.api.gate import SIGNED_PATHS
from tocsin.config.access import ApiSettings, RequestLimits, Role, Token
from tocsin_testing.fake_service import FakeService

OPEN = {"/healthz", "/readyz", "/ping", "/api/v2/ping", "/v1/login", "/v1/login/methods", *SIGNED_PATHS}
PUSHED = {"/api/v2/write", "/api/v1/write", "/v1/metrics", "/v1/alertmanager"}
AGENT = {*PUSHED, "/v1/orders", "/v1/me", "/v1/logout"}
LIMITS = RequestLimits(requests_per_second=1e6, request_burst=10**6, refused_per_second=1e6, refused_burst=10**6)
TOKENS = [
    Token(name=role, role=role, secret=SecretStr(f"{role}-secret-of-sixteen"), host="n" if role is Role.AGENT else "")
    for role in Role
]
APP = create_app(FakeService(), ApiSettings(tokens=TOKENS, limits=LIMITS))
CONFIG = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG)
schemathesis.serializer.alias("application/x-protobuf", "application/octet-stream")


@pytest.fixture(scope="module")
def client() -> ASGIClient:
    """One for all calls, which asks the environment for no proxy at each."""
    made = get_client(APP)
    made.trust_env = False
    return made


OTHERS = ("", "wrong", *(role for role in Role if role is not Role.ADMIN))
ASKED: Counter[str] = Counter()


def who_asks(endpoint: str) -> tuple[str, ...]:
    """Who sends a request: all of them the first of an endpoint, then who may have everything and one other."""
    number = ASKED[endpoint]
    ASKED[endpoint] += 1
    return (Role.ADMIN, OTHERS[number % len(OTHERS)]) if number else (Role.ADMIN, *OTHERS)


@SCHEMA.parametrize()
@settings(max_examples=3, derandomize=True, suppress_health_check=list(HealthCheck))
def test_no_role_gets_what_it_may_not_have(client: ASGIClient, case: schemathesis.Case) -> None:
    for who in who_asks(f"{case.method} {case.path}"):
        headers = {"Authorization": f"Bearer {who}-secret-of-sixteen"} if who else {}
        answer = case.call(headers=headers, session=client)
        case.validate_response(answer, checks=[not_a_server_error])
        if case.path not in OPEN:
            may_have(case, who, answer.status_code)


def may_have(case: schemathesis.Case, who: str, status: int) -> None:
    good = status < 400
    if who in {"", "wrong"}:
        assert status == 401, (who, status)
    elif who == Role.AGENT and case.path not in AGENT:
        assert not good, (who, case.path)
    elif who == Role.VIEWER and case.method != "GET":
        assert not good or case.path == "/v1/logout", (who, case.path)
