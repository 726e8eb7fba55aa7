"""What every condition on events shares: a probe that holds where a spell of them goes on."""

from __future__ import annotations

import numpy as np

from tocsin.rules.conditions.base import Probe
from tocsin.rules.episodes import Episodes
from tocsin.rules.table import Bools, Ints


class EpisodeProbe(Probe):
    """Reads the spells; always known. A condition adds what it reports of one."""

    clocked = True

    def __init__(self, spells: Episodes) -> None:
        self._spells = spells

    def update(self) -> None:
        self._spells.update()

    def true(self) -> Bools:
        return self._spells.on

    def known(self) -> Bools:
        return np.ones(self._spells.on.shape, dtype=np.bool_)

    def since(self) -> Ints | None:
        return self._spells.since
