"""Reads the GWDG GPU node telemetry: tidy CSV windows, which may overlap, and the operator's log of incidents."""

from __future__ import annotations

import bz2
import gzip
import zlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, cast

import numpy as np

from tocsin.domain.errors import InputError
from tocsin.domain.metrics import BY_DCGM_NAME
from tocsin.forecaster.anomaly.structural import NodeRecord
from tocsin.forecaster.evaluation.ticket_clock import IncidentLog, LoggedIncident, read_incidents

if TYPE_CHECKING:
    import polars as pl

COLUMNS = ("timeUtc", "node", "metric", "value", "gpu")
XID_METRIC = "DCGM_FI_DEV_XID_ERRORS"
GPU_PREFIX = "DCGM_FI_"
POWER_STATE = "ipmi_chassis_power_state"
HEADER_BYTES = 1 << 16
_ENDINGS = (".csv", ".csv.bz2", ".csv.gz")
_BLANKS = ((2147483632.0, 2147483635.0), (140737488355328.0, 140737488355331.0), (9223372036854775792.0, np.inf))
"""What DCGM prints for a value that it does not have: its INT32, FP64 and INT64 blanks."""


@dataclass(frozen=True, slots=True)
class Telemetry:
    """A folder: `nodes` by name, the log, and what could not be used."""

    nodes: Sequence[NodeRecord]
    incidents: Sequence[LoggedIncident]
    files: int
    problems: Sequence[str]


def read_folder(folder: Path, most_files: int | None = None) -> Telemetry:
    """All windows and logs in `folder` and below; of the windows the first `most_files` where given.

    Overlapping windows of a node are joined, one sample for each (node, GPU, metric, instant). Raises InputError where
    there is no window or no log, or one of them cannot be used.
    """
    import polars as pl

    windows, logs = files_of(folder)
    log = read_logs(logs)
    used = windows[:most_files]
    frame = pl.concat([_window(path) for path in used])
    nodes = [_record(str(name[0]), part) for name, part in sorted(frame.group_by("node"), key=lambda one: str(one[0]))]
    return Telemetry(nodes, log.incidents, len(used), [str(problem) for problem in log.problems])


def files_of(folder: Path) -> tuple[list[Path], list[Path]]:
    """Windows and logs in `folder` and below. Raises InputError where there is no window or no log."""
    paths = sorted(path for path in folder.rglob("*") if path.name.endswith(_ENDINGS))
    headers = {path: _header(path) for path in paths}
    windows = [path for path, names in headers.items() if set(COLUMNS) <= set(names)]
    logs = [path for path, names in headers.items() if "incidentDate" in names]
    if not windows:
        raise InputError("folder", str(folder), "holds no tidy telemetry", f"name CSV with {','.join(COLUMNS)}")
    if not logs:
        raise InputError("folder", str(folder), "holds no log of incidents", "add a CSV with node,incidentDate")
    return windows, logs


def read_logs(paths: Sequence[Path]) -> IncidentLog:
    """All logs as one, each incident once."""
    read = [read_incidents(path) for path in paths]
    incidents = sorted({(one.node, one.day_ms): one for log in read for one in log.incidents}.items())
    return IncidentLog([one for _, one in incidents], [problem for log in read for problem in log.problems])


def _open(path: Path) -> IO[bytes]:
    if path.suffix == ".bz2":
        return cast(IO[bytes], bz2.open(path))
    return cast(IO[bytes], gzip.open(path)) if path.suffix == ".gz" else path.open("rb")


def _header(path: Path) -> list[str]:
    try:
        with _open(path) as file:
            line = file.readline(HEADER_BYTES)
    except (OSError, EOFError, zlib.error) as error:
        raise _unreadable(path, error) from None
    return [name.strip().strip('"') for name in line.decode("utf-8-sig", "replace").strip().split(",")]


def _unreadable(path: Path, error: BaseException) -> InputError:
    return InputError("file", str(path), f"cannot be read: {error}", "fetch it again")


