"""Prices by a file: what a GPU-hour of a model and kind of capacity costs from a day on, and a kWh."""

from __future__ import annotations

import csv
import io
import math
from bisect import bisect_right
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from tocsin.domain.clock import DAY, from_iso
from tocsin.domain.errors import InputError
from tocsin.domain.usage import Prices

MOST_BYTES = 1024 * 1024
MOST_ROWS = 5_000
KINDS = ("on_demand", "reserved", "spot", "own")
COLUMNS = ("model", "kind", "gpu_hour", "kwh", "pue", "currency", "valid_from")
"""A row has the price of a GPU-hour, or that of a kWh; `valid_from` is a day, empty: always."""


@dataclass(frozen=True, slots=True)
class EnergyPrice:
    """Of a kWh of the facility, and the facility's kWh for each kWh of the boards."""

    kwh: float
    pue: float = 1.0


@dataclass(frozen=True, slots=True)
class PriceList:
    """`hours` are (part of a model's name, kind of capacity, first day, price), `energy` (first day, price) by day.

    An empty kind is any kind, an empty model any model.
    """

    currency: str = ""
    hours: tuple[tuple[str, str, int, float], ...] = ()
    energy: tuple[tuple[int, EnergyPrice], ...] = ()
    _found: dict[tuple[str, str, int], float | None] = field(default_factory=dict, compare=False)

    def gpu_hour(self, model: str, kind: str, day: int) -> float | None:
        """The price on a day, None where there is none.

        Of the rows that fit, those with the longest part of the name count, of these one of the kind itself goes before
        one of any kind, and of these the newest.
        """
        key = (model, kind, day)
        if key not in self._found:
            fitting = [
                (len(part), bool(of), first, price)
                for part, of, first, price in self.hours
                if part.lower() in model.lower() and of in ("", kind) and first <= day
            ]
            self._found[key] = max(fitting)[3] if fitting else None
        return self._found[key]

    def kwh(self, day: int) -> EnergyPrice | None:
        """The price of energy on a day; None where there is none."""
        place = bisect_right([first for first, _ in self.energy], day)
        return self.energy[place - 1][1] if place else None


def price_list_of(settings: Prices, of_file: PriceList | None) -> PriceList:
    """The prices of the file; where none is set, or it has none of energy, those of the settings."""
    kwh = settings.kwh
    energy = () if kwh is None else ((0, EnergyPrice(kwh, settings.pue)),)
    if of_file is not None:
        return PriceList(of_file.currency or settings.currency, of_file.hours, of_file.energy or energy)
    hours = tuple((name, "", 0, price) for name, price in settings.gpu_hour.items())
    default = settings.gpu_hour_default
    return PriceList(settings.currency, hours if default is None else (*hours, ("", "", 0, default)), energy)


def read_prices(path: Path) -> PriceList:
    """The prices of the file at `path`. Raises InputError, which names line, column, value and remedy."""
    try:
        if path.stat().st_size > MOST_BYTES:
            problem = f"the file has more than {MOST_BYTES >> 20} MiB"
            raise InputError("usage.price_file", str(path), problem, "leave out the rows of days that nobody asks for")
        text = path.read_bytes().decode("utf-8-sig")
    except OSError as error:
        problem = error.strerror or str(error)
        raise InputError("usage.price_file", str(path), problem, "give a file that can be read") from None
    except UnicodeDecodeError as error:
        raise InputError("usage.price_file", str(path), f"no UTF-8 at byte {error.start}", "save it as UTF-8") from None
    return parse_prices(text, path.name)


def parse_prices(text: str, name: str) -> PriceList:
    """As `read_prices`, of the text of a file that errors call `name`."""
    rows = csv.reader(io.StringIO(text), strict=True)
    parser = _Parser(name)
    try:
        for cells in rows:
            if any(cell.strip() for cell in cells) and not cells[0].lstrip().startswith("#"):
                parser.take([cell.strip() for cell in cells], rows.line_num)
    except csv.Error as error:
        raise _error(name, rows.line_num, "row", "", f"no CSV: {error}", "mend the quotes of that row") from None
    return parser.done()


def _error(name: str, line: int, column: str, value: object, problem: str, remedy: str) -> InputError:
    return InputError(f"{name}, line {line}, {column}", value, problem, remedy)


