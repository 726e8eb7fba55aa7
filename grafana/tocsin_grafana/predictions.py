"""The board of predictions."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin_grafana import flux, prom
from tocsin_grafana.parts import GREEN, ORANGE, RED, YELLOW, split, steps, told
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of

_WARNS = 'status=~"crossing|likely"'
_PROBABILITY = "tocsin_prediction_probability_ratio"
_LEAD = "tocsin_prediction_lead_seconds"
_KEYS = "target, host, gpu_index, gpu_uuid, pool, part"


def _statements(fields: Sequence[str], *where: str) -> str:
    return flux.stream(flux.MINUTE, "gpu_prediction", fields, *where)


def _urgent() -> Panel:
    listed = f"tocsin_prediction_warning{{{prom.POOL}}} == 1"
    columns = {
        "Warns": listed,
        "Probability": f"{_PROBABILITY}{{{prom.POOL}}} and {listed}",
        "Time left": f'{_LEAD}{{{prom.POOL},bound="expected"}}',
    }
    said = flux.list_of(
        _statements(["sentence", "status", "probability", "subject_host"]),
        ["_time", "target", "status", "subject_host", "subject", "probability", "sentence"],
    )
    return Panel(
        "Most urgent",
        "Warnings with probability and time left, the likeliest first. A click opens the GPU.",
        "table",
        tuple(Query(f"max by ({_KEYS}) ({promql})", instant=True, name=name) for name, promql in columns.items()),
        (Query(said),),
        units={"Probability": "percentunit", "probability": "percentunit", "Time left": "s"},
        link="gpu",
        width=18,
        height=9,
        hidden=("Warns",),
    )


def _warnings() -> Row:
    in_force = f"sum by (target) (tocsin_predictions_active{{{_WARNS}}}) > 0 or vector(0)"
    return Row(
        "Warnings",
        (
            Panel(
                "Warnings in force",
                "Predictions that pass their model's own level, by what is predicted.",
                "stat",
                (Query(in_force, "{{target}}", instant=True),),
                width=6,
                steps=steps((None, GREEN), (1, ORANGE)),
            ),
            _urgent(),
        ),
    )


def _likeliest() -> Panel:
    faults = _statements(["probability"], 'r.target == "hardware_fault"')
    return Panel(
        "Probability of a hardware fault, the ten likeliest",
        help_of(_PROBABILITY),
        "timeseries",
        (Query(f'topk(10, {_PROBABILITY}{{{prom.POOL},target="hardware_fault"}})', prom.BY_GPU),),
        (Query(flux.shown(faults, "r.subject", "last")),),
        "percentunit",
        least=0,
        most=1,
    )


def _stored() -> Panel:
    return Panel(
        "Predictions stored by target",
        "How many statements were put into the store in each window: warnings, and what changed.",
        "timeseries",
        (Query("sum by (status) (rate(tocsin_predictions_total[$__rate_interval]))", "{{status}}"),),
        (Query(flux.counted(_statements(["sentence"]), "target")),),
        width=8,
        least=0,
    )


def _own(metric: str, title: str, width: int = 6, line: str = "", **more: object) -> Panel:
    return told(title, help_of(metric), {line or title: f"max({metric})"}, width, **more)


def _course() -> Row:
    soonest = f'bottomk(10, {_LEAD}{{{prom.POOL},bound="expected"}})'
    return Row(
        "Course",
        (
            _likeliest(),
            told(
                "Time left until what is expected, the ten soonest",
                help_of(_LEAD),
                {"{{host}} {{gpu_index}} {{target}}": soonest},
                12,
                unit="s",
            ),
            split("tocsin_predictions_active", "Predictions in force by status", "status"),
            _stored(),
            _own("tocsin_predictions_unlisted", "Without series of their own", 8, line="unlisted"),
        ),
    )


def _model() -> Row:
    mean = " / ".join(f"sum(rate(tocsin_forecast_seconds_{part}[$__rate_interval]))" for part in ("sum", "count"))
    failures = {
        "forecasts": "sum(tocsin_forecast_failures_total)",
        "deaths of the process": "max(tocsin_forecast_worker_deaths)",
    }
    return Row(
        "The model",
        (
            _own("tocsin_model_silent_gpus", "GPUs without a word of the model"),
            _own("tocsin_model_shifted_features_ratio", "Features that have shifted", unit="percentunit", most=1),
            _own("tocsin_model_calibration_error", "Error of calibration", unit="percentunit"),
            _own("tocsin_model_matured_predictions", "Predictions that have come due"),
            told("Time of a forecast", help_of("tocsin_forecast_seconds"), {"mean": mean}, 12, unit="s"),
            told(
                "Failures",
                "Forecasts that failed as a whole, and deaths of the forecast process.",
                failures,
                12,
                steps=steps((None, GREEN), (1, YELLOW), (10, RED)),
            ),
        ),
    )


def board() -> Board:
    """What is expected of the fleet, and how far that can be trusted."""
    return Board(
        "predictions",
        "Predictions",
        "What the models expect, how likely and how soon, and how well they still fit (docs/forecast.md).",
        "fleet",
        (_warnings(), _course(), _model()),
        "now-24h",
    )
