"""NVLink: recoveries on one link, then the link goes down, and with it what its peers were doing."""

from __future__ import annotations

import numpy as np

from tocsin.domain.clock import SECOND
from tocsin.domain.event import EventKind
from tocsin.domain.finding import Severity
from tocsin.sim.faults.base import RESETS, FaultKind, FaultRun
from tocsin.sim.inventory import Ints, Inventory
from tocsin.sim.world import SimWorld, StepWindow


class NvlinkRecovery(FaultKind):
    """A cable, retimer or backplane connector goes bad."""

    kind = "nvlink_recovery"
    help = "recoveries on one NVLink, then XID 74, or 149 with 145 on every peer of the NVLink 5 domain"
    rises = frozenset({"recoveries", "symbols", "crc_flit", "crc_data"})
    cured_by = RESETS

    def objection(self, inventory: Inventory, gpu: int) -> str:
        return "" if inventory.model_of[gpu].nvlink_version else "the model has no NVLink; choose an SXM GPU"

    def touches(self, run: FaultRun, world: SimWorld) -> Ints:
        inventory = world.inventory
        return np.flatnonzero(inventory.domain == inventory.domain[run.gpu])

    def _link(self, run: FaultRun, world: SimWorld) -> int:
        if "link" not in run.base:
            run.base["link"] = float(run.rng.integers(world.inventory.model_of[run.gpu].nvlink_links))
        return int(run.base["link"])

    def warn(self, run: FaultRun, world: SimWorld, strength: float, window: StepWindow) -> None:
        state, gpu, link = world.state, run.gpu, self._link(run, world)
        state.effects.pinned[gpu] |= run.injected
        recoveries = self.more(run, world, "recoveries", "recoveries", strength, window)
        state.link_recovery[gpu, link] += recoveries
        state.link_replay[gpu, link] += float(run.rng.poisson(2.0 * recoveries))
        state.link_results[gpu, 0] += recoveries
        state.link_symbols[gpu, link] += self.more(run, world, "symbols", "symbols", strength, window)
        for name in ("crc_flit", "crc_data"):
            world.count(f"gpu_nvlink_{name}_errors_total", gpu, self.more(run, world, name, name, strength, window))

    def strike(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        state, gpu, link = world.state, run.gpu, self._link(run, world)
        state.link_up[gpu, link] = False
        if world.inventory.model_of[gpu].nvlink_version >= 5:
            state.link_results[gpu, 1] += 1.0
            self._strike_5(run, world, at_ms, link)
        else:
            self._strike_old(run, world, at_ms, link)
        world.kill_job(gpu, at_ms)

    def _strike_old(self, run: FaultRun, world: SimWorld, at_ms: int, link: int) -> None:
        world.xids(run.gpu, at_ms, [(74, f"NVLink: fatal error detected on link {link}"), (45, "Cleanup")])
        world.verdict(run.gpu, at_ms + 2 * SECOND, 1, "GPU Reset")
        peers = world.link_peers(run.gpu)
        if len(peers):
            peer = int(peers[run.rng.integers(len(peers))])
            world.xids(peer, at_ms + SECOND, [(74, f"NVLink: error reported by the remote end of link {link}")])

    def _strike_5(self, run: FaultRun, world: SimWorld, at_ms: int, link: int) -> None:
        world.xids(run.gpu, at_ms, [(149, f"NETIR_LINK_EVT Fatal XC0 i0 Link {link:02d}")])
        world.verdict(run.gpu, at_ms + SECOND, 1, "GPU Reset")
        for place, peer in enumerate(world.link_peers(run.gpu).tolist()):
            message = f"RLW_REMAP Nonfatal XC0 i0 Link {link:02d}"
            world.emit(EventKind.XID, peer, at_ms + 200 + 40 * place, 145, message, Severity.WARNING)

    def clear(self, run: FaultRun, world: SimWorld, at_ms: int) -> None:
        if run.onset_ms is not None:
            world.reset(run.gpu, at_ms)
