"""What the risk model works on; apart from it, so that whoever only names its inputs loads no model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.config.settings import StoreSettings
from tocsin.domain.reading import Gpu


@dataclass(frozen=True, slots=True)
class RiskInputs:
    """`store` to read from, `models` the folder of models, `state` the file that features are
    saved to between two starts (None: never). `warm_days` bounds what is read of the past where there is no state.
    `alarm_share` and `least` bound when the model warns, as in `RiskModel`."""

    store: StoreSettings
    models: Path
    state: Path | None = None
    warm_days: float = 30.0
    alarm_share: float = 0.001
    least: float = 0.0


@dataclass(frozen=True, slots=True)
class SeenGpus:
    """What the risk is asked of. `surplus` are the UUIDs of GPUs that are more than their hosts have, `slowed` those of
    which no risk is stated, as hardware slows them for heat; `repaired` has the instants of the newest proven repairs,
    by UUID; `unforeseen` the chance (0 to 1) within the model's horizon of faults that no sign foretells, by model,
    version and whether of simulated GPUs."""

    gpus: Sequence[Gpu]
    surplus: frozenset[str] = frozenset()
    repaired: Mapping[str, int] = field(default_factory=dict)
    unforeseen: Mapping[tuple[str, str, bool], float] = field(default_factory=dict)
    slowed: frozenset[str] = frozenset()


def repairs_of(gpus: Sequence[Gpu], repaired: Mapping[str, int]) -> dict[str, int]:
    """The instant of the newest repair of each of `gpus` that was repaired, or its host; `repaired` is by key of these,
    ``gpu:UUID`` or ``host:NAME``."""
    if not repaired:
        return {}
    found = {one.uuid: max(repaired.get(f"gpu:{one.uuid}", 0), repaired.get(f"host:{one.host}", 0)) for one in gpus}
    return {uuid: at_ms for uuid, at_ms in found.items() if at_ms}