def _window(path: Path) -> pl.DataFrame:
    """Columns node, at_ms, gpu, metric, value: samples of GPUs, of the power state, and for each instant at which the
    node was seen by anything else one row without a metric."""
    import polars as pl

    empty = {"gpu": pl.String, "metric": pl.String, "value": pl.Float64}
    try:
        with _open(path) as file:
            text = file.read()
        frame = pl.read_csv(text, columns=list(COLUMNS), infer_schema=False, truncate_ragged_lines=True)
    except (OSError, EOFError, zlib.error, pl.exceptions.PolarsError) as error:
        raise _unreadable(path, error) from None
    value = pl.col("value").cast(pl.Float64, strict=False)
    kept = pl.col("metric").str.starts_with(GPU_PREFIX) | (pl.col("metric") == POWER_STATE)
    samples = frame.filter(kept).with_columns(value).filter(pl.col("value").is_finite() & ~_blank())
    seen = frame.select("node", "timeUtc").unique()
    nothing = [pl.lit(None, kind).alias(name) for name, kind in empty.items()]
    told = pl.concat([samples.select("node", "timeUtc", *empty), seen.with_columns(*nothing)])
    at_ms = pl.col("timeUtc").str.to_datetime(strict=False, time_unit="ms").cast(pl.Int64).alias("at_ms")
    instants = seen.select("timeUtc").unique().with_columns(at_ms).drop_nulls()
    return told.join(instants, on="timeUtc", maintain_order="left").drop("timeUtc").drop_nulls("node")


def _blank() -> pl.Expr:
    import polars as pl

    return pl.any_horizontal([pl.col("value").is_between(low, high) for low, high in _BLANKS])


def _record(node: str, frame: pl.DataFrame) -> NodeRecord:
    """One node; a GPU is a slot of it, so that a board that is swapped is no loss."""
    import polars as pl

    at_ms = frame["at_ms"].unique().sort().to_numpy().astype(np.int64)
    samples = frame.filter(pl.col("gpu").is_not_null() & pl.col("metric").str.starts_with(GPU_PREFIX))
    gpus, metrics = (tuple(samples[name].unique().sort().to_list()) for name in ("gpu", "metric"))
    cube = np.full((at_ms.size, len(gpus), len(metrics)), np.nan)
    rows = np.searchsorted(at_ms, samples["at_ms"].to_numpy())
    places = [_numbers(samples, name, names) for name, names in (("gpu", gpus), ("metric", metrics))]
    # The first of several samples stays: rows are written in reverse.
    cube[rows[::-1], places[0][::-1], places[1][::-1]] = samples["value"].to_numpy()[::-1]
    measured = [place for place, name in enumerate(metrics) if name != XID_METRIC]
    code = cube[:, :, metrics.index(XID_METRIC)] if XID_METRIC in metrics else np.full(cube.shape[:2], np.nan)
    names = tuple(f"{node}:{gpu}" for gpu in gpus)
    kept = tuple(metrics[place] for place in measured)
    return NodeRecord(node, at_ms, names, kept, cube[:, :, measured], code, _powered(at_ms, frame))


def _numbers(frame: pl.DataFrame, column: str, names: Sequence[str]) -> np.ndarray[tuple[int], np.dtype[np.intp]]:
    return np.searchsorted(np.asarray(names, dtype=np.str_), frame[column].to_numpy().astype(np.str_))


def _powered(
    at_ms: np.ndarray[tuple[int], np.dtype[np.int64]], frame: pl.DataFrame
) -> np.ndarray[tuple[int], np.dtype[np.bool_]]:
    """Whether the newest known state of each instant is on; on where none is known."""
    import polars as pl

    told = frame.filter(pl.col("metric") == POWER_STATE).sort("at_ms").unique("at_ms", maintain_order=True)
    states = np.append(told["value"].to_numpy(), 1.0) > 0
    place = np.searchsorted(told["at_ms"].to_numpy(), at_ms, side="right") - 1
    return np.asarray(states[place], np.bool_)


def canonical(record: NodeRecord) -> tuple[tuple[str, ...], np.ndarray[tuple[int, ...], np.dtype[np.float64]]]:
    """The names and units that Tocsin uses, float64[n, gpus, metrics]; metrics that it does not know are left out."""
    known = [(place, BY_DCGM_NAME[name]) for place, name in enumerate(record.metrics) if name in BY_DCGM_NAME]
    scale = np.array([spec.dcgm_scale for _, spec in known])
    return tuple(spec.name for _, spec in known), record.values[:, :, [place for place, _ in known]] * scale
