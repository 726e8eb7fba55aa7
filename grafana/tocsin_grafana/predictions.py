"""The board of predictions."""

from __future__ import annotations

from tocsin_grafana import flux, prom
from tocsin_grafana.parts import GREEN, ORANGE, RED, YELLOW, steps
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of

_WARNS = 'status=~"crossing|likely"'
_PROBABILITY = "tocsin_prediction_probability_ratio"
_LEAD = "tocsin_prediction_lead_seconds"
_KEYS = "target, host, gpu_index, gpu_uuid, pool, part"


def _warnings() -> Row:
    listed = f"tocsin_prediction_warning{{{prom.POOL}}} == 1"
    return Row(
        "Warnings",
        (
            Panel(
                "Warnings in force",
                "Predictions that pass their model's own level, by what is predicted.",
                "stat",
                (
                    Query(
                        f"sum by (target) (tocsin_predictions_active{{{_WARNS}}}) > 0 or vector(0)", "{{target}}", True
                    ),
                ),
                width=6,
                steps=steps((None, GREEN), (1, ORANGE)),
            ),
            Panel(
                "Most urgent",
                "Warnings with probability and time left, the likeliest first. A click opens the GPU.",
                "table",
                (
                    Query(f"max by ({_KEYS}) ({listed})", instant=True, name="Warns"),
                    Query(
                        f"max by ({_KEYS}) ({_PROBABILITY}{{{prom.POOL}}} and {listed})",
                        instant=True,
                        name="Probability",
                    ),
                    Query(
                        f'max by ({_KEYS}) ({_LEAD}{{{prom.POOL},bound="expected"}})',
                        instant=True,
                        name="Time left",
                    ),
                ),
                (
                    Query(
                        flux.list_of(
                            flux.stream(
                                flux.MINUTE,
                                "gpu_prediction",
                                ["sentence", "status", "probability", "subject_host"],
                            ),
                            ["_time", "target", "status", "subject_host", "subject", "probability", "sentence"],
                        )
                    ),
                ),
                units={"Probability": "percentunit", "probability": "percentunit", "Time left": "s"},
                link="gpu",
                width=18,
                height=9,
                hidden=("Warns",),
            ),
        ),
    )


def _course() -> Row:
    return Row(
        "Course",
        (
            Panel(
                "Probability of a hardware fault, the ten likeliest",
                help_of(_PROBABILITY),
                "timeseries",
                (Query(f'topk(10, {_PROBABILITY}{{{prom.POOL},target="hardware_fault"}})', prom.BY_GPU),),
                (
                    Query(
                        flux.shown(
                            flux.stream(flux.MINUTE, "gpu_prediction", ["probability"], 'r.target == "hardware_fault"'),
                            "r.subject",
                            "last",
                        )
                    ),
                ),
                "percentunit",
                least=0,
                most=1,
            ),
            Panel(
                "Time left until what is expected, the ten soonest",
                help_of(_LEAD),
                "timeseries",
                (
                    Query(
                        f'bottomk(10, {_LEAD}{{{prom.POOL},bound="expected"}})',
                        "{{host}} {{gpu_index}} {{target}}",
                    ),
                ),
                unit="s",
                least=0,
            ),
            Panel(
                "Predictions in force by status",
                help_of("tocsin_predictions_active"),
                "timeseries",
                (Query("sum by (status) (tocsin_predictions_active)", "{{status}}"),),
                stack=True,
                least=0,
                width=8,
            ),
            Panel(
                "Predictions stored by target",
                "How many statements were put into the store in each window: warnings, and what changed.",
                "timeseries",
                (Query("sum by (status) (rate(tocsin_predictions_total[$__rate_interval]))", "{{status}}"),),
                (Query(flux.counted(flux.stream(flux.MINUTE, "gpu_prediction", ["sentence"]), "target")),),
                width=8,
                least=0,
            ),
            Panel(
                "Without series of their own",
                help_of("tocsin_predictions_unlisted"),
                "timeseries",
                (Query("max(tocsin_predictions_unlisted)", "unlisted"),),
                width=8,
                least=0,
            ),
        ),
    )


def _own(name: str, title: str, unit: str = "short", width: int = 6, **more: object) -> Panel:
    return Panel(
        title,
        help_of(name),
        "timeseries",
        (Query(f"max({name})", title),),
        unit=unit,
        width=width,
        **more,  # type: ignore[arg-type]
    )


def _model() -> Row:
    return Row(
        "The model",
        (
            _own("tocsin_model_silent_gpus", "GPUs without a word of the model", least=0),
            _own("tocsin_model_shifted_features_ratio", "Features that have shifted", "percentunit", least=0, most=1),
            _own("tocsin_model_calibration_error", "Error of calibration", "percentunit", least=0),
            _own("tocsin_model_matured_predictions", "Predictions that have come due", least=0),
            Panel(
                "Time of a forecast",
                help_of("tocsin_forecast_seconds"),
                "timeseries",
                (
                    Query(
                        "sum(rate(tocsin_forecast_seconds_sum[$__rate_interval])) / "
                        "sum(rate(tocsin_forecast_seconds_count[$__rate_interval]))",
                        "mean",
                    ),
                ),
                unit="s",
                width=12,
                least=0,
            ),
            Panel(
                "Failures",
                "Forecasts that failed as a whole, and deaths of the forecast process.",
                "timeseries",
                (
                    Query("sum(tocsin_forecast_failures_total)", "forecasts"),
                    Query("max(tocsin_forecast_worker_deaths)", "deaths of the process"),
                ),
                width=12,
                least=0,
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
