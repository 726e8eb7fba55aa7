"""Settings of the source `promql`: GPUs that a Prometheus-compatible server has scraped already."""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from typing import Annotated, Self

from pydantic import AfterValidator, Field, SecretStr, model_validator

from tocsin.config.section import Section
from tocsin.plugins import Kind, known

_URL = re.compile(r"https?://[^\s/@?#]+(/[^\s?#]*)?")
ExporterName = Annotated[str, AfterValidator(partial(known, Kind.EXPORTER))]


class PromqlSettings(Section):
    """GPUs that the brain reads from Prometheus, VictoriaMetrics, Thanos or Mimir (docs/promql.md)."""

    url: str = ""
    """Base URL of the server, such as `http://prometheus:9090`; empty: the brain reads none."""
    token: SecretStr = SecretStr("")
    """Bearer token; better as `token_file`."""
    headers: dict[str, SecretStr] = Field(default_factory=dict, max_length=16)
    """Further headers, as `{ X-Scope-OrgID = "site" }` of Mimir."""
    ca_file: Path | None = None
    """File of certificate authorities in place of the usual ones."""
    certificate: Path | None = None
    """PEM file of the certificate that the brain shows to the server (mTLS); unset: none."""
    key: Path | None = None
    """PEM file of its key."""
    selector: str = ""
    """Label selector that all series must match, such as `{cluster="a"}`; empty: all."""
    exporters: list[ExporterName] = Field(
        default_factory=lambda: ["dcgm_exporter", "nvidia_gpu_exporter", "amd"], max_length=16
    )
    """Exporters whose metrics are read, plug-ins of the kind `exporter`."""
    mapping_file: Path | None = None
    """TOML file that maps the metrics and labels of one more exporter (docs/promql.md)."""
    every_seconds: float = Field(default=15.0, ge=1, le=300)
    """Time between two queries."""
    lookback_seconds: float = Field(default=90.0, ge=5, le=300)
    """How far back samples are asked for: at least the scrape interval and what the server is late. Samples keep the
    time at which they were scraped."""
    timeout_seconds: float = Field(default=10.0, gt=0, le=120)
    """How long one answer may take."""
    max_answer_bytes: int = Field(default=32 * 1024 * 1024, ge=1024, le=256 * 1024 * 1024)
    """Most bytes of one answer; what would be more is asked for in parts."""
    max_series: int = Field(default=2_000_000, ge=1)
    """Most series of one round; what is beyond is left out, and counted."""
    host_labels: list[str] = Field(default_factory=list, max_length=8)
    """Labels that name the host, tried before those of the exporter, `node` and `instance`."""
    pool_label: str = ""
    """Label that names the pool of a GPU; without it the pool is `pool`."""
    pool: str = "default"
    """Pool of GPUs whose series name none."""
    rack_label: str = ""
    """Label that names the failure domain above the node."""
    gpu_labels: list[str] = Field(default_factory=list, max_length=16)
    """Labels that become labels of the GPU, for scopes of rules and for opting in to actions."""

    @model_validator(mode="after")
    def _consistent(self) -> Self:
        if self.url and not _URL.fullmatch(self.url):
            raise ValueError("url must start with https:// or http:// and hold neither a name nor a query")
        if self.url and not self.exporters and self.mapping_file is None:
            raise ValueError("exporters is empty: name one, or a mapping_file")
        if self.lookback_seconds < self.every_seconds:
            raise ValueError("lookback_seconds must not be less than every_seconds: samples would be lost between")
        if (self.certificate is None) is not (self.key is None):
            raise ValueError("certificate and key belong together")
        return self
