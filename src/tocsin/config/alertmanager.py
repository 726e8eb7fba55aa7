"""Settings of the Alertmanager whose silences the brain respects (docs/push.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from tocsin.config.section import Section

_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")


class AlertmanagerSettings(Section):
    """Silences of an Alertmanager, which hold Tocsin's own notifications back as well (docs/push.md)."""

    url: str = ""
    """Base URL, such as `http://alertmanager.monitoring:9093`; empty: nobody's silences are asked for."""
    token: SecretStr = SecretStr("")
    """Bearer token; better as `token_file`."""
    headers: dict[str, SecretStr] = Field(default_factory=dict, max_length=16)
    """Further headers, as `{ Authorization = "Basic ..." }`."""
    ca_file: Path | None = None
    """File of certificate authorities in place of the usual ones."""
    certificate: Path | None = None
    """PEM file of the certificate that the brain shows to the server (mTLS); unset: none."""
    key: Path | None = None
    """PEM file of its key."""
    every_seconds: float = Field(default=15.0, ge=1, le=300)
    """Time between two questions. An answer holds for four times as long: after that notifications go out."""
    timeout_seconds: float = Field(default=5.0, gt=0, le=60)
    """How long an answer may take."""
    labels: dict[str, str] = Field(default_factory=dict, max_length=32)
    """Labels that silences may name and that all of Tocsin's notifications are taken to have, such as
    `{ cluster = "a" }`; those of channels of kind `alertmanager` count by themselves."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.url and not _URL.fullmatch(self.url):
            raise ValueError("url must start with https:// or http:// and hold neither a name nor a query")
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("certificate and key belong together")
        return self
