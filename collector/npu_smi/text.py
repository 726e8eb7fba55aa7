"""The text that npu-smi prints, which is all that it has: its table of cards, its lists of keys, its error codes.

Forms are those of releases 22 to 25 as public repositories quote them. What cannot be read is left out; nothing here
raises but `parse_info` for a text that is no such table.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

MOST_LINES = 4_000
MOST_CHIPS = 128
_MOST_CHARACTERS = 400
_TOKEN = re.compile(r"\S+\s*/\s*\S+|\S+")
_CODE = re.compile(r"(?<![0-9A-Za-z])(?:0[xX])?([0-9A-Fa-f]{8})(?![0-9A-Za-z])")


class NpuError(Exception):
    """What npu-smi printed cannot be used; the text says why."""


@dataclass(slots=True)
class NpuChip:
    """One chip of the table. `phy` is the number that the device plugin calls it by, None where it is not printed.

    `cells` are texts by head of the column, as `plain` writes it; of a usage `` used`` and `` total`` are two.
    `processes` are the memory of each process, as text in MB.
    """

    npu: int
    chip: int
    name: str
    health: str
    bus: str
    phy: int | None
    cells: dict[str, str] = field(default_factory=dict)
    processes: dict[int, str] = field(default_factory=dict)


def plain(key: str) -> str:
    """A key as it is compared: blanks and case differ between releases."""
    return "".join(key.lower().split())


def _lines(text: str) -> Iterator[str]:
    for line in text.splitlines()[:MOST_LINES]:
        yield line[:_MOST_CHARACTERS]


def _row(line: str) -> list[str]:
    """The cells of a line of a box table; none of a rule."""
    line = line.strip()
    return [cell.strip() for cell in line.strip("|").split("|")] if line.startswith("|") else []


def parse_info(text: str) -> list[NpuChip]:
    """The chips of ``npu-smi info``. Raises NpuError where it has no such table."""
    heads: list[list[str]] = []
    chips: list[NpuChip] = []
    first: list[str] | None = None
    processes = False
    for line in _lines(text):
        cells = _row(line)
        if len(cells) == 4 and "process id" in cells[1].lower():
            processes = True
        elif processes and len(cells) == 4:
            _add_process(chips, cells)
        elif len(cells) != 3 or processes:
            continue
        elif len(heads) < 2:
            heads += [cells] if _is_head(cells) else []
        elif first is None:
            first = cells
        else:
            if (chip := _chip(heads, first, cells)) is not None and len(chips) < MOST_CHIPS:
                chips.append(chip)
            first = None
    if len(heads) < 2:
        raise NpuError("it has no table of NPUs")
    return chips


def _is_head(cells: list[str]) -> bool:
    return cells[0].lower().startswith(("npu", "chip")) and any("(" in cell for cell in cells)


def _chip(heads: list[list[str]], first: list[str], second: list[str]) -> NpuChip | None:
    who, where = first[0].split(), second[0].split()
    if len(who) < 2 or not who[0].isdecimal() or not where or not where[0].isdecimal():
        return None
    phy = int(where[1]) if "phy" in heads[1][0].lower() and len(where) > 1 and where[1].isdecimal() else None
    chip = NpuChip(int(who[0]), int(where[0]), " ".join(who[1:]), first[1], second[1], phy)
    for head, row in ((heads[0][2], first[2]), (heads[1][2], second[2])):
        for name, value in zip(head.split(), _TOKEN.findall(row), strict=False):
            used, slash, total = value.partition("/")
            if slash:
                chip.cells[plain(f"{name} used")] = used.strip()
                chip.cells[plain(f"{name} total")] = total.strip()
            else:
                chip.cells[plain(name)] = value
    return chip


def _add_process(chips: list[NpuChip], cells: list[str]) -> None:
    who = cells[0].split()
    if len(who) != 2 or not all(word.isdecimal() for word in (*who, cells[1])):
        return
    for chip in chips:
        if (chip.npu, chip.chip) == (int(who[0]), int(who[1])):
            chip.processes[int(cells[1])] = cells[3]


def parse_keys(text: str) -> dict[str, str]:
    """Values of a list ``key : value`` by `plain` key, the first of each; a board's controller is left out."""
    found: dict[str, str] = {}
    board = False
    for line in _lines(text):
        key, colon, value = line.partition(":")
        if not colon:
            continue
        name = plain(key)
        if name in ("chipname", "chipid"):
            board = name == "chipname" and value.strip().lower() == "mcu"
        if not board:
            found.setdefault(name, value.strip())
    return found


def parse_mapping(text: str) -> dict[tuple[int, int], int]:
    """Logic number of each NPU and chip, from ``npu-smi info -m``; controllers of boards have none."""
    found: dict[tuple[int, int], int] = {}
    for line in _lines(text):
        words = line.split()
        if len(words) >= 4 and all(word.isdecimal() for word in words[:3]):
            found[int(words[0]), int(words[1])] = int(words[2])
    return found


def codes_of(text: str) -> list[str]:
    """The error codes in `text`, eight hexadecimal digits each, in capitals."""
    return list(dict.fromkeys(code.upper() for code in _CODE.findall(text[:_MOST_CHARACTERS])))
