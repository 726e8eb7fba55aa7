"""Alerts about what is predicted. The level is the model's own: the brain says whether a prediction warns."""

from __future__ import annotations

from tocsin_grafana.alert import EXPECTED_GPU, ONE_GPU, RULE, WHERE, Alert, Case, Severity
from tocsin_grafana.rulebook import condition_of

WARNING, PROBABILITY, LEAD = (
    "tocsin_prediction_warning",
    "tocsin_prediction_probability_ratio",
    "tocsin_prediction_lead_seconds",
)
_BY = "gpu_uuid, gpu_index, host, pool, part, simulated, target"
_SECONDS = {"m": 60, "h": 3_600, "d": 86_400}


def seconds(text: str) -> int:
    """A duration of the rule file, such as 30m."""
    return int(text[:-1]) * _SECONDS[text[-1]]


def _risk(name: str, rule: str, target: str, severity: Severity, headline: str, remedy: str) -> Alert:
    where = f'target="{target}"'
    series = f'{{{ONE_GPU},target="{target}"}}'
    on = "on (instance, target, gpu_uuid, pool, host, part)"
    return Alert(
        name,
        f"max by ({_BY}) ({PROBABILITY}{{{where}}} and {on} ({WARNING} == 1))",
        "0s", severity, "symptom", headline + " on {{ $labels.host }}",
        WHERE + ": probability {{ $value | humanizePercentage }}, above the model's own level.",
        remedy,
        f"{RULE.format(rule)} The level is the model's own, kept at the share of false alarms of setting "
        "forecast.alarm_share, and no less than forecast.least_precision.",
        Case(
            {PROBABILITY + series: "0.1x10 0.81x30", WARNING + series: "0x10 1x30"},
            "30m", EXPECTED_GPU | {"target": target}, "81%",
        ),
        Case({PROBABILITY + series: "0.81x40", WARNING + series: "0x40"}, "30m"),
    )  # fmt: skip


def _crossing(name: str, rule: str, metric: str, headline: str, remedy: str) -> Alert:
    target = f"time_to_threshold:{metric}"
    soon = seconds(str(condition_of(rule, "forecast", metric)["within"]))
    series = f'{{{ONE_GPU},target="{target}"'
    lead = f'{LEAD}{series},bound="expected"}}'
    on = "on (instance, target, gpu_uuid, pool, host, part)"
    fires = {lead: f"{soon * 2}x10 {soon // 2}x30", f"{WARNING}{series}}}": "1x40"}
    return Alert(
        name,
        f'max by ({_BY}) ({LEAD}{{target="{target}",bound="expected"}} <= {soon} and {on} ({WARNING} == 1))',
        "0s", "warning", "symptom", headline + " on {{ $labels.host }}",
        WHERE + ": expected in {{ $value | humanizeDuration }}.",
        remedy,
        RULE.format(rule),
        Case(fires, "30m", EXPECTED_GPU | {"target": target}, _told(soon // 2)),
        Case(fires | {lead: f"{soon * 2}x40"}, "30m"),
    )  # fmt: skip


def _told(span: int) -> str:
    """As Prometheus writes a duration."""
    days, rest = divmod(span, 86_400)
    hours, rest = divmod(rest, 3_600)
    minutes, left = divmod(rest, 60)
    if days:
        return f"{days}d {hours}h {minutes}m {left}s"
    return f"{hours}h {minutes}m {left}s" if hours else f"{minutes}m {left}s"


def alerts() -> list[Alert]:
    """Hardware faults first."""
    return [
        _risk(
            "GpuFaultPredicted", "gpu_fault_predicted", "hardware_fault", "warning",
            "A hardware fault is likely", "Save a checkpoint and move the work; `tocsin status` shows the evidence.",
        ),
        _out_of_memory(),
        _crossing(
            "GpuTemperaturePredicted", "temperature_forecast", "gpu_temperature_celsius",
            "A GPU will be too hot soon",
            "Look at the cooling while there is time; action throttle lowers the power limit.",
        ),
        _crossing(
            "GpuSpareRowsPredicted", "row_remap_forecast", "gpu_row_remap_uncorrectable_total",
            "Spare rows of a GPU run out", "Plan a replacement.",
        ),
    ]  # fmt: skip


def _out_of_memory() -> Alert:
    """Warns without a probability: the growth alone says when the memory is full."""
    target = "out_of_memory"
    series = f'{{{ONE_GPU},target="{target}"'
    lead, warning = f'{LEAD}{series},bound="expected"}}', f"{WARNING}{series}}}"
    on = "on (instance, target, gpu_uuid, pool, host, part)"
    return Alert(
        "GpuOutOfMemoryPredicted",
        f'max by ({_BY}) ({LEAD}{{target="{target}",bound="expected"}} and {on} ({WARNING} == 1))',
        "0s", "warning", "symptom", "A GPU on {{ $labels.host }} will be out of memory",
        WHERE + ": memory is full in {{ $value | humanizeDuration }} if it goes on growing.",
        "Save a checkpoint and restart the program, or move it to a larger GPU.",
        RULE.format("out_of_memory_predicted"),
        Case({lead: "600x40", warning: "1x40"}, "30m", EXPECTED_GPU | {"target": target}, "10m 0s"),
        Case({lead: "600x40", warning: "0x40"}, "30m"),
    )  # fmt: skip
