"""What the pages of usage, cost, versions, fragmentation, audit and the scoreboard ask: one cell, or all as one."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TypeVar

from tocsin.client.client import Client
from tocsin.client.models import JournalPage, JournalQuery, Scoreboard
from tocsin.client.models_capacity import CostOut, FragmentationOut, Planner, PlansOut
from tocsin.client.models_cells import (
    WholeCost,
    WholeDrift,
    WholeFleet,
    WholeFragmentation,
    WholeJournal,
    WholePlans,
    WholeRecords,
    WholeReport,
    WholeRightSize,
    WholeScoreboard,
    WholeUsage,
)
from tocsin.client.models_drift import DriftOut
from tocsin.client.models_report import MorningReport
from tocsin.client.models_rules import RuleRecord
from tocsin.client.models_usage import RightSizeOut, UsageBy, UsageOut
from tocsin.client.whole_cost import whole_cost
from tocsin.client.whole_drift import whole_drift
from tocsin.client.whole_fragmentation import whole_fragmentation
from tocsin.client.whole_score import whole_records, whole_scoreboard
from tocsin.client.whole_usage import whole_right_size, whole_usage
from tocsin.dashboard import cells
from tocsin.dashboard.access import chosen_cell, is_tenant

T = TypeVar("T", bound=WholeFleet)

# Each gives the answer, and what each cell said where all of them are shown. They raise as the client does, and
# Unavailable where no cell answers.


def _of_all_work() -> bool:
    """Whether usage is that of all cells: a tenant is shown no cells, and reads its own work in all of them."""
    return cells.spans() or (is_tenant() and not chosen_cell())


def _of_several(found: T) -> T | None:
    """Where a tenant's fleet is one cell there is nothing to say of cells."""
    return found if len(found.cells) > 1 else None


def usage_of(
    client: Client, start: str, end: str, by: Sequence[UsageBy], most: int
) -> tuple[UsageOut, WholeUsage | None]:
    """Usage of the days of [`start`, `end`), the `most` largest groups."""
    if not _of_all_work():
        return client.usage(start, end, by, most), None
    found = client.cells_usage(start, end, by, most)
    return whole_usage(cells.answered(found, found.answers), most), _of_several(found)


def right_size_of(client: Client, start: str, end: str, most: int) -> tuple[RightSizeOut, WholeRightSize | None]:
    """Jobs of these days that less would have done for, `most` of them."""
    if not _of_all_work():
        return client.right_size(start, end, most), None
    found = client.cells_right_size(start, end, most)
    return whole_right_size(cells.answered(found, found.answers), most), _of_several(found)


def cost_of(client: Client, start_ms: int, end_ms: int) -> tuple[CostOut, WholeCost | None]:
    """Usage and cost of the whole hours of [`start_ms`, `end_ms`)."""
    if not cells.spans():
        return client.cost(start_ms, end_ms), None
    found = client.cells_cost(start_ms, end_ms)
    return whole_cost(cells.answered(found, found.answers)), found


def drift_of(client: Client) -> tuple[DriftOut, WholeDrift | None]:
    """Versions of like hosts."""
    if not cells.spans():
        return client.drift(), None
    found = client.cells_drift()
    return whole_drift(cells.answered(found, found.answers)), found


def fragmentation_of(client: Client, most: int) -> tuple[FragmentationOut, WholeFragmentation | None]:
    """Free GPUs and MIG layouts now, the worst `most` of each list."""
    if not cells.spans():
        return client.fragmentation(most), None
    found = client.cells_fragmentation(most)
    return whole_fragmentation(cells.answered(found, found.answers), most), found


def plans_of(client: Client, planner: Planner) -> tuple[Mapping[str, PlansOut], WholePlans | None]:
    """What a planner would do, by cell; under an empty name where one cell is shown."""
    if not cells.spans():
        return {"": client.plan(planner)}, None
    found = client.cells_plan(planner)
    return cells.answered(found, found.answers), found


def journal_of(
    client: Client, query: JournalQuery, before: Mapping[str, int], most: int
) -> tuple[Mapping[str, JournalPage], WholeJournal | None]:
    """Entries of each cell below its number in `before`, `most` of each; under an empty name where one is shown."""
    if not cells.spans():
        return {"": client.journal_page(query, before.get(""), most)}, None
    found = client.cells_journal(query, before, most)
    return cells.answered(found, found.answers), found


def scoreboard_of(client: Client) -> tuple[Scoreboard, WholeScoreboard | None]:
    """What would have been done, and how often it would have been right."""
    if not cells.spans():
        return client.scoreboard(), None
    found = client.cells_scoreboard()
    return whole_scoreboard(cells.answered(found, found.answers)), found


def records_of(client: Client) -> tuple[list[RuleRecord], WholeRecords | None]:
    """The record of every rule; of several cells each cell's."""
    if not cells.spans():
        return client.rule_records(), None
    found = client.cells_rules()
    return whole_records(found.answers), found


def reports_of(client: Client) -> tuple[Mapping[str, MorningReport], WholeReport | None]:
    """The morning report by cell; under an empty name where one cell is shown."""
    if not cells.spans():
        return {"": client.morning_report()}, None
    found = client.cells_report()
    return found.answers, found
