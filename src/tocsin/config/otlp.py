"""Settings of what the agent sends by OTLP (docs/push.md)."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Self

from pydantic import Field, SecretStr, model_validator

from tocsin.config.section import Section

_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")


class OtlpSettings(Section):
    """Metrics that the agent sends to an OpenTelemetry Collector, or to anything else that takes OTLP/HTTP."""

    url: str = ""
    """Where metrics are posted, such as `http://collector:4318/v1/metrics`; empty: nothing is sent."""
    headers: dict[str, SecretStr] = Field(default_factory=dict, max_length=16)
    """Headers of each request, as `{ Authorization = "Bearer ..." }`."""
    ca_file: Path | None = None
    """File of certificate authorities in place of the system's."""
    every_seconds: float = Field(default=15.0, ge=1, le=3600)
    """Time between two requests; each has the newest reading of every GPU."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=60)
    """How long one step of a request may take."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.url and not _URL.fullmatch(self.url):
            raise ValueError("url must start with https:// or http:// and hold neither a name nor a query")
        return self
