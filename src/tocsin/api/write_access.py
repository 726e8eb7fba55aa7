"""Who may say what by telemetry: agents write readings and events alone, a node of itself alone, a cell's own hosts."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from tocsin.api.errors import ApiError
from tocsin.api.principal import Principal
from tocsin.api.service import CellService
from tocsin.client.moved import MISDIRECTED, OTHER_CELL
from tocsin.config.access import Role

OwnerAgainst = Callable[[str, str], str]
"""Which other node than the one named second reports the GPU named first; empty where none does."""

_TELEMETRY = frozenset({"gpu", "gpu_missing", "gpu_info", "gpu_owner", "gpu_event"})


def foreign(who: Principal, host: str, gpus: Iterable[str], owner_against: OwnerAgainst) -> str:
    """Why `who` may not write for `host` and `gpus` on it; empty where that may be."""
    if not who.hosts and who.role is not Role.AGENT:
        return ""
    if not who.speaks_for(host):
        return f"{who.name} may not write for host {host[:100]!r}"
    for reported in (owner_against(gpu, host) for gpu in gpus):
        if reported and not who.speaks_for(reported):
            return f"{who.name} may not write for a GPU that host {reported[:100]!r} reports"
    return ""


def other_cell(host: str, cell: str, url: str) -> ApiError:
    """That `host` is another cell's, and where that is reached."""
    message = f"host {host[:100]!r} belongs to cell {cell}: its brain is at {url}"
    return ApiError(MISDIRECTED, OTHER_CELL, message, {"host": host[:100], "cell": cell, "url": url})


def not_assigned(host: str) -> ApiError:
    """That `host` is no cell's by what is set, and this one does not take it from its own."""
    return ApiError(MISDIRECTED, "not_assigned", f"host {host[:100]!r} is not assigned to this cell")


class WriteAccess:
    """Says of each line of one body why `who` may not say it, as the decoder asks.

    A prediction or a finding of an agent's would be acted on, and a GPU cannot be taken over by another node's
    certificate or token: the lines of a MIG instance belong to the host of its GPU, so both names are looked up. Where
    it is to be `sure`, asking for a host that is nobody's raises ApiError: whose own cell does not answer for a while
    must not become this one's by asking here.
    """

    def __init__(
        self, who: Principal, owner_against: OwnerAgainst, cells: CellService | None = None, *, sure: bool = False
    ) -> None:
        self._who, self._owner_against, self._sure = who, owner_against, sure
        self._telemetry_alone = bool(who.hosts) or who.role is Role.AGENT
        self._cells = cells if cells is not None and (sure or cells.assigned()) else None
        self._known: dict[tuple[str, tuple[str, ...]], str] = {}
        self.elsewhere: tuple[str, str, str] | None = None
        """The last host that was another cell's, that cell and its URL."""

    def __call__(self, measurement: str, host: str, uuids: tuple[str, ...]) -> str:
        if self._telemetry_alone and measurement not in _TELEMETRY:
            return f"{self._who.name} may write readings and events alone"
        if (problem := self._known.get((host, uuids))) is None:
            problem = foreign(self._who, host, uuids, self._owner_against) or self._misdirected(host)
            self._known[host, uuids] = problem
        return problem

    def _misdirected(self, host: str) -> str:
        if self._cells is None or not host:
            return ""
        home = self._cells.elsewhere(host)
        if home is None:
            if self._sure and not self._cells.has(host):
                raise not_assigned(host)
            return ""
        self.elsewhere = host, *home
        return f"host {host[:100]!r} belongs to cell {home[0]}: push it to {home[1]}"
