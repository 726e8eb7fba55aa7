"""Hosts that say what no GPU of their model can show, and surplus GPUs: nobody's peers in rules."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np

from tocsin.domain.model_limits import RANGED, highest_shown
from tocsin.rules.frame import FrameRows
from tocsin.rules.peer_values import sound
from tocsin.rules.sheet import Sheet
from tocsin.rules.table import Bools, Floats


class PeerScreen:
    """Judges the newest values of all rows of the GPU table."""

    def __init__(self, roster: FrameRows, sheet: Sheet) -> None:
        self._roster = roster
        self._sheet = sheet
        self._metrics = [name for name in RANGED if name in sheet.names]
        self._version = -1
        self._highest: Floats = np.empty((0, 0))

    def counted(self, surplus: Collection[str]) -> Bools:
        """Which rows count among the peers of others, shape (rows,); `surplus` are GPUs that no host has."""
        self._refresh()
        columns = (self._sheet.values.v[self._sheet.names.index(name)] for name in self._metrics)
        counted = sound(zip(columns, self._highest, strict=True), self._roster.host.v)
        rows = self._roster.table.rows
        counted[[rows[uuid] for uuid in surplus if uuid in rows]] = False
        return counted

    def _refresh(self) -> None:
        if self._version == self._roster.version:
            return
        self._version = self._roster.version
        models = {gpu.model for gpu in self._roster.gpus}
        for_model = {model: [highest_shown(model, name) for name in self._metrics] for model in models}
        table = [for_model[gpu.model] for gpu in self._roster.gpus]
        self._highest = np.array(table, dtype=np.float64).reshape(len(table), len(self._metrics)).T
