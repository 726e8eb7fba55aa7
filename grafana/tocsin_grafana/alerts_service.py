"""Alerts about telemetry that cannot be trusted, and about Tocsin itself."""

from __future__ import annotations

from tocsin.telemetry.metrics import OWN_METRICS
from tocsin_grafana.alert import EXPECTED_GPU, ONE_GPU, WHERE, Alert, Case, Severity, grown, silent
from tocsin_grafana.alerts_gpu import RULE

OWN = "Own choice: {}."
_TARGET = 'instance="n1:9835",job="tocsin"'
_LABELS = {"instance": "n1:9835", "job": "tocsin"}


def _own(
    name: str,
    metric: str,
    expr: str,
    held: str,
    severity: Severity,
    summary: str,
    description: str,
    remedy: str,
    source: str,
    fires: str,
    rests: str,
    shown: str = "",
    labels: dict[str, str] | None = None,
    at: str = "30m",
    bare: bool = False,
) -> Alert:
    """An alert on one metric of Tocsin's own; `labels` are those of the series beside its target."""
    known = OWN_METRICS[metric]
    more = labels or {}
    assert set(more) <= set(known.labels), name
    inside = ",".join([_TARGET, *(f'{key}="{value}"' for key, value in more.items())])
    series = f"{metric}{{{inside}}}"
    expected = {} if bare else _LABELS | more
    return Alert(
        name, expr, held, severity, "service", summary, description, remedy, source,
        Case({series: fires}, at, expected, shown), Case({series: rests}, at),
    )  # fmt: skip


def alerts() -> list[Alert]:
    """Telemetry, agents, brain, in this order."""
    return [*_telemetry(), *_agents(), *_brain()]


def _gpu_series(**values: str) -> dict[str, str]:
    return {f"{metric}{{{ONE_GPU}}}": text for metric, text in values.items()}


def _telemetry() -> list[Alert]:
    metrics = (
        "gpu_energy_joules_total",
        "gpu_temperature_celsius",
        "gpu_power_watts",
        "gpu_sm_clock_hertz",
        "gpu_memory_used_bytes",
    )
    still = " and ".join(f"changes({metric}[1h]) == 0" for metric in metrics)
    seen = "count_over_time(gpu_temperature_celsius[1h]) >= 6 and gpu_temperature_celsius offset 1h"
    standing = dict(zip(metrics, ("900x90", "45x90", "310x90", "1980x90", "4000x90"), strict=True))
    quiet = standing | {"gpu_energy_joules_total": "900+310x90"}
    by = "gpu_uuid, gpu_index, host, pool, simulated"
    return [
        Alert(
            "GpuTelemetryFrozen",
            f"max by ({by}) ({seen} and {still})",
            "0s", "warning", "symptom",
            "Readings of a GPU on {{ $labels.host }} do not move",
            WHERE + ": energy, temperature, power, clock and memory have not changed for an hour; the source repeats "
            "old values.",
            "Restart the exporter or the driver's persistence daemon; until then nothing that is shown of this GPU "
            "is true.",
            RULE.format("telemetry_frozen"),
            Case(_gpu_series(**standing), "80m", EXPECTED_GPU),
            Case(_gpu_series(**quiet), "80m"),
        ),
        Alert(
            "GpuTelemetryStopped",
            'max by (gpu_uuid, gpu_index, host, pool, simulated) '
            '(last_over_time(gpu_temperature_celsius{mig_uuid=""}[1h]) unless on (gpu_uuid) gpu_temperature_celsius)',
            "5m", "warning", "symptom",
            "A GPU on {{ $labels.host }} has stopped reporting",
            WHERE + ": no reading for ten minutes; an hour after the last one this alert ends.",
            "Look at the agent's log, then at the GPU itself: it may be lost.",
            RULE.format("gpu_silent") + " Prometheus forgets a series after five minutes, which makes ten.",
            Case(_gpu_series(gpu_temperature_celsius="50x10 _x40"), "30m", EXPECTED_GPU),
            Case(_gpu_series(gpu_temperature_celsius="50x50"), "30m"),
        ),
        _own(
            "GpuValuesFrozen", "tocsin_missing_readings",
            'tocsin_missing_readings{reason="frozen"} > 0', "5m", "warning",
            "A source on {{ $labels.instance }} repeats old values",
            "{{ $labels.instance }}: {{ $value | humanize }} values are not believed, since they repeat while they "
            "cannot.",
            "Restart the exporter or the driver; docs/agent.md says what counts as frozen.",
            RULE.format("values_frozen"), "0x10 12x30", "0x40", "12", {"reason": "frozen"},
        ),
        _own(
            "GpuLost", "tocsin_missing_readings",
            'tocsin_missing_readings{reason="lost"} > 0', "0s", "critical",
            "A GPU at {{ $labels.instance }} is lost",
            "{{ $labels.instance }}: {{ $value | humanize }} values are missing because a GPU does not answer its "
            "driver.",
            "Look at the kernel log for XID 79; drain the host, then power it off and on.",
            OWN.format("a GPU that does not answer is a fault from the first reading on"), "0x10 90x30", "0x40", "90",
            {"reason": "lost"},
        ),
        _own(
            "GpuReaderStuck", "tocsin_stuck_readers", "tocsin_stuck_readers > 0", "5m", "warning",
            "A call into the driver hangs at {{ $labels.instance }}",
            "{{ $labels.instance }}: {{ $value | humanize }} GPUs whose reader hangs in the driver.",
            "The driver or the GPU hangs: look at the kernel log, and drain the host if it does not come back.",
            OWN.format("the agent waits 5 s; five minutes of it is no hiccup"), "0x10 1x30", "0x10 1x2 0x30", "1",
            {"source": "nvml"},
        ),
    ]  # fmt: skip


