"""The rare errors of healthy links and memory: each GPU at a rate of its own, with bad spells that lead to nothing."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from tocsin.domain.clock import DAY, HOUR
from tocsin.sim.inventory import Floats, Inventory, Stream, generator
from tocsin.sim.scenario import COUNTERS, InletHeat, NoiseEpisodes, Normal
from tocsin.sim.state import SimState

_ECC = tuple(
    f"gpu_ecc_{name}_total" for name in ("corrected_volatile", "corrected_aggregate", "dram_corrected_volatile")
)


@dataclass(frozen=True, slots=True)
class _Drawn:
    """Where bad spells begin in a step, how long and how bad they are; all of one shape."""

    begins: Floats
    hours: Floats
    size: Floats


def _draw(rng: np.random.Generator, shape: tuple[int, ...]) -> _Drawn:
    return _Drawn(rng.random(shape), rng.standard_exponential(shape), rng.standard_normal(shape))


class Background:
    """What happens to sound hardware. Its numbers never depend on what faults are active.

    `per_day` is each counter's usual rate per GPU (`symbols`: per link), float64[n].
    """

    def __init__(self, inventory: Inventory, normal: Normal, seed: int) -> None:
        size = len(inventory)
        rng = generator(seed, Stream.NORMAL)
        self._episodes: NoiseEpisodes = normal.episodes
        self._heat: InletHeat = normal.heat
        self._rack = inventory.rack
        self._seed = seed
        self.per_day: dict[str, Floats] = {
            name: (usual := getattr(normal.counters, name)).per_day * np.exp(usual.spread * rng.standard_normal(size))
            for name in COUNTERS
        }
        self._until_ms = np.zeros((len(COUNTERS), size))
        self._factor = np.ones((len(COUNTERS), size))
        racks = int(self._rack[-1]) + 1
        self._hot_until_ms = np.zeros(racks)
        self._hot_c = np.zeros(racks)

    def advance(self, state: SimState, step: int, start_ms: int, end_ms: int) -> Floats:
        """Count the errors of (`start_ms`, `end_ms`]; gives the degrees of hot air at each GPU's inlet."""
        days = (end_ms - start_ms) / DAY
        rng = generator(self._seed, Stream.BACKGROUND, step)
        factor = self._bad_episodes(rng, days, end_ms)
        counted = {
            name: rng.poisson(self.per_day[name] * factor[place] * days) * ~state.lost
            for place, name in enumerate(COUNTERS)
            if name not in {"symbols", "recoveries"}
        }
        self._count(state, counted)
        self._count_links(state, rng, factor, days)
        return self._hot_air(rng, days, end_ms)

    def _bad_episodes(self, rng: np.random.Generator, days: float, end_ms: int) -> Floats:
        episodes = self._episodes
        drawn = _draw(rng, self._until_ms.shape)
        over = self._until_ms <= end_ms
        begins = over & (drawn.begins < -np.expm1(-episodes.per_day * days))
        self._factor = np.where(over, 1.0, self._factor)
        self._until_ms[begins] = end_ms + (drawn.hours * episodes.hours * HOUR)[begins]
        self._factor[begins] = (episodes.growth * np.exp(episodes.spread * drawn.size))[begins]
        return self._factor

    def _count(self, state: SimState, counted: dict[str, Floats]) -> None:
        counters = state.counters
        for name in _ECC:
            counters[name] += counted["corrected"]
        counters["gpu_row_remap_correctable_total"] += counted["remaps"]
        worn = np.minimum(counted["remaps"], state.banks[:, 0])
        state.banks[:, 0] -= worn
        state.banks[:, 1] += worn
        counters["gpu_pcie_replay_total"] += counted["replays"]
        state.pcie_errors[:, 0] += counted["correctable"]
        state.pcie_errors[:, 3] += counted["retrainings"]
        counters["gpu_nvlink_crc_flit_errors_total"] += counted["crc_flit"]
        counters["gpu_nvlink_crc_data_errors_total"] += counted["crc_data"]

    def _count_links(self, state: SimState, rng: np.random.Generator, factor: Floats, days: float) -> None:
        alive = ~state.lost
        per_link = self.per_day["symbols"] * factor[COUNTERS.index("symbols")] * days
        state.link_symbols += rng.poisson(per_link[:, None], state.link_symbols.shape) * alive[:, None]
        recovered = rng.poisson(self.per_day["recoveries"] * factor[COUNTERS.index("recoveries")] * days) * alive
        for gpu in np.flatnonzero(recovered).tolist():
            link = (gpu * 7 + int(state.link_results[gpu, 0])) % state.link_recovery.shape[1]
            state.link_recovery[gpu, link] += recovered[gpu]
            state.link_replay[gpu, link] += 2.0 * recovered[gpu]
            state.link_results[gpu, 0] += recovered[gpu]

    def _hot_air(self, rng: np.random.Generator, days: float, end_ms: int) -> Floats:
        heat = self._heat
        drawn = _draw(rng, self._hot_c.shape)
        over = self._hot_until_ms <= end_ms
        begins = over & (drawn.begins < -np.expm1(-heat.spells_per_rack_day * days))
        self._hot_c = np.where(over, 0.0, self._hot_c)
        self._hot_until_ms[begins] = end_ms + (drawn.hours * heat.spell_hours * HOUR)[begins]
        self._hot_c[begins] = (heat.spell_c * np.abs(drawn.size).clip(0.0, 2.0))[begins]
        return np.asarray(self._hot_c[self._rack])
