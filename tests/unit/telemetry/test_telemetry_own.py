"""Tocsin's own log and metrics."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Literal

import pytest
import structlog
from prometheus_client import generate_latest

from tocsin.telemetry.log import configure_logging, logger
from tocsin.telemetry.metrics import COLLECTED, OWN_METRICS, OwnMetrics


@pytest.fixture(autouse=True)
def _default_log() -> Iterator[None]:
    yield
    structlog.reset_defaults()


def test_json_log_is_one_object_a_line() -> None:
    out = io.StringIO()
    configure_logging("info", "json", out)
    log = logger("agent")
    log.debug("unheard")
    log.warning("push failed", reason="HTTP 503")
    try:
        raise ValueError("bug\nover two lines")
    except ValueError:
        log.exception("unexpected")
    first, second = (json.loads(line) for line in out.getvalue().splitlines())
    assert (first["event"], first["level"], first["part"]) == ("push failed", "warning", "agent")
    assert first["reason"] == "HTTP 503"
    assert first["at"].endswith("Z")
    assert "ValueError: bug" in second["exception"]


def test_console_log_has_no_colours_away_from_a_terminal() -> None:
    out = io.StringIO()
    configure_logging("debug", "console", out)
    logger("agent").debug("hello", gpu="GPU-1")
    assert "hello" in out.getvalue()
    assert "\x1b" not in out.getvalue()


@pytest.mark.parametrize("fmt", ["json", "console"])
def test_a_traceback_does_not_show_what_variables_hold(fmt: Literal["json", "console"]) -> None:
    out = io.StringIO()
    configure_logging("info", fmt, out)

    def fails(secret: str) -> None:
        if secret:
            raise ValueError("bug")

    try:
        fails("a token " * 3)
    except ValueError:
        logger("brain").exception("unexpected")
    assert "ValueError: bug" in out.getvalue()
    assert "a token a token" not in out.getvalue()


def test_loggers_made_before_the_set_up_follow_it() -> None:
    early = logger("early")
    out = io.StringIO()
    configure_logging("info", "json", out)
    early.info("heard")
    assert json.loads(out.getvalue())["part"] == "early"


def test_every_metric_of_the_table_can_be_used() -> None:
    own = OwnMetrics()
    for name, spec in OWN_METRICS.items():
        labels = dict.fromkeys(spec.labels, "x")
        if name in COLLECTED:
            continue
        if spec.kind == "counter":
            own.count(name, 2, **labels)
            assert own.value(name, **labels) == 2
        elif spec.kind == "gauge":
            own.set(name, 3, **labels)
            assert own.value(name, **labels) == 3
        else:
            own.observe(name, 0.5, **labels)
            assert own.registry.get_sample_value(f"{name}_count", labels) == 1
    assert b"_created" not in generate_latest(own.registry)


def test_names_and_suffixes_agree_with_kinds() -> None:
    for name, spec in OWN_METRICS.items():
        assert name.startswith("tocsin_")
        assert name.endswith("_total") == (spec.kind == "counter")
        assert spec.help.endswith(".")


def test_a_name_outside_the_table_is_an_error() -> None:
    own = OwnMetrics()
    with pytest.raises(KeyError):
        own.count("tocsin_nonsense_total")
    with pytest.raises(ValueError, match="label"):
        own.count("tocsin_readings_total", sauce="nvml")


def test_two_sets_of_metrics_do_not_meet() -> None:
    first, second = OwnMetrics(), OwnMetrics()
    first.count("tocsin_readings_total", 5, source="nvml")
    assert second.value("tocsin_readings_total", source="nvml") == 0


def test_a_gauge_that_is_never_set_is_not_exported() -> None:
    own = OwnMetrics()
    assert b"tocsin_fleet_free_gpus" not in generate_latest(own.registry)
    own.set("tocsin_fleet_free_gpus", 0)
    own.set("tocsin_fleet_free_gpus", 3)
    assert b"tocsin_fleet_free_gpus 3.0" in generate_latest(own.registry)
