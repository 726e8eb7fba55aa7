"""A fleet whose versions differ, roll out, are mixed and are missing, judged as the brain does it."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.client.models_drift import DriftOut
from tocsin.domain.clock import to_iso
from tocsin.domain.reading import Gpu, Reading
from tocsin.domain.version_standing import LEAST_HOSTS, MOST_SHARE
from tocsin.domain.versions import COMPONENTS, MISSING_LABEL, Standing, VersionBefore, missing_text
from tocsin.queries.drift import drift_groups

H100, L40S = "NVIDIA H100 80GB HBM3", "NVIDIA L40S"
NEW, OLD = "580.95.05", "550.163.01"


def _host(name: str, pool: str, model: str, *, simulated: bool, **versions: str) -> list[Gpu]:
    known = {
        "driver": NEW,
        "gsp_firmware": NEW,
        "cuda_driver": "13.0",
        "kernel": "6.8.0-79-generic",
        "vbios": "96.00.A5.00.01",
        "nic_firmware": "28.43.2026",
        "container_toolkit": "1.17.8",
    } | versions
    labels = {COMPONENTS[key].label: version for key, version in known.items() if version}
    labels[MISSING_LABEL] = missing_text({"nccl": "no library", "cudnn": "no library"})
    return [Gpu(f"GPU-{name}-{n}", name, n, model, pool=pool, labels=labels, simulated=simulated) for n in range(2)]


def drift(now_ms: int, pool: str, components: Sequence[str], *, simulated: bool = False) -> DriftOut:
    """16 hosts of which one has an old driver and one another VBIOS, 8 in the middle of a roll-out, and two more."""
    gpus: list[Gpu] = []
    before: list[VersionBefore] = []
    for n in range(16):
        odd = {"driver": OLD, "gsp_firmware": OLD, "cuda_driver": "12.4"} if n == 11 else {}
        odd |= {"vbios": "96.00.89.00.04"} if n == 3 else {}
        gpus += _host(f"train-{n:02d}", "training", H100, simulated=simulated, **odd)
    for n in range(8):
        rolled = n < 3
        kernel = "6.8.0-85-generic" if rolled else "6.8.0-79-generic"
        gpus += _host(f"serve-{n:02d}", "inference", L40S, simulated=simulated, kernel=kernel, vbios="95.02.18.80.01")
        if rolled:
            before.append(VersionBefore(f"serve-{n:02d}", L40S, "kernel", "6.8.0-79-generic"))
    for n in range(2):
        gpus += _host(f"lab-{n}", "lab", L40S, simulated=simulated, driver=(OLD, NEW)[n])
    readings = [Reading(gpu, now_ms, {}) for gpu in gpus]
    limits = dict.fromkeys(COMPONENTS, (LEAST_HOSTS, MOST_SHARE))
    groups = drift_groups(readings, before, limits, pool, components or list(COMPONENTS))
    shown = [one for group in groups for one in group.components]
    return DriftOut(
        at=to_iso(now_ms),
        simulated=simulated,
        drifting=sum(one.standing is Standing.DRIFT and not one.because for one in shown),
        rolling_out=sum(one.standing is Standing.ROLLOUT for one in shown),
        least_hosts=LEAST_HOSTS,
        groups=groups,
    )
