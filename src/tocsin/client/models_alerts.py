"""Wire models of what an Alertmanager posts to a webhook (version 4 of its payload)."""

from __future__ import annotations

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field, JsonValue

MOST_ALERTS = 1_000
"""Alerts of one request; Alertmanager sends those of one group."""
_Text = Annotated[str, Field(max_length=1024)]


class _Foreign(BaseModel):
    """Another program's model: what it adds in later versions is passed over."""

    model_config = ConfigDict(extra="ignore", frozen=True, use_attribute_docstrings=True)


class ForeignAlert(_Foreign):
    """One alert."""

    status: Literal["firing", "resolved"]
    labels: dict[_Text, _Text] = Field(max_length=128)
    annotations: dict[_Text, Annotated[str, Field(max_length=16_384)]] = Field(default_factory=dict, max_length=128)
    starts_at: str = Field(alias="startsAt", max_length=64)
    fingerprint: str = Field(min_length=1, max_length=64)


class AlertmanagerWebhook(_Foreign):
    """One notification; each alert is judged by itself, so that a bad one costs no other."""

    version: Literal["4"]
    alerts: list[JsonValue] = Field(max_length=MOST_ALERTS)
