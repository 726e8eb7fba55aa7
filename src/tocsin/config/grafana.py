"""Settings of the annotations that the brain writes to Grafana."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from tocsin.config.section import Section

_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")


class GrafanaSettings(Section):
    """Where actions, incidents and pauses are shown above the charts (docs/grafana.md)."""

    url: str = ""
    """Base URL of Grafana; empty: nothing is written there."""
    token: SecretStr = SecretStr("")
    """Token of a service account that may read and write annotations; better as `token_file`."""
    ca_file: Path | None = None
    """File of certificate authorities in place of the usual ones."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long one request may take."""
    simulated: bool = True
    """Whether what happened to simulated GPUs is written too; it is tagged `simulated`."""

    @model_validator(mode="after")
    def _complete(self) -> Self:
        if self.url and not _URL.fullmatch(self.url):
            raise ValueError("url must start with https:// or http:// and hold neither a name nor a query")
        if self.url and not self.token.get_secret_value():
            raise ValueError("a token is needed: grafana.token_file names the file that holds it")
        return self
