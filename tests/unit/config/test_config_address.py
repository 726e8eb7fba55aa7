"""Addresses and ports."""

from __future__ import annotations

import socket

import pytest

from tocsin.config.address import PortClaim, is_loopback, split_address
from tocsin.domain.errors import InputError


@pytest.mark.parametrize(
    ("text", "expected"),
    [("127.0.0.1:8470", ("127.0.0.1", 8470)), ("[::1]:0", ("::1", 0)), ("localhost:1", ("localhost", 1))],
)
def test_addresses(text: str, expected: tuple[str, int]) -> None:
    assert split_address(text, "api.listen") == expected


@pytest.mark.parametrize("text", ["8470", ":8470", "host:", "host:port", "host:70000", ""])
def test_bad_addresses(text: str) -> None:
    with pytest.raises(InputError, match=r"api\.listen = .*is no address"):
        split_address(text, "api.listen")


def test_two_claims_of_one_port_get_two_ports() -> None:
    first = PortClaim("127.0.0.1", 0)
    second = PortClaim("127.0.0.1", first.port)
    assert second.port != first.port
    first.release()
    third = PortClaim("127.0.0.1", first.port)
    assert third.port == first.port
    for claim in (first, second, third):
        claim.release()


def test_a_port_in_use_is_not_claimed() -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        claim = PortClaim("127.0.0.1", taken.getsockname()[1])
        assert claim.port != taken.getsockname()[1]
        claim.release()


@pytest.mark.parametrize(
    ("host", "expected"),
    [("127.0.0.1", True), ("::1", True), ("localhost", True), ("0.0.0.0", False), ("::", False), ("brain", False)],
)
def test_loopback_is_told_from_the_rest(host: str, expected: bool) -> None:
    assert is_loopback(host) is expected