def _agents() -> list[Alert]:
    minute = "ten times the default interval of 10 s, and three of the longest usual scrape"
    return [
        _own(
            "TocsinAgentGone", "tocsin_readings_total", silent("tocsin_readings_total", "instance"), "5m", "warning",
            "The agent at {{ $labels.instance }} is gone",
            "{{ $labels.instance }} has not been scraped for ten minutes; its GPUs are unseen.",
            "Look at the node, then at `systemctl status tocsin-agent` or its pod.",
            OWN.format("five minutes until Prometheus forgets, and five more"),
            "1+8x10 _x40", "1+8x50", "", {"source": "nvml"},
        ),
        _own(
            "TocsinSourceFails", "tocsin_source_failures_total", grown("tocsin_source_failures_total", "10m"), "10m",
            "warning", "A source at {{ $labels.instance }} cannot be read",
            "{{ $labels.instance }}: readings of {{ $labels.source }} fail as a whole.",
            "The agent's log says why: driver, permission, or the exporter that it reads.",
            OWN.format("ten minutes of failures is no restart"),
            "0+1x40", "0x5 2x40", "11", {"source": "nvml"},
        ),
        _own(
            "TocsinPushStalled", "tocsin_push_age_seconds", "tocsin_push_age_seconds > 300", "0s", "warning",
            "The agent at {{ $labels.instance }} cannot deliver",
            "{{ $labels.instance }}: no push was acknowledged for {{ $value | humanizeDuration }}.",
            "Look at the brain or store that it pushes to, and at its token; readings wait in the spool.",
            OWN.format("300 s; " + minute), "10x10 400x30", "10x40", "6m 40s",
        ),
        _own(
            "TocsinSpoolInMemory", "tocsin_spool_memory_batches", "tocsin_spool_memory_batches > 0", "5m", "warning",
            "The disk at {{ $labels.instance }} takes no readings",
            "{{ $labels.instance }}: {{ $value | humanize }} batches wait in memory alone and are lost if the agent "
            "ends.",
            "Make room on the disk, or mount it for writing.",
            OWN.format("five minutes, as a full disk seldom clears itself"), "0x10 3x30", "0x10 3x2 0x30", "3",
        ),
        _own(
            "TocsinDataLost", "tocsin_dropped_total", grown("tocsin_dropped_total", "15m", 'what!="value"'), "0s",
            "warning",
            "Data was lost at {{ $labels.instance }}",
            "{{ $labels.instance }}: {{ $value | humanize }} of kind {{ $labels.what }} were lost, reason "
            "{{ $labels.reason }}.",
            "docs/agent.md says what each reason means.",
            OWN.format("any loss; single values that are implausible do not count"),
            "_x20 3x20", "3x60", "3", {"what": "batch", "reason": "spool_full"}, "30m",
        ),
        _own(
            "TocsinTicksMissed", "tocsin_ticks_missed_total", "increase(tocsin_ticks_missed_total[10m]) > 6", "0s",
            "warning", "The agent at {{ $labels.instance }} skips readings",
            "{{ $labels.instance }}: {{ $value | humanize }} readings were skipped within ten minutes.",
            "A reading takes longer than the interval: look at tocsin_source_read_seconds, or lengthen the interval.",
            OWN.format("6 in ten minutes is one in ten at the default interval"), "0x20 0+2x20", "0x20 0+0.2x20", "18",
        ),
        _own(
            "TocsinCompanionDown", "tocsin_companion_up", "tocsin_companion_up == 0", "15m", "warning",
            "Part of the agent at {{ $labels.instance }} does not run",
            "{{ $labels.instance }}: {{ $labels.companion }} could not be opened.",
            "The agent's log names the remedy, mostly a permission.",
            OWN.format("three tries of five minutes"), "1x5 0x40", "1x5 0x5 1x40", "", {"companion": "kernel_log"},
            "40m",
        ),
        _own(
            "TocsinKernelLogUnread", "tocsin_kernel_log_reading", "tocsin_kernel_log_reading == 0", "10m", "warning",
            "The kernel log at {{ $labels.instance }} cannot be read",
            "{{ $labels.instance }}: XIDs may go unseen ({{ $labels.source }}).",
            "Give the agent /dev/kmsg with CAP_SYSLOG, or the journal's folder.",
            OWN.format("ten minutes"), "1x5 0x40", "1x5 0x5 1x40", "", {"source": "kmsg"},
        ),
    ]  # fmt: skip


