"""Alerts about telemetry that cannot be trusted, and about Tocsin itself."""

from __future__ import annotations

from tocsin.telemetry.metrics import OWN_METRICS
from tocsin_grafana.alert import OWN, RULE, Alert, Case, Severity, grown, matching, only_metric, per_gpu, silent
from tocsin_grafana.alerts_gpu import AGENT

_LABELS = {"instance": "n1:9835", "job": "tocsin"}


def _own(
    name: str,
    severity: Severity,
    held: str,
    expr: str,
    *,
    summary: str,
    says: str,
    remedy: str,
    source: str,
    fires: str,
    rests: str,
    shown: str = "",
    labels: dict[str, str] | None = None,
    at: str = "30m",
) -> Alert:
    """An alert on the one metric of Tocsin's own that `expr` names, with the labels of its series: `labels`, and those
    of its target."""
    metric, more = only_metric(expr, OWN_METRICS), labels or {}
    assert set(more) <= set(OWN_METRICS[metric].labels), name
    series = f"{metric}{{{matching(_LABELS | more)}}}"
    return Alert(
        name,
        expr,
        held,
        severity,
        "service",
        summary,
        says,
        remedy,
        source,
        Case({series: fires}, at, _LABELS | more, shown),
        Case({series: rests}, at),
    )


_STANDS = {
    "gpu_energy_joules_total": "900x90",
    "gpu_temperature_celsius": "45x90",
    "gpu_power_watts": "310x90",
    "gpu_sm_clock_hertz": "1980x90",
    "gpu_memory_used_bytes": "4000x90",
}
_STILL = " and ".join(f"changes({metric}[1h]) == 0" for metric in _STANDS)
_SEEN = "count_over_time(gpu_temperature_celsius[1h]) >= 6 and gpu_temperature_celsius offset 1h"

_TELEMETRY = (
    AGENT.alert(
        "GpuTelemetryFrozen", "telemetry_frozen", "warning", "symptom",
        expr=per_gpu(f"{_SEEN} and {_STILL}"),
        summary="Readings of a GPU on {{ $labels.host }} do not move",
        says="energy, temperature, power, clock and memory have not changed for an hour; the source repeats old "
        "values.",
        remedy="Restart the exporter or the driver's persistence daemon; until then nothing that is shown of this GPU "
        "is true.",
        fires=_STANDS, rests=_STANDS | {"gpu_energy_joules_total": "900+310x90"}, wait="0s", at="80m",
    ),
    AGENT.alert(
        "GpuTelemetryStopped", "gpu_silent", "warning", "symptom",
        expr=per_gpu(
            'last_over_time(gpu_temperature_celsius{mig_uuid=""}[1h]) unless on (gpu_uuid) gpu_temperature_celsius'
        ),
        summary="A GPU on {{ $labels.host }} has stopped reporting",
        says="no reading for ten minutes; an hour after the last one this alert ends.",
        remedy="Look at the agent's log, then at the GPU itself: it may be lost.",
        fires="50x10 _x40", rests="50x50",
        wait="5m", note="Prometheus forgets a series after five minutes, which makes ten.",
    ),
    _own(
        "GpuValuesFrozen", "warning", "5m", 'tocsin_missing_readings{reason="frozen"} > 0',
        summary="A source on {{ $labels.instance }} repeats old values",
        says="{{ $labels.instance }}: {{ $value | humanize }} values are not believed, since they repeat while they "
        "cannot.",
        remedy="Restart the exporter or the driver; docs/agent.md says what counts as frozen.",
        source=RULE.format("values_frozen"),
        fires="0x10 12x30", rests="0x40", shown="12", labels={"reason": "frozen"},
    ),
    _own(
        "GpuLost", "critical", "0s", 'tocsin_missing_readings{reason="lost"} > 0',
        summary="A GPU at {{ $labels.instance }} is lost",
        says="{{ $labels.instance }}: {{ $value | humanize }} values are missing because a GPU does not answer its "
        "driver.",
        remedy="Look at the kernel log for XID 79; drain the host, then power it off and on.",
        source=OWN.format("a GPU that does not answer is a fault from the first reading on"),
        fires="0x10 90x30", rests="0x40", shown="90", labels={"reason": "lost"},
    ),
    _own(
        "GpuReaderStuck", "warning", "5m", "tocsin_stuck_readers > 0",
        summary="A call into the driver hangs at {{ $labels.instance }}",
        says="{{ $labels.instance }}: {{ $value | humanize }} GPUs whose reader hangs in the driver.",
        remedy="The driver or the GPU hangs: look at the kernel log, and drain the host if it does not come back.",
        source=OWN.format("the agent waits 5 s; five minutes of it is no hiccup"),
        fires="0x10 1x30", rests="0x10 1x2 0x30", shown="1", labels={"source": "nvml"},
    ),
)  # fmt: skip

