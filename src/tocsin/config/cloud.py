"""Settings of clouds: notices of an end to come, executors ``scale_webhook`` and ``aws_asg`` (docs/cloud.md)."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, SecretStr, model_validator

from tocsin.config.section import Section


class CloudSettings(Section):
    """Notices that the cloud is about to take this node away, read by the agent from its cloud's metadata service."""

    notices: Literal["off", "auto", "aws", "gcp", "azure"] = "off"
    """Whose notices are read; `auto` is the cloud that the firmware's tables name, none elsewhere."""
    poll_seconds: float = Field(default=5.0, gt=0)
    """Time between two looks; AWS and GCP give as little as 120 and 30 seconds."""
    timeout_seconds: float = Field(default=2.0, gt=0)
    """How long one request may take; the first to Azure may take two minutes and is waited for."""
    lead_seconds: float = Field(default=3600.0, gt=0)
    """Maintenance further away than this is notified as planned and moves no work yet."""
    aws_url: str = "http://169.254.169.254"
    """Metadata service of EC2."""
    gcp_url: str = "http://metadata.google.internal"
    """Metadata service of Compute Engine."""
    azure_url: str = "http://169.254.169.254"
    """Metadata service of Azure."""
    azure_vm: str = ""
    """Name of this machine in Azure's scheduled events; empty asks the metadata service."""


class ScaleBounds(Section):
    """How far a pool may grow and shrink."""

    min_gpus: int = Field(default=0, ge=0)
    """Fewest GPUs that are asked for."""
    max_gpus: int = Field(default=64, ge=1)
    """Most GPUs that are asked for."""
    step_gpus: int = Field(default=8, ge=1)
    """GPUs added or taken where a decision does not say how many: those of one node."""

    @model_validator(mode="after")
    def _agree(self) -> Self:
        if self.min_gpus > self.max_gpus:
            raise ValueError("min_gpus must not exceed max_gpus")
        return self


class ScaleWebhookSettings(Section):
    """Executor `scale_webhook`: tells an outside autoscaler how many GPUs a pool should have."""

    url: SecretStr = SecretStr("")
    """Receiver of the CloudEvents, a secret; empty: the number is in `tocsin_pool_gpus_wanted` alone, for KEDA."""
    secret: SecretStr = SecretStr("")
    """Key of the HMAC-SHA256 signature."""
    timeout_seconds: float = Field(default=5.0, gt=0)
    """How long one request may take."""
    attempts: int = Field(default=5, ge=1)
    """Tries before a delivery counts as failed."""
    pools: dict[str, ScaleBounds] = Field(default_factory=dict)
    """Pools that may be scaled, with their bounds."""


class AwsSettings(Section):
    """Executor `aws_asg`: EC2 Auto Scaling groups; credentials come from the environment as always with boto3."""

    region: str = ""
    """Region; empty takes boto3's own default."""
    groups: dict[str, list[str]] = Field(default_factory=dict)
    """Groups by pool: the first with room grows, the next where EC2 has no capacity for it; the last shrinks first."""
    honor_cooldown: bool = True
    """Whether a group's own cool-down is waited for."""
    gpus_per_node: int = Field(default=8, ge=1)
    """GPUs of one instance, for decisions that say how many GPUs."""
    max_nodes: int = Field(default=4, ge=1)
    """Most instances that one decision adds."""
    timeout_seconds: float = Field(default=10.0, gt=0)
    """How long one call may take."""
    endpoint_url: str = ""
    """Endpoint in place of AWS's own, such as a VPC endpoint's."""
    dry_run: bool = False
    """Look at the groups and say what would be asked for, without asking."""
