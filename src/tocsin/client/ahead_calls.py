"""The client's methods for what lies ahead, fragmentation, plans and cost."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from typing import TypeVar

from tocsin.client.models_cost import CostOut
from tocsin.client.models_forecast import CapacityOut, ForecastOut
from tocsin.client.models_fragmentation import FragmentationOut, Planner, PlansOut
from tocsin.domain.clock import to_iso

T = TypeVar("T")


class AheadCalls(ABC):
    """Part of `tocsin.client.client.Client`, which sends and reads."""

    @abstractmethod
    def _get(self, kind: type[T], path: str, params: Mapping[str, str | int | Sequence[str]] | None = None) -> T: ...

    def forecast(self, limit: int = 20) -> ForecastOut:
        """Risks of faults, memory that runs full and fragmentation that grows: the most urgent `limit` of each."""
        return self._get(ForecastOut, "/v1/forecast", {"limit": limit})

    def capacity(self) -> CapacityOut:
        """Pools and the fleet's fragmentation a week ahead. Raises Unavailable while it is worked out."""
        return self._get(CapacityOut, "/v1/forecast/capacity")

    def fragmentation(self, limit: int = 20) -> FragmentationOut:
        """Free GPUs and MIG layouts now, the worst `limit` of each list."""
        return self._get(FragmentationOut, "/v1/fragmentation", {"limit": limit})

    def plan(self, planner: Planner) -> PlansOut:
        """What a planner would do now, without doing it. Raises Unavailable while it is worked out."""
        return self._get(PlansOut, f"/v1/plan/{planner}")

    def cost(self, start_ms: int | None = None, end_ms: int | None = None) -> CostOut:
        """Usage and cost in whole hours of [`start_ms`, `end_ms`); by default the last 24 hours."""
        given = {"start": start_ms, "end": end_ms}
        return self._get(CostOut, "/v1/cost", {name: to_iso(at) for name, at in given.items() if at is not None})
