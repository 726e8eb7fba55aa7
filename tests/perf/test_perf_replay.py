"""The reader of tidy CSV against the obvious one: csv, line by line, one float at a time."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import Any

import pytest

from tocsin.collector.replay.source import read_recording
from tocsin.domain.clock import MINUTE, from_iso, to_iso
from tocsin.domain.metrics import BY_DCGM_NAME

HEADER = "timeUtc,node,metric,value,gpu,device,uuid,job,instance,modelName,driverVersion"
INSTANTS, NODE_METRICS = 200, 500
GPU_METRICS = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_FB_USED", "DCGM_FI_DEV_XID_ERRORS")
ROWS = INSTANTS * (NODE_METRICS + 4 * len(GPU_METRICS))
GROUP = "reading a recording in tidy CSV"


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Lines in the proportions of the real data: for each of a GPU many of the node."""
    start = from_iso("2025-03-14")
    times = [to_iso(start + i * 10 * MINUTE)[:19].replace("T", " ") for i in range(INSTANTS)]
    lines = [HEADER]
    for i in range(NODE_METRICS):
        tail = ",,,,prometheus.scrape.default,inst_ca04b8061d71,,"
        lines += [f"{t},node_df3724dfcace,node_metric_{i}_total,{i}.0{tail}" for t in times]
    for metric in GPU_METRICS:
        for gpu in range(4):
            tail = f"{gpu},nvidia{gpu},gpu_{gpu},prometheus.scrape.default,inst_ca,NVIDIA A100-SXM4-80GB,550.144.03"
            lines += [f"{t},node_df3724dfcace,{metric},{j % 60}.0,{tail}" for j, t in enumerate(times)]
    path = tmp_path_factory.mktemp("perf") / "tidy.csv"
    path.write_text("\n".join(lines) + "\n")
    return path


def line_by_line(path: Path) -> dict[tuple[str, str, str], float]:
    """The baseline: GPU samples by (GPU, metric, instant), nothing checked."""
    with path.open(newline="") as file:
        return {
            (row["uuid"], row["metric"], row["timeUtc"]): float(row["value"])
            for row in csv.DictReader(file)
            if row["metric"] in BY_DCGM_NAME
        }


def test_the_reader_finds_every_value_of_the_file(recorded: Path) -> None:
    recording = read_recording([recorded])
    assert recording.rows == ROWS
    assert sum(int((t.values == t.values).sum()) for t in recording.tracks) == len(line_by_line(recorded))


@pytest.mark.benchmark(group=GROUP)
def test_read(benchmark: Any, recorded: Path) -> None:
    recording = benchmark(read_recording, [recorded])
    assert recording.rows == ROWS


@pytest.mark.benchmark(group=GROUP)
def test_baseline_csv_module_line_by_line(benchmark: Any, recorded: Path) -> None:
    assert benchmark(line_by_line, recorded)