_AGENTS = (
    _own(
        "TocsinAgentGone", "warning", "5m", silent("tocsin_readings_total", "instance"),
        summary="The agent at {{ $labels.instance }} is gone",
        says="{{ $labels.instance }} has not been scraped for ten minutes; its GPUs are unseen.",
        remedy="Look at the node, then at `systemctl status tocsin-agent` or its pod.",
        source=OWN.format("five minutes until Prometheus forgets, and five more"),
        fires="1+8x10 _x40", rests="1+8x50", labels={"source": "nvml"},
    ),
    _own(
        "TocsinSourceFails", "warning", "10m", grown("tocsin_source_failures_total", "10m"),
        summary="A source at {{ $labels.instance }} cannot be read",
        says="{{ $labels.instance }}: readings of {{ $labels.source }} fail as a whole.",
        remedy="The agent's log says why: driver, permission, or the exporter that it reads.",
        source=OWN.format("ten minutes of failures is no restart"),
        fires="0+1x40", rests="0x5 2x40", shown="11", labels={"source": "nvml"},
    ),
    _own(
        "TocsinPushStalled", "warning", "0s", "tocsin_push_age_seconds > 300",
        summary="The agent at {{ $labels.instance }} cannot deliver",
        says="{{ $labels.instance }}: no push was acknowledged for {{ $value | humanizeDuration }}.",
        remedy="Look at the brain or store that it pushes to, and at its token; readings wait in the spool.",
        source=OWN.format("300 s; ten times the default interval of 10 s, and three of the longest usual scrape"),
        fires="10x10 400x30", rests="10x40", shown="6m 40s",
    ),
    _own(
        "TocsinSpoolInMemory", "warning", "5m", "tocsin_spool_memory_batches > 0",
        summary="The disk at {{ $labels.instance }} takes no readings",
        says="{{ $labels.instance }}: {{ $value | humanize }} batches wait in memory alone and are lost if the agent "
        "ends.",
        remedy="Make room on the disk, or mount it for writing.",
        source=OWN.format("five minutes, as a full disk seldom clears itself"),
        fires="0x10 3x30", rests="0x10 3x2 0x30", shown="3",
    ),
    _own(
        "TocsinDataLost", "warning", "0s", grown("tocsin_dropped_total", "15m", 'what!="value"'),
        summary="Data was lost at {{ $labels.instance }}",
        says="{{ $labels.instance }}: {{ $value | humanize }} of kind {{ $labels.what }} were lost, reason "
        "{{ $labels.reason }}.",
        remedy="docs/agent.md says what each reason means.",
        source=OWN.format("any loss; single values that are implausible do not count"),
        fires="_x20 3x20", rests="3x60", shown="3", labels={"what": "batch", "reason": "spool_full"},
    ),
    _own(
        "TocsinTicksMissed", "warning", "0s", "increase(tocsin_ticks_missed_total[10m]) > 6",
        summary="The agent at {{ $labels.instance }} skips readings",
        says="{{ $labels.instance }}: {{ $value | humanize }} readings were skipped within ten minutes.",
        remedy="A reading takes longer than the interval: look at tocsin_source_read_seconds, or lengthen the "
        "interval.",
        source=OWN.format("6 in ten minutes is one in ten at the default interval"),
        fires="0x20 0+2x20", rests="0x20 0+0.2x20", shown="18",
    ),
    _own(
        "TocsinCompanionDown", "warning", "15m", "tocsin_companion_up == 0",
        summary="Part of the agent at {{ $labels.instance }} does not run",
        says="{{ $labels.instance }}: {{ $labels.companion }} could not be opened.",
        remedy="The agent's log names the remedy, mostly a permission.",
        source=OWN.format("three tries of five minutes"),
        fires="1x5 0x40", rests="1x5 0x5 1x40", at="40m", labels={"companion": "kernel_log"},
    ),
    _own(
        "TocsinKernelLogUnread", "warning", "10m", "tocsin_kernel_log_reading == 0",
        summary="The kernel log at {{ $labels.instance }} cannot be read",
        says="{{ $labels.instance }}: XIDs may go unseen ({{ $labels.source }}).",
        remedy="Give the agent /dev/kmsg with CAP_SYSLOG, or the journal's folder.",
        source=OWN.format("ten minutes"),
        fires="1x5 0x40", rests="1x5 0x5 1x40", labels={"source": "kmsg"},
    ),
)  # fmt: skip