class _Parser:
    """One file, row by row."""

    def __init__(self, name: str) -> None:
        self._name = name
        self._columns: Sequence[str] = ()
        self._currency: tuple[str, int] | None = None
        self._hours: dict[tuple[str, str, int], tuple[float, int]] = {}
        self._energy: dict[int, tuple[EnergyPrice, int]] = {}

    def take(self, cells: Sequence[str], line: int) -> None:
        """Take in one row; the first is the header."""
        if not self._columns:
            self._columns = self._header(cells, line)
            return
        if len(self._hours) + len(self._energy) >= MOST_ROWS:
            raise self._wrong(line, "row", "", f"more than {MOST_ROWS} rows", "leave out old ones")
        if len(cells) != len(self._columns):
            problem = f"{len(cells)} cells for {len(self._columns)} columns"
            raise self._wrong(line, "row", ",".join(cells), problem, "give every row as many cells as the header has")
        row = dict(zip(self._columns, cells, strict=True))
        self._take_currency(row.get("currency", ""), line)
        day = self._day(row.get("valid_from", ""), line)
        if bool(row.get("gpu_hour")) == bool(row.get("kwh")):
            raise self._wrong(line, "gpu_hour", row.get("gpu_hour", ""), "a row has gpu_hour or kwh", "fill in one")
        if row.get("gpu_hour"):
            self._take_hour(row, day, line)
        else:
            self._take_energy(row, day, line)

    def done(self) -> PriceList:
        """The prices. Raises InputError for a file without any row."""
        if not self._columns:
            raise self._wrong(1, "row", "", "the file has no header", f"begin with {','.join(COLUMNS)}")
        hours = tuple((*key, price) for key, (price, _) in self._hours.items())
        energy = tuple((day, one) for day, (one, _) in sorted(self._energy.items()))
        return PriceList("" if self._currency is None else self._currency[0], hours, energy)

    def _wrong(self, line: int, column: str, value: object, problem: str, remedy: str) -> InputError:
        return _error(self._name, line, column, value, problem, remedy)

    def _header(self, cells: Sequence[str], line: int) -> Sequence[str]:
        for column in cells:
            if column not in COLUMNS:
                raise self._wrong(line, "column", column, "no such column", f"take some of {', '.join(COLUMNS)}")
            if list(cells).count(column) > 1:
                raise self._wrong(line, "column", column, "it is there twice", "leave one of them out")
        if not {"gpu_hour", "kwh"} & set(cells):
            raise self._wrong(line, "column", ",".join(cells), "neither gpu_hour nor kwh is there", "add gpu_hour")
        return tuple(cells)

    def _take_currency(self, value: str, line: int) -> None:
        if not value:
            return
        if len(value) > 10 or not value.isprintable():
            raise self._wrong(line, "currency", value, "no name of 1 to 10 letters", "write it as EUR")
        if self._currency is not None and value != self._currency[0]:
            problem = f"line {self._currency[1]} has {self._currency[0]}"
            raise self._wrong(line, "currency", value, problem, "give all prices in one currency")
        self._currency = self._currency or (value, line)

    def _day(self, value: str, line: int) -> int:
        if not value:
            return 0
        try:
            at_ms = from_iso(value) if len(value) == 10 else -1  # YYYY-MM-DD
        except (ValueError, OverflowError):
            at_ms = -1
        if at_ms < 0:
            raise self._wrong(line, "valid_from", value, "is no day from 1970 on", "write it as 2026-01-31")
        return at_ms // DAY

    def _amount(self, row: Mapping[str, str], column: str, line: int, least: float, most: float) -> float:
        try:
            value = float(row[column])
        except ValueError:
            value = math.nan
        if not least <= value <= most:
            problem = f"is no number from {least:g} to {most:g}"
            raise self._wrong(line, column, row[column], problem, "write it with a point, as 2.40")
        return value

    def _take_hour(self, row: Mapping[str, str], day: int, line: int) -> None:
        model, kind = row.get("model", ""), row.get("kind", "")
        if kind and kind not in KINDS:
            raise self._wrong(line, "kind", kind, "no such kind of capacity", f"take one of {', '.join(KINDS)}")
        if row.get("pue"):
            raise self._wrong(line, "pue", row["pue"], "is about energy", "give it in the row that has kwh")
        key = (model, kind, day)
        if key in self._hours:
            problem = f"line {self._hours[key][1]} has the same model, kind and day"
            raise self._wrong(line, "model", model, problem, "leave one of the two rows out")
        self._hours[key] = self._amount(row, "gpu_hour", line, 0, 1e6), line

    def _take_energy(self, row: Mapping[str, str], day: int, line: int) -> None:
        for column in ("model", "kind"):
            if row.get(column):
                problem = "energy costs the same for all"
                raise self._wrong(line, column, row[column], problem, "leave model and kind empty beside kwh")
        if day in self._energy:
            problem = f"line {self._energy[day][1]} has a price of energy of that day"
            raise self._wrong(line, "valid_from", row.get("valid_from", ""), problem, "leave one of the two rows out")
        kwh = self._amount(row, "kwh", line, 0, 1e4)
        pue = self._amount(row, "pue", line, 1, 5) if row.get("pue") else 1.0
        self._energy[day] = EnergyPrice(kwh, pue), line
