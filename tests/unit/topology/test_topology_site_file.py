"""The site's table of places."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.domain.errors import InputError
from tocsin.domain.place import Place, PlaceKind
from tocsin.topology import site_file
from tocsin.topology.site_file import parse_site_file, read_site_file
from tocsin.topology.topology import Topology

GOOD = """\
# racks of hall 2
host,gpu,rack,power_zone,links

n1,,r1,feed-a,
n1,GPU-1,,,l1; l2
,GPU-2,,,l1
"""


def test_rows_are_about_hosts_and_gpus() -> None:
    places = Topology({"GPU-1": "n1", "GPU-2": "n1"}, parse_site_file(GOOD, "site.csv"))
    assert places.name(PlaceKind.RACK, "GPU-1") == "r1"
    assert places.name(PlaceKind.POWER_ZONE, "GPU-2") == "feed-a"
    assert places.links("GPU-1") == {"l1", "l2"}
    assert places.held(Place(PlaceKind.LINK, "l1")).gpus == {"GPU-1", "GPU-2"}


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "site.csv, line 1, row = '': the file has no header; begin with columns such as host,rack"),
        ("host,shelf\n", "site.csv, line 1, column = 'shelf': no such column; take some of host, gpu, chassis"),
        ("host,rack,rack\n", "site.csv, line 1, column = 'rack': it is there twice; leave one of them out"),
        ("rack\nr1\n", "site.csv, line 1, column = 'rack': neither host nor gpu is there; add the column host"),
        ("host,rack\nn1\n", "site.csv, line 2, row = 'n1': 1 cells for 2 columns; give every row as many cells"),
        ("host,rack\n,r1\n", "site.csv, line 2, host = '': the row is about nothing; fill in host or gpu"),
        ("host,rack\nn1,r1\nn1,r2\n", "site.csv, line 3, host = 'n1': line 2 is about it already; leave one"),
        (
            "host,links\nn1,l1\n",
            "site.csv, line 2, links = 'l1': a host has no links of its own; give the row",
        ),
        ('host,rack\n"n1,r1\n', "site.csv, line 2, row = '': no CSV: unexpected end of data; mend the quotes"),
        (
            "host,rack\nn1,a\x07b\n",
            "site.csv, line 2, rack = 'a\\x07b': no name of 1 to 253 printable letters",
        ),
    ],
)
def test_one_error_names_row_field_value_and_remedy(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_site_file(text, "site.csv")
    assert said in str(caught.value)


def test_bounds(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    many = tmp_path / "site.csv"
    many.write_text("host,rack\n" + "".join(f"n{i},r\n" for i in range(20)))
    assert len(read_site_file(many)) == 20
    monkeypatch.setattr(site_file, "MOST_ROWS", 10)
    with pytest.raises(InputError, match="line 12, row = 11: more than 10 rows"):
        read_site_file(many)
    monkeypatch.setattr(site_file, "MOST_BYTES", 16)
    with pytest.raises(InputError, match="give one row for a host"):
        read_site_file(many)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"topology\.file .* give a file that can be read"):
        read_site_file(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"host,rack\nn\xe9,r\n")
    with pytest.raises(InputError, match="no UTF-8 at byte 11; save it as UTF-8"):
        read_site_file(tmp_path / "latin.csv")


def test_a_byte_order_mark_is_no_part_of_the_header(tmp_path: Path) -> None:
    (tmp_path / "excel.csv").write_bytes(b"\xef\xbb\xbfhost,rack\r\nn1,r1\r\n")
    (claim,) = read_site_file(tmp_path / "excel.csv")
    assert claim.place == Place(PlaceKind.RACK, "r1")