_BRAIN_LIVES = (
    _own(
        "TocsinBrainGone", "critical", "5m", silent("tocsin_brain_active", "instance"),
        summary="The brain at {{ $labels.instance }} is gone",
        says="{{ $labels.instance }} has not been scraped for ten minutes; nobody judges the fleet but these alerts.",
        remedy="Look at `systemctl status tocsin-brain` or its pod. Agents keep their readings meanwhile.",
        source=OWN.format("five minutes until Prometheus forgets, and five more"),
        fires="1x10 _x40", rests="1x50",
    ),
    # A cell whose brains all stand by is not covered by one that has an active brain.
    Alert(
        "TocsinNoActiveBrain", "max by (cell) (tocsin_brain_active) == 0", "2m", "critical", "service",
        "No brain acts",
        "Every brain that is scraped, of the alert's cell where it has one, says that another one holds the lease.",
        "Look at the lease: a file, a row of the database, or coordination.k8s.io. A brain that lost its way to it "
        "takes over within the lease's time.",
        OWN.format("two minutes, twice the usual hand-over"),
        Case(
            {
                f"tocsin_brain_active{{{matching(_LABELS | {'cell': cell})}}}": values
                for cell, values in (("east", "1x10 0x30"), ("west", "1x40"))
            },
            labels={"cell": "east"},
        ),
        Case({f"tocsin_brain_active{{{matching(_LABELS)}}}": "1x40"}),
    ),
    _own(
        "TocsinEvaluationStalled", "critical", "0s", "tocsin_evaluation_age_seconds > 120",
        summary="The brain at {{ $labels.instance }} does not judge",
        says="{{ $labels.instance }}: the last evaluation ended {{ $value | humanizeDuration }} ago.",
        remedy="Look at its log; restart it if it hangs. Its state is on disk.",
        source=OWN.format("120 s, eight of the default intervals of 15 s"),
        fires="10x10 150x30", rests="10x40", shown="2m 30s",
    ),
    _own(
        "TocsinNoFreshReadings", "critical", "0s", "tocsin_newest_reading_age_seconds > 300",
        summary="The brain at {{ $labels.instance }} gets no readings",
        says="{{ $labels.instance }}: the fleet's newest reading is {{ $value | humanizeDuration }} old.",
        remedy="Look at the agents' pushes and at the store.",
        source=OWN.format("300 s; no action is taken on data older than 120 s anyway"),
        fires="10x10 600x30", rests="10x40", shown="10m 0s",
    ),
    _own(
        "TocsinGpusStale", "warning", "10m", 'tocsin_fleet_gpus{state="stale"} > 0',
        summary="GPUs are silent, as {{ $labels.instance }} sees it",
        says="{{ $labels.instance }}: {{ $value | humanize }} GPUs have no fresh reading.",
        remedy="Look at the agents of their hosts; `tocsin status` names them.",
        source=RULE.format("gpu_silent"),
        fires="0x10 4x30", rests="0x10 4x5 0x30", shown="4", labels={"state": "stale"},
    ),
    _own(
        "TocsinLoopFails", "warning", "0s", grown("tocsin_loop_failures_total", "15m"),
        summary="A loop failed at {{ $labels.instance }}",
        says="{{ $labels.instance }}: loop {{ $labels.loop }} met {{ $value | humanize }} unexpected errors.",
        remedy="The log has the whole error: report it.",
        source=OWN.format("any; a loop survives but ought not to fail"),
        fires="_x20 1x20", rests="1x60", shown="1", labels={"loop": "evaluate"},
    ),
    _own(
        "TocsinStoreWritesFail", "critical", "5m", grown("tocsin_store_write_failures_total", "10m"),
        summary="The store of {{ $labels.instance }} takes no writes",
        says="{{ $labels.instance }}: writes to {{ $labels.store }} fail, reason {{ $labels.reason }}.",
        remedy="Look at the store: disk, server, token. Agents keep their readings meanwhile.",
        source=OWN.format("five minutes is no restart of a server"),
        fires="0x5 0+2x40", rests="0x5 2 2x40", shown="20", labels={"store": "influxdb", "reason": "unavailable"},
    ),
)  # fmt: skip

_ERROR = f"tocsin_model_calibration_error{{{matching(_LABELS)}}}"
_DUE = f"tocsin_model_matured_predictions{{{matching(_LABELS)}}}"

