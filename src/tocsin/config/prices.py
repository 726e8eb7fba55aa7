"""Settings of the page on cost: what is paid for GPUs and energy."""

from __future__ import annotations

from pydantic import Field, field_validator

from tocsin.config.section import Section
from tocsin.domain.usage import Prices


class PriceSettings(Section):
    """What is paid; where nothing is set, hours and kWh are shown without money (docs/dashboard.md)."""

    currency: str = Field(default="", max_length=10)
    """Name or sign of the currency, such as `EUR`; shown as it is."""
    gpu_hour: dict[str, float] = Field(default_factory=dict)
    """Price of a GPU-hour by a part of the model's name, as `{ H100 = 2.4, A100 = 1.3 }`; the longest part counts."""
    gpu_hour_default: float | None = Field(default=None, ge=0)
    """Price of a GPU-hour of every other model; unset: none."""
    kwh: float | None = Field(default=None, ge=0)
    """Price of a kWh; unset: none."""
    pue: float = Field(default=1.0, ge=1, le=5)
    """Energy of the facility for each kWh of the boards (power usage effectiveness)."""

    @field_validator("gpu_hour")
    @classmethod
    def _not_negative(cls, value: dict[str, float]) -> dict[str, float]:
        if any(price < 0 or not name for name, price in value.items()):
            raise ValueError("a price has a model's name and is not below 0")
        return value

    def prices(self) -> Prices:
        """The same for reckoning."""
        return Prices(self.currency, self.gpu_hour, self.gpu_hour_default, self.kwh, self.pue)
