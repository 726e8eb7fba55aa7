"""A token for each node from one key."""

from __future__ import annotations

import json

import pytest
from click.testing import CliRunner
from hypothesis import given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from starlette.datastructures import Headers

from tocsin.api.auth import Authenticator
from tocsin.api.errors import ApiError
from tocsin.cli.main import cli
from tocsin.config.access import ApiSettings, Role
from tocsin.config.host_tokens import host_of_token, host_token
from tocsin.domain.clock import ManualClock
from tocsin.domain.errors import InputError
from tocsin_testing.builders import T0

KEY = "k" * 32
names = st.from_regex(r"[A-Za-z0-9.-]{1,60}", fullmatch=True)


def principal(token: str, **more: object) -> object:
    authenticator = Authenticator(ApiSettings(host_key=SecretStr(KEY), **more), ManualClock(T0))  # type: ignore[arg-type]
    return authenticator.principal(Headers({"authorization": f"Bearer {token}"}), "10.0.0.1")


@given(name=names)
def test_a_token_names_its_node_and_no_other(name: str) -> None:
    token = host_token(KEY, name)
    assert host_of_token(KEY, token) in (name.lower(), None if name.lower() != name.lower().lower() else name.lower())
    assert host_of_token(KEY[:-1] + "x", token) is None


@given(token=st.text(max_size=400), cut=st.integers(0, 100), put=st.text(max_size=3))
def test_nothing_made_up_is_a_token(token: str, cut: int, put: str) -> None:
    good = host_token(KEY, "node-1")
    for one in (token, f"th.{token}", f"th.node-2.{token}", good[:cut] + put + good[cut + len(put) :]):
        assert one == good or host_of_token(KEY, one) is None


def test_it_speaks_for_its_node_alone() -> None:
    found = principal(host_token(KEY, "Node-1"))
    assert (found.name, found.role, found.hosts) == ("host:node-1", Role.AGENT, {"node-1"})  # type: ignore[attr-defined]


def test_a_revoked_one_and_one_without_a_key_are_refused() -> None:
    with pytest.raises(ApiError) as caught:
        principal(host_token(KEY, "node-1"), revoked_hosts=["NODE-1"])
    assert caught.value.code == "token_revoked"
    assert host_of_token("", host_token(KEY, "node-1")) is None
    with pytest.raises(InputError, match=r"api\.host_key"):
        host_token("", "node-1")
    with pytest.raises(ValidationError, match="openssl rand"):
        ApiSettings(host_key=SecretStr("short"))


def test_the_command_prints_it(tmp_path: object) -> None:
    run = CliRunner().invoke(cli, ["token", "issue", "--host", "node-1"], env={"TOCSIN_API__HOST_KEY": KEY})
    assert (run.exit_code, run.output) == (0, f"{host_token(KEY, 'node-1')}\n")
    many = ["token", "issue", "--json", "--host", "a", "--host", "b"]
    rows = json.loads(CliRunner().invoke(cli, many, env={"TOCSIN_API__HOST_KEY": KEY}).output)
    assert rows == [{"host": host, "token": host_token(KEY, host)} for host in ("a", "b")]
    without = CliRunner().invoke(cli, ["token", "issue", "--host", "a"])
    assert without.exit_code != 0
