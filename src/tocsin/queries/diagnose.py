"""Diagnoses of the running fleet: what the store has of the last hour, and who works where."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.reading import Reading
from tocsin.forecaster.diagnosis.fleet import PAST_METRICS, PAST_MS, STAGE_METRICS, STAGE_MS, Inputs, diagnose
from tocsin.store.port import Store


def diagnose_fleet(store: Store, latest: Sequence[Reading], now_ms: int, host: str = "") -> list[Diagnosis]:
    """Diagnose the GPUs of `latest`, or those on `host`; a job keeps only its GPUs there.

    Raises StoreUnavailable.
    """
    chosen = [reading for reading in latest if not host or reading.gpu.host == host]
    gpus = [reading.gpu for reading in chosen]
    uuids = [gpu.uuid for gpu in gpus]
    return diagnose(
        Inputs(
            now_ms,
            gpus,
            {reading.gpu.uuid: reading.owners for reading in chosen},
            store.columns(STAGE_METRICS, now_ms - STAGE_MS, now_ms + 1, uuids),
            store.columns(PAST_METRICS, now_ms - PAST_MS, now_ms + 1, uuids),
        )
    )