_BRAIN_WORKS = (
    _own(
        "TocsinForecastFails", "warning", "0s", "increase(tocsin_forecast_failures_total[1h]) > 1",
        summary="Forecasts fail at {{ $labels.instance }}",
        says="{{ $labels.instance }}: {{ $value | humanize }} forecasts failed as a whole within an hour.",
        remedy="Look at the log and at the store; rules go on without forecasts.",
        source=OWN.format("more than one, so that a restart of the store is none"),
        fires="0x10 0+1x60", rests="0x70", shown="49", at="60m",
    ),
    Alert(
        "TocsinModelBadlyCalibrated",
        "tocsin_model_calibration_error > 0.1 and on (instance) tocsin_model_matured_predictions > 500",
        "1h", "warning", "service", "The risk model no longer fits, says {{ $labels.instance }}",
        "{{ $labels.instance }}: stated and observed rates of hardware faults differ by "
        "{{ $value | humanizePercentage }}.",
        "Train anew on the fleet's own past (docs/lifecycle.md); until then rule gpu_fault_predicted should not act.",
        OWN.format("a tenth, over more than 500 predictions that have come due"),
        Case({_ERROR: "0.2x90", _DUE: "900x90"}, "80m", _LABELS, "20%"),
        Case({_ERROR: "0.2x90", _DUE: "100x90"}, "80m"),
    ),
    _own(
        "TocsinBreakerTripped", "critical", "0s", "tocsin_breaker_tripped == 1",
        summary="The breaker over all actions is tripped",
        says="{{ $labels.instance }}: too many root causes at once; nothing but notifications is done.",
        remedy="Find out what they share, then `tocsin breaker reset` (docs/operations/runbooks/guards/breaker.md).",
        source="Setting actions.breaker_root_causes.",
        fires="0x10 1x30", rests="0x40",
    ),
    _own(
        "TocsinPausedLong", "info", "8h", "tocsin_paused == 1",
        summary="All actions have been paused for long",
        says="{{ $labels.instance }}: a person has paused all actions, and nobody has resumed them for eight hours.",
        remedy="`tocsin resume` if the reason is gone.",
        source=OWN.format("eight hours, a shift"),
        fires="1x600", rests="1x100 0x500", at="550m",
    ),
    _own(
        "TocsinDecisionsWait", "info", "30m", "tocsin_decisions_approvable > 0",
        summary="Decisions wait for a person",
        says="{{ $labels.instance }}: {{ $value | humanize }} proposed actions wait for a word.",
        remedy="`tocsin approve` or `tocsin reject`, or the dashboard; they expire after actions.time_box_seconds.",
        source=OWN.format("half of the default time box of an hour"),
        fires="0x10 2x60", rests="0x10 2x5 0x60", shown="2", at="50m",
    ),
    _own(
        "TocsinExecutionsFail", "warning", "0s",
        grown("tocsin_executions_total", "1h", 'status=~"failed|goal_not_reached"'),
        summary="An action failed at {{ $labels.instance }}",
        says="{{ $labels.instance }}: executor {{ $labels.executor }} ended {{ $value | humanize }} as "
        "{{ $labels.status }}.",
        remedy="`tocsin journal tail` says which and why; look at the runbook of the action.",
        source=OWN.format("any within an hour"),
        fires="_x60 1x40", rests="1x100", shown="1", at="80m", labels={"executor": "kubernetes", "status": "failed"},
    ),
    _own(
        "TocsinNotificationsLost", "critical", "0s", 'increase(tocsin_deliveries_total{outcome="failed"}[15m]) > 0',
        summary="Nobody was told of something by {{ $labels.instance }}",
        says="{{ $labels.instance }}: {{ $value | humanize }} notifications failed with every channel.",
        remedy="`tocsin notify test` tells which channel does not work.",
        source=OWN.format("any: a notification that nobody got is the worst failure of a warning service"),
        fires="0x20 1x20", rests="1x40", shown="1", labels={"outcome": "failed"},
    ),
    _own(
        "TocsinManagerDown", "warning", "5m", "tocsin_manager_up == 0",
        summary="{{ $labels.manager }} does not show its nodes",
        says="{{ $labels.instance }}: {{ $labels.manager }} did not answer; no action is taken through it.",
        remedy="Look at its API and at the credentials of the brain.",
        source=OWN.format("five minutes"),
        fires="1x5 0x40", rests="1x40", labels={"manager": "kubernetes"},
    ),
    _own(
        "TocsinStoreDamaged", "warning", "0s", "tocsin_store_damaged_segments > 0",
        summary="Files of history are damaged at {{ $labels.instance }}",
        says="{{ $labels.instance }}: {{ $value | humanize }} files cannot be read and were set aside.",
        remedy="Look at the disk; restore them from a backup (docs/store_embedded.md).",
        source=OWN.format("any"),
        fires="0x10 1x30", rests="0x40", shown="1",
    ),
    _own(
        "TocsinStoreRowsDamaged", "warning", "0s", "tocsin_store_damaged_rows > 0",
        summary="Rows of the store are damaged at {{ $labels.instance }}",
        says="{{ $labels.instance }}: {{ $value | humanize }} rows are not what was written and were set aside.",
        remedy="Look at the disk; it rests once table `damaged` is empty (docs/store_embedded.md).",
        source=OWN.format("any"),
        fires="0x10 2x30", rests="0x40", shown="2",
    ),
)  # fmt: skip


def alerts() -> list[Alert]:
    """Telemetry, agents, brain, in this order."""
    return [*_TELEMETRY, *_AGENTS, *_BRAIN_LIVES, *_BRAIN_WORKS]
