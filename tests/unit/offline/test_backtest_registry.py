"""Which modules are data sets."""

from __future__ import annotations

from tocsin.offline.backtest import datasets


def test_every_benchmark_has_run_and_parts_are_none() -> None:
    names = datasets()
    assert {"backblaze", "gwdg", "smd", "titan"} <= set(names)
    assert not [name for name in names if "_" in name or name in ("result", "tally")]
