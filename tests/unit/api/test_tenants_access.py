"""Who is a tenant: tokens, and groups of a provider or a directory."""

from __future__ import annotations

import pytest
from pydantic import ValidationError

from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal, grants_of
from tocsin.api.tenancy import require_declared
from tocsin.config.access import ApiSettings, GroupRole, Role

MAPPING = [
    GroupRole(group="Alpha", role=Role.VIEWER, namespaces=["alpha", "alpha-batch"]),
    GroupRole(group="beta", role=Role.VIEWER, namespaces=["beta"]),
    GroupRole(group="staff", role=Role.VIEWER),
    GroupRole(group="ops", role=Role.OPERATOR),
]


@pytest.mark.parametrize(
    ("groups", "namespaces"),
    [
        (["alpha"], {"alpha", "alpha-batch"}),
        (["ALPHA", "beta"], {"alpha", "alpha-batch", "beta"}),
        (["alpha", "staff"], set()),
        (["beta", "ops"], set()),
        (["staff"], set()),
    ],
)
def test_who_is_in_groups_of_tenants_alone_is_one(groups: list[str], namespaces: set[str]) -> None:
    assert Principal("anna", grants_of(groups, MAPPING)).namespaces == namespaces


@pytest.mark.parametrize("role", ["operator", "admin", "agent"])
def test_only_a_viewer_is_bound_to_namespaces(role: str) -> None:
    token = {"name": "x", "role": role, "secret": "secret-of-sixteen", "namespaces": ["alpha"]}
    with pytest.raises(ValidationError, match="namespaces is for role viewer"):
        ApiSettings.model_validate({"tokens": [token]})


@pytest.mark.parametrize("name", ["", "x" * 254])
def test_a_name_that_no_namespace_has_is_refused(name: str) -> None:
    token = {"name": "x", "role": "viewer", "secret": "secret-of-sixteen", "namespaces": [name]}
    with pytest.raises(ValidationError, match=r"namespaces\.0"):
        ApiSettings.model_validate({"tokens": [token]})


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("GET", "/v1/gpus", True),
        ("HEAD", "/v1/gpus", True),
        ("POST", "/v1/gpus", False),
        ("POST", "/v1/logout", True),
        ("POST", "/v1/what-if", False),
        ("GET", "/v1/decisions", False),
        ("GET", "/v1/something-new", False),
    ],
)
def test_a_route_that_is_not_declared_is_refused(method: str, path: str, allowed: bool) -> None:
    if allowed:
        require_declared(method, path, "tina")
        return
    with pytest.raises(ApiError) as caught:
        require_declared(method, path, "tina")
    assert (caught.value.status_code, caught.value.code) == (403, "tenant_refused")
