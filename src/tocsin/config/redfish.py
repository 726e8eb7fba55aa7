"""Settings of the companion ``redfish``: what the management controllers around a node say (docs/redfish.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from tocsin.config.section import Section

_URL = re.compile(r"https?://[^\s/@?#]+/?")


class RedfishSettings(Section):
    """Management controllers that the agent asks: leaks, coolant, fans and power supplies."""

    urls: list[str] = Field(default_factory=list, max_length=4)
    """Controllers, as `https://bmc-of-this-node`; on one node of a rack also that of its coolant distribution unit.
    Empty: none."""
    username: str = ""
    """Name to log in with; the role ReadOnly is enough. Empty: no log-in."""
    password: SecretStr = SecretStr("")
    """Its password; better as `password_file`."""
    ca_file: Path | None = None
    """File of certificate authorities in place of the system's."""
    verify: bool = True
    """Whether the controllers' certificates are checked; without it anybody in between can read the password."""
    every_seconds: float = Field(default=60.0, ge=30)
    """Time between two looks."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """How long one answer may take."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        for url in self.urls:
            if not _URL.fullmatch(url):
                raise ValueError(f"urls: {url!r} must be https://HOST or http://HOST, without a path or a name in it")
            if self.username and not url.startswith("https://"):
                raise ValueError(f"urls: a password is never sent without TLS: write {url!r} with https://")
        if bool(self.username) is not bool(self.password.get_secret_value()):
            raise ValueError("username and password belong together")
        return self