def _brain() -> list[Alert]:
    return [*_brain_lives(), *_brain_works()]


def _brain_lives() -> list[Alert]:
    return [
        _own(
            "TocsinBrainGone", "tocsin_brain_active", silent("tocsin_brain_active", "instance"), "5m", "critical",
            "The brain at {{ $labels.instance }} is gone",
            "{{ $labels.instance }} has not been scraped for ten minutes; nobody judges the fleet but these alerts.",
            "Look at `systemctl status tocsin-brain` or its pod. Agents keep their readings meanwhile.",
            OWN.format("five minutes until Prometheus forgets, and five more"), "1x10 _x40", "1x50",
        ),
        _own(
            "TocsinNoActiveBrain", "tocsin_brain_active", "max(tocsin_brain_active) == 0", "2m", "critical",
            "No brain acts",
            "Every brain that is scraped says that another one holds the lease.",
            "Look at the lease: a file, or coordination.k8s.io. A brain that lost its way to it takes over within the "
            "lease's time.",
            OWN.format("two minutes, twice the usual hand-over"), "1x10 0x30", "1x40", bare=True,
        ),
        _own(
            "TocsinEvaluationStalled", "tocsin_evaluation_age_seconds", "tocsin_evaluation_age_seconds > 120", "0s",
            "critical", "The brain at {{ $labels.instance }} does not judge",
            "{{ $labels.instance }}: the last evaluation ended {{ $value | humanizeDuration }} ago.",
            "Look at its log; restart it if it hangs. Its state is on disk.",
            OWN.format("120 s, eight of the default intervals of 15 s"), "10x10 150x30", "10x40", "2m 30s",
        ),
        _own(
            "TocsinNoFreshReadings", "tocsin_newest_reading_age_seconds", "tocsin_newest_reading_age_seconds > 300",
            "0s",
            "critical", "The brain at {{ $labels.instance }} gets no readings",
            "{{ $labels.instance }}: the fleet's newest reading is {{ $value | humanizeDuration }} old.",
            "Look at the agents' pushes and at the store.",
            OWN.format("300 s; no action is taken on data older than 120 s anyway"), "10x10 600x30", "10x40", "10m 0s",
        ),
        _own(
            "TocsinGpusStale", "tocsin_fleet_gpus", 'tocsin_fleet_gpus{state="stale"} > 0', "10m", "warning",
            "GPUs are silent, as {{ $labels.instance }} sees it",
            "{{ $labels.instance }}: {{ $value | humanize }} GPUs have no fresh reading.",
            "Look at the agents of their hosts; `tocsin status` names them.",
            RULE.format("gpu_silent"), "0x10 4x30", "0x10 4x5 0x30", "4", {"state": "stale"},
        ),
        _own(
            "TocsinLoopFails", "tocsin_loop_failures_total", grown("tocsin_loop_failures_total", "15m"), "0s",
            "warning",
            "A loop failed at {{ $labels.instance }}",
            "{{ $labels.instance }}: loop {{ $labels.loop }} met {{ $value | humanize }} unexpected errors.",
            "The log has the whole error: report it.",
            OWN.format("any; a loop survives but ought not to fail"), "_x20 1x20", "1x60", "1", {"loop": "evaluate"},
        ),
        _own(
            "TocsinStoreWritesFail", "tocsin_store_write_failures_total",
            grown("tocsin_store_write_failures_total", "10m"), "5m", "critical",
            "The store of {{ $labels.instance }} takes no writes",
            "{{ $labels.instance }}: writes to {{ $labels.store }} fail, reason {{ $labels.reason }}.",
            "Look at the store: disk, server, token. Agents keep their readings meanwhile.",
            OWN.format("five minutes is no restart of a server"), "0x5 0+2x40", "0x5 2 2x40", "20",
            {"store": "influxdb", "reason": "unavailable"},
        ),
    ]  # fmt: skip


