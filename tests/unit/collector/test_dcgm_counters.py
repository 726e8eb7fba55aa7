"""The counters file for dcgm-exporter: DCGM and our reader know what it holds, and nothing stops the exporter."""

from __future__ import annotations

import csv
from pathlib import Path

from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.collector.dcgm.dcgmi import listed_fields
from tocsin.collector.dcgm.exporter import read_page
from tocsin.collector.dcgm.exposition import Heads
from tocsin.collector.dcgm.fields import XID_COUNT, counters_csv, field_named, names_numbered, readable_ids
from tocsin.collector.source import NodeIdentity
from tocsin.domain.metrics import BY_DCGM_NAME
from tocsin_testing.dcgm_pages import DATA

SHIPPED = Path(__file__).parents[3] / "deploy" / "dcgm-exporter" / "tocsin-counters.csv"
EXTRA = {"DCGM_FI_DRIVER_VERSION", XID_COUNT}
ID_OF = {name: number for number in readable_ids() for name in names_numbered(number)}


def rows(text: str) -> list[list[str]]:
    """Rows as dcgm-exporter's CSV reader sees them."""
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return [[cell.strip() for cell in row] for row in csv.reader(lines)]


def commented(text: str) -> list[list[str]]:
    """The rows that are left out until a newer DCGM has them."""
    return rows("\n".join(line[2:] for line in text.splitlines() if line.startswith("# DCGM_FI_")))


def test_the_shipped_file_is_what_the_command_prints() -> None:
    printed = CliRunner().invoke(cli, ["reference", "dcgm-counters"]).output
    assert SHIPPED.read_text() == printed == counters_csv()


def test_every_line_has_three_columns_comments_too() -> None:
    assert all(line.count(",") == 2 for line in counters_csv().splitlines() if line)


def test_no_field_comes_twice() -> None:
    active = [row[0] for row in rows(counters_csv())]
    numbers = [ID_OF[name] for name in active if name not in EXTRA]
    assert len(set(active)) == len(active)
    assert len(set(numbers)) == len(numbers)


def test_active_rows_are_known_to_dcgm_3_3_9_and_commented_ones_are_not() -> None:
    known = listed_fields((DATA / "dmon_list.txt").read_text())
    assert len(known) > 400
    active = {ID_OF[row[0]] for row in rows(counters_csv()) if row[0] not in EXTRA}
    assert active <= known
    assert not {ID_OF[row[0]] for row in commented(counters_csv())} & known


def test_every_row_is_of_the_metric_table_with_its_type() -> None:
    for name, kind, text in (*rows(counters_csv()), *commented(counters_csv())):
        assert text
        if name in EXTRA:
            assert kind == ("label" if name.endswith("VERSION") else "gauge")
            continue
        assert kind == BY_DCGM_NAME[name].kind


def test_every_field_that_feeds_a_row_is_in_the_file() -> None:
    listed = {ID_OF[row[0]] for row in (*rows(counters_csv()), *commented(counters_csv())) if row[0] not in EXTRA}
    # 1508 belongs to links, which the exporter watches by itself where its release can.
    assert set(readable_ids()) - listed == {1508}


def test_every_row_is_read_back() -> None:
    names = [row[0] for row in (*rows(counters_csv()), *commented(counters_csv())) if row[0] not in EXTRA]
    page = read_page("".join(f'{name}{{gpu="0",UUID="G",Hostname="n"}} 1\n' for name in names), Heads(NodeIdentity()))
    fields = [field_named(name) for name in names]
    assert page.rows["G"].values.keys() == {field.key() for field in fields if field is not None}
    assert page.lines == {"used": len(names)}


def test_what_the_default_leaves_out_is_in_it() -> None:
    active = {row[0] for row in rows(counters_csv())}
    assert active >= {
        "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL",
        "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL",
        "DCGM_FI_DEV_POWER_VIOLATION",
        "DCGM_FI_DEV_THERMAL_VIOLATION",
        "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
        "DCGM_FI_DEV_RETIRED_PENDING",
        "DCGM_FI_DEV_ROW_REMAP_PENDING",
        "DCGM_FI_PROF_SM_ACTIVE",
        "DCGM_FI_PROF_SM_OCCUPANCY",
        XID_COUNT,
    }
