"""The file of prices: what counts when, and one error that says where."""

from __future__ import annotations

import math
from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.accounting.prices import EnergyPrice, PriceList, parse_prices, price_list_of, read_prices
from tocsin.domain.clock import DAY, from_iso
from tocsin.domain.errors import InputError
from tocsin.domain.usage import Prices

NEW_YEAR = from_iso("2026-01-01") // DAY
FILE = """# what the site pays
model,kind,gpu_hour,kwh,pue,currency,valid_from
H100,on_demand,4.00,,,EUR,
H100,,3.00,,,EUR,
H100,on_demand,3.50,,,EUR,2026-01-01
H100 80GB,spot,1.10,,,EUR,
,,1.00,,,EUR,2026-01-01
,,,0.20,1.3,EUR,
,,,0.25,,EUR,2026-01-01
"""


def test_the_nearest_price_counts() -> None:
    found = parse_prices(FILE, "prices.csv")
    assert found.currency == "EUR"
    model = "NVIDIA H100 PCIe"
    assert found.gpu_hour(model, "on_demand", NEW_YEAR - 1) == 4.0
    assert found.gpu_hour(model, "on_demand", NEW_YEAR) == 3.5
    assert found.gpu_hour(model, "spot", NEW_YEAR) == found.gpu_hour(model, "", NEW_YEAR) == 3.0
    assert found.gpu_hour("NVIDIA H100 80GB HBM3", "spot", NEW_YEAR) == 1.1
    assert found.gpu_hour("NVIDIA L4", "own", NEW_YEAR) == 1.0
    assert found.gpu_hour("NVIDIA L4", "own", NEW_YEAR - 1) is None
    assert found.kwh(NEW_YEAR - 1) == EnergyPrice(0.2, 1.3)
    assert found.kwh(NEW_YEAR) == EnergyPrice(0.25)


def test_without_a_file_the_settings_say_what_is_paid() -> None:
    found = price_list_of(Prices("USD", {"H100": 2.0}, 0.5, 0.3, 1.2), None)
    assert (found.currency, found.gpu_hour("H100", "spot", 0), found.gpu_hour("L4", "", 0)) == ("USD", 2.0, 0.5)
    assert found.kwh(NEW_YEAR) == EnergyPrice(0.3, 1.2)
    of_file = price_list_of(Prices("USD", {"H100": 2.0}, 0.5, 0.3), parse_prices("model,gpu_hour\nL4,0.4\n", "p"))
    assert of_file.gpu_hour("H100", "", 0) is None
    assert of_file.kwh(0) == EnergyPrice(0.3)
    assert price_list_of(Prices(), None) == PriceList()


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "p.csv, line 1, row"),
        ("model,price\n", "p.csv, line 1, column = 'price': no such column"),
        ("model,kind\n", "neither gpu_hour nor kwh"),
        ("model,model,gpu_hour\n", "it is there twice"),
        ("model,gpu_hour\nH100\n", "p.csv, line 2, row = 'H100': 1 cells for 2 columns"),
        ("model,gpu_hour\n\nH100,two\n", "p.csv, line 3, gpu_hour = 'two': is no number from 0"),
        ("model,gpu_hour\nH100,-1\n", "line 2, gpu_hour = '-1'"),
        ("model,gpu_hour\nH100,nan\n", "line 2, gpu_hour = 'nan'"),
        ("model,gpu_hour\nH100,\n", "a row has gpu_hour or kwh"),
        ("model,gpu_hour,kwh\nH100,1,1\n", "a row has gpu_hour or kwh"),
        ("model,kind,gpu_hour\nH100,rented,1\n", "line 2, kind = 'rented': no such kind of capacity; take one of on_"),
        ("model,gpu_hour,valid_from\nH100,1,31.1.2026\n", "line 2, valid_from = '31.1.2026'"),
        ("model,gpu_hour,currency\nH100,1,EUR\nL4,1,USD\n", "line 3, currency = 'USD': line 2 has EUR"),
        ("model,gpu_hour\nH100,1\nH100,2\n", "line 3, model = 'H100': line 2 has the same model"),
        ("kwh,pue\n0.2,0.9\n", "line 2, pue = '0.9': is no number from 1 to 5"),
        ("model,kwh\nH100,0.2\n", "line 2, model = 'H100': energy costs the same for all"),
        ('model,gpu_hour\n"H100,1\n', "no CSV"),
    ],
)
def test_an_error_names_line_and_column(text: str, said: str) -> None:
    with pytest.raises(InputError) as caught:
        parse_prices(text, "p.csv")
    assert said in str(caught.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"usage\.price_file"):
        read_prices(tmp_path / "none.csv")
    (tmp_path / "latin.csv").write_bytes(b"model,gpu_hour\n\xe9,1\n")
    with pytest.raises(InputError, match="no UTF-8 at byte 15"):
        read_prices(tmp_path / "latin.csv")
    (tmp_path / "large.csv").write_bytes(b"#" * (1024 * 1024 + 1))
    with pytest.raises(InputError, match="more than 1 MiB"):
        read_prices(tmp_path / "large.csv")


@given(st.text(max_size=200))
def test_whatever_a_file_says_it_is_prices_or_one_error(text: str) -> None:
    with suppress(InputError):
        found = parse_prices("model,kind,gpu_hour,kwh,pue,currency,valid_from\n" + text, "p.csv")
        assert all(math.isfinite(price) and price >= 0 for *_, price in found.hours)
