"""What the risk model works on; apart from it, so that whoever only names its inputs loads no model."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from tocsin.config.settings import StoreSettings
from tocsin.domain.reading import Gpu


@dataclass(frozen=True, slots=True)
class RiskInputs:
    """`store` to read from, `models` the folder of models, `state` the file that features are
    saved to between two starts (None: never). `warm_days` bounds what is read of the past where there is no state."""

    store: StoreSettings
    models: Path
    state: Path | None = None
    warm_days: float = 30.0
    alarm_share: float = 0.001


@dataclass(frozen=True, slots=True)
class SeenGpus:
    """What the risk is asked of. `surplus` are the UUIDs of GPUs that are more than their hosts have."""

    gpus: Sequence[Gpu]
    surplus: frozenset[str] = frozenset()
