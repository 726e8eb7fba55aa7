"""The API keeps to its own OpenAPI document, whatever it is sent."""

from __future__ import annotations

import re
from pathlib import Path

import schemathesis
from fastapi.testclient import TestClient
from hypothesis import HealthCheck, settings
from pydantic import SecretStr
from schemathesis.specs.openapi.checks import positive_data_acceptance

from tocsin.api.app import create_app
from tocsin.api.gate import SIGNED_PATHS
from tocsin.config.access import ApiSettings, RequestLimits, Role, Token
from tocsin_testing.fake_service import FakeService

DOCS = Path(__file__).parents[2] / "docs" / "endpoints.md"
SECRET = "a-secret-0123456789"
HEADERS = {"Authorization": f"Bearer {SECRET}"}
TOKEN = Token(name="t", role=Role.ADMIN, secret=SecretStr(SECRET))
# Rates have tests of their own; here they would answer in the place of the endpoints.
LIMITS = RequestLimits(requests_per_second=1e6, request_burst=10**6, refused_per_second=1e6, refused_burst=10**6)
APP = create_app(FakeService(), ApiSettings(tokens=[TOKEN], limits=LIMITS))
# The test sends its own token, so that a case without one is none.
CONFIG = schemathesis.Config.from_dict({"generation": {"with-security-parameters": False}})
SCHEMA = schemathesis.openapi.from_asgi("/openapi.json", APP, config=CONFIG)
schemathesis.serializer.alias("application/x-protobuf", "application/octet-stream")


@SCHEMA.hook("filter_query")  # type: ignore[untyped-decorator]
def is_sent(_context: object, query: dict[str, object] | None) -> bool:
    """An empty list or object leaves nothing of a parameter in the URL: what is sent is right, and is not refused."""
    return all(value not in ([], {}) for value in (query or {}).values())


@SCHEMA.parametrize()
@settings(max_examples=25, derandomize=True, suppress_health_check=list(HealthCheck))
def test_every_endpoint_keeps_to_its_document(case: schemathesis.Case) -> None:
    # Whether a metric or a fault exists is more than a schema can say, so refusing what fits it is no failure.
    case.call_and_validate(headers=HEADERS, excluded_checks=[positive_data_acceptance])


def operations() -> list[tuple[str, str, dict[str, object]]]:
    paths = APP.openapi()["paths"]
    return [(method.upper(), path, body) for path, methods in paths.items() for method, body in methods.items()]


def test_every_endpoint_is_documented() -> None:
    text = DOCS.read_text()
    assert [f"{method} {path}" for method, path, _ in operations() if f"`{method} {path}`" not in text] == []


def test_no_endpoint_is_documented_that_does_not_exist() -> None:
    written = set(re.findall(r"`((?:GET|POST|PUT|PATCH|DELETE) /[^` ?]*)`", DOCS.read_text()))
    assert written - {f"{method} {path}" for method, path, _ in operations()} == set()


def test_the_document_says_what_each_endpoint_does_and_how_it_fails() -> None:
    for method, path, body in operations():
        assert body["description"], f"{method} {path}"
        assert {"500"} <= set(body["responses"]), f"{method} {path}"  # type: ignore[call-overload]
    secured = {path for _, path, body in operations() if "security" in body}
    open_paths = {"/healthz", "/readyz", "/ping", "/api/v2/ping", "/v1/login", "/v1/login/methods", *SIGNED_PATHS}
    assert {path for _, path, _ in operations()} - secured == open_paths


def test_operation_ids_are_unique() -> None:
    ids = [body["operationId"] for _, _, body in operations()]
    assert len(ids) == len(set(ids))


def test_the_document_is_served() -> None:
    assert TestClient(APP).get("/openapi.json").json() == APP.openapi()
