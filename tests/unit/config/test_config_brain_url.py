"""Which brain a command asks: the one of the file that it was given, unless it is told another."""

from __future__ import annotations

from typing import Any

import pytest

from tocsin.config.settings import Settings

DEFAULT = "http://127.0.0.1:8470"


@pytest.mark.parametrize(
    ("given", "url"),
    [
        ({}, DEFAULT),
        ({"api": {"listen": "127.0.0.1:9999"}}, "http://127.0.0.1:9999"),
        ({"api": {"listen": "0.0.0.0:9999"}}, "http://127.0.0.1:9999"),
        ({"api": {"listen": "[::]:9999"}}, "http://[::1]:9999"),
        ({"api": {"listen": "127.0.0.1:0"}}, DEFAULT),
        (
            {"api": {"listen": "10.0.0.1:8470", "tls_certificate": "c.pem", "tls_key": "k.pem"}},
            "https://10.0.0.1:8470",
        ),
        ({"api": {"listen": "127.0.0.1:9999"}, "dashboard": {"api_url": "http://brain:1"}}, "http://brain:1"),
    ],
)
def test_the_brain_of_the_settings(given: dict[str, Any], url: str) -> None:
    assert Settings.model_validate(given).brain_url == url