def _brain_works() -> list[Alert]:
    return [
        _own(
            "TocsinForecastFails", "tocsin_forecast_failures_total", "increase(tocsin_forecast_failures_total[1h]) > 1",
            "0s",
            "warning", "Forecasts fail at {{ $labels.instance }}",
            "{{ $labels.instance }}: {{ $value | humanize }} forecasts failed as a whole within an hour.",
            "Look at the log and at the store; rules go on without forecasts.",
            OWN.format("more than one, so that a restart of the store is none"), "0x10 0+1x60", "0x70", "49", at="60m",
        ),
        _calibration(),
        _own(
            "TocsinBreakerTripped", "tocsin_breaker_tripped", "tocsin_breaker_tripped == 1", "0s", "critical",
            "The breaker over all actions is tripped",
            "{{ $labels.instance }}: too many root causes at once; nothing but notifications is done.",
            "Find out what they share, then `tocsin breaker reset` (docs/operations/runbooks/guards/breaker.md).",
            "Setting actions.breaker_root_causes.", "0x10 1x30", "0x40",
        ),
        _own(
            "TocsinPausedLong", "tocsin_paused", "tocsin_paused == 1", "8h", "info",
            "All actions have been paused for long",
            "{{ $labels.instance }}: a person has paused all actions, and nobody has resumed them for eight hours.",
            "`tocsin resume` if the reason is gone.",
            OWN.format("eight hours, a shift"), "1x600", "1x100 0x500", at="550m",
        ),
        _own(
            "TocsinDecisionsWait", "tocsin_decisions_approvable", "tocsin_decisions_approvable > 0", "30m", "info",
            "Decisions wait for a person",
            "{{ $labels.instance }}: {{ $value | humanize }} proposed actions wait for a word.",
            "`tocsin approve` or `tocsin reject`, or the dashboard; they expire after actions.time_box_seconds.",
            OWN.format("half of the default time box of an hour"), "0x10 2x60", "0x10 2x5 0x60", "2", at="50m",
        ),
        _own(
            "TocsinExecutionsFail", "tocsin_executions_total",
            grown("tocsin_executions_total", "1h", 'status=~"failed|unverified"'), "0s", "warning",
            "An action failed at {{ $labels.instance }}",
            "{{ $labels.instance }}: executor {{ $labels.executor }} ended {{ $value | humanize }} as "
            "{{ $labels.status }}.",
            "`tocsin journal tail` says which and why; look at the runbook of the action.",
            OWN.format("any within an hour"), "_x60 1x40", "1x100", "1", {"executor": "kubernetes", "status": "failed"},
            "80m",
        ),
        _own(
            "TocsinNotificationsLost", "tocsin_deliveries_total",
            'increase(tocsin_deliveries_total{outcome="failed"}[15m]) > 0', "0s", "critical",
            "Nobody was told of something by {{ $labels.instance }}",
            "{{ $labels.instance }}: {{ $value | humanize }} notifications failed with every channel.",
            "`tocsin notify test` tells which channel does not work.",
            OWN.format("any: a notification that nobody got is the worst failure of a warning service"),
            "0x20 1x20", "1x40", "1", {"outcome": "failed"}, "30m",
        ),
        _own(
            "TocsinManagerDown", "tocsin_manager_up", "tocsin_manager_up == 0", "5m", "warning",
            "{{ $labels.manager }} does not show its nodes",
            "{{ $labels.instance }}: {{ $labels.manager }} did not answer; no action is taken through it.",
            "Look at its API and at the credentials of the brain.",
            OWN.format("five minutes"), "1x5 0x40", "1x40", "", {"manager": "kubernetes"},
        ),
        _own(
            "TocsinStoreDamaged", "tocsin_store_damaged_segments", "tocsin_store_damaged_segments > 0", "0s", "warning",
            "Files of history are damaged at {{ $labels.instance }}",
            "{{ $labels.instance }}: {{ $value | humanize }} files cannot be read and were set aside.",
            "Look at the disk; restore them from a backup (docs/store_embedded.md).",
            OWN.format("any"), "0x10 1x30", "0x40", "1",
        ),
    ]  # fmt: skip


def _calibration() -> Alert:
    error, due = (
        f"{name}{{{_TARGET}}}" for name in ("tocsin_model_calibration_error", "tocsin_model_matured_predictions")
    )
    return Alert(
        "TocsinModelBadlyCalibrated",
        "tocsin_model_calibration_error > 0.1 and on (instance) tocsin_model_matured_predictions > 500",
        "1h", "warning", "service", "The risk model no longer fits, says {{ $labels.instance }}",
        "{{ $labels.instance }}: stated and observed rates of hardware faults differ by "
        "{{ $value | humanizePercentage }}.",
        "Train anew on the fleet's own past (docs/lifecycle.md); until then rule gpu_fault_predicted should not act.",
        OWN.format("a tenth, over more than 500 predictions that have come due"),
        Case({error: "0.2x90", due: "900x90"}, "80m", _LABELS, "20%"),
        Case({error: "0.2x90", due: "100x90"}, "80m"),
    )  # fmt: skip
