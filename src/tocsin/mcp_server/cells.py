"""The cells of a fleet as the tools see them: all are asked, and what is about one thing is asked where it is."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TypeVar

from tocsin.client.client import Client
from tocsin.client.errors import Denied, NotFound
from tocsin.client.models_cells import WholeFleet
from tocsin.client.whole import missing
from tocsin.domain.errors import Unavailable
from tocsin.mcp_server.answers import FEW_ITEMS, plain

T = TypeVar("T")


class Cells:
    """The cells that the brain behind `client` knows."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def several(self) -> bool:
        """Whether the fleet has more than one; a brain of the version before knows none. Raises TocsinError."""
        return len(self._names()) > 1

    def everywhere(self, ask: Callable[[Client], T]) -> list[tuple[str, T]]:
        """What the cells answer that know of it, the brain's own first, with their names; one where it is all there is.

        Raises NotFound where none knows of it, and names the cells that did not answer.
        """
        names = self._names()
        if len(names) < 2:
            return [("", ask(self._client))]
        found: list[tuple[str, T]] = []
        unknown, silent = NotFound("no cell knows of it"), list[str]()
        for name in names:
            try:
                found.append((name, ask(self._client.at(name))))
            except NotFound as error:
                unknown = error
            except (Unavailable, Denied):
                silent.append(name)
        if not found:
            lacking = f"; cell {', '.join(silent)} did not answer" if silent else ""
            raise NotFound(f"{unknown}{lacking}")
        return found

    def _names(self) -> Sequence[str]:
        """By name, the brain's own first; none where it is the whole fleet."""
        try:
            known = self._client.cells()
        except (NotFound, Denied):
            return ()
        return [one.name for one in sorted(known, key=lambda one: (not one.own, one.name))]


def gone(whole: WholeFleet) -> list[str]:
    """What an answer says of the cells that did not answer."""
    return [plain(f"{one.cell}: {one.state}: {one.detail}") for one in missing(whole)[:FEW_ITEMS]]
