"""Reads machines of the SMD and ASD sets: one ``.npz`` each with ``train`` [n, m], ``test`` [k, m], ``label`` [k]."""

from __future__ import annotations

import zipfile
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from tocsin.domain.clock import MINUTE
from tocsin.domain.errors import InputError
from tocsin.forecaster.features.examples import Floats, Mask

SMD, ASD = "SMD", "ASD"
STEP_MS = {SMD: MINUTE, ASD: 5 * MINUTE}
_PREFIX = {"machine-": SMD, "omi-": ASD}
_METRICS = {38: SMD, 19: ASD}
"""Tells a set where a file's name does not."""
PARTS = ("train", "test", "label")


@dataclass(frozen=True, slots=True)
class Machine:
    """One server. `train` float64[n, m] has no labels, `label` bool[k] belongs to `test` float64[k, m]."""

    name: str
    family: str
    train: Floats
    test: Floats
    label: Mask

    @property
    def step_ms(self) -> int:
        return STEP_MS[self.family]


def read_machines(folder: Path) -> list[Machine]:
    """All machines in `folder` and below, by name. Raises InputError where there is none or one cannot be used."""
    paths = sorted(folder.rglob("*.npz"))
    if not paths:
        raise InputError("folder", str(folder), "holds no .npz file", "name a folder with SMD or ASD machines")
    return [read_machine(path) for path in paths]


def read_machine(path: Path) -> Machine:
    """One file. Raises InputError where a part is missing or the shapes do not fit."""
    try:
        with np.load(path, allow_pickle=False) as held:
            missing = [name for name in PARTS if name not in held.files]
            if missing:
                raise _unusable(path, f"has no array {', '.join(missing)}")
            train, test, label = (np.asarray(held[name]) for name in PARTS)
    except (OSError, ValueError, zipfile.BadZipFile) as error:
        raise _unusable(path, f"cannot be read: {error}") from None
    label = label.reshape(-1)
    if train.ndim != 2 or test.ndim != 2 or train.shape[1] != test.shape[1] or len(test) != label.size:
        raise _unusable(path, f"has shapes {train.shape}, {test.shape}, {label.shape}")
    family = _family(path, train.shape[1])
    return Machine(path.stem, family, train.astype(np.float64), test.astype(np.float64), label > 0)


def _family(path: Path, metrics: int) -> str:
    for prefix, family in _PREFIX.items():
        if path.stem.startswith(prefix):
            return family
    if metrics not in _METRICS:
        raise _unusable(path, f"has {metrics} metrics, so that its cadence is not known")
    return _METRICS[metrics]


def _unusable(path: Path, problem: str) -> InputError:
    return InputError("file", str(path), problem, "give train [n, m], test [k, m] and label [k] of SMD or ASD")
