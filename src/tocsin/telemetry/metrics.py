"""Tocsin's own metrics, all of them in one table; nothing outside it can be counted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Literal

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics

from tocsin import __version__

Kind = Literal["counter", "gauge", "histogram"]
SECONDS_BUCKETS = (0.001, 0.005, 0.01, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
"""Upper ends in seconds, from one NVML batch on a quiet GPU to the longest push time-out in use."""

# A series with the birth time of every counter doubles the output and makes it differ from run to run.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class OwnMetric:
    """One row: Prometheus type, label names, help."""

    kind: Kind
    labels: tuple[str, ...]
    help: str


PREDICTION_LABELS = ("target", "gpu_uuid", "gpu_index", "host", "pool", "part", "simulated")
"""Labels of one prediction; those that do not apply to its subject are empty, which Prometheus takes as absent."""

OWN_METRICS: dict[str, OwnMetric] = {
    "tocsin_build_info": OwnMetric("gauge", ("version",), "Always 1; the label is the version that runs."),
    # source and agent
    "tocsin_readings_total": OwnMetric("counter", ("source",), "GPU readings taken from a source."),
    "tocsin_events_total": OwnMetric("counter", ("source", "kind"), "Events seen by a source, by kind."),
    "tocsin_xids_total": OwnMetric(
        "counter",
        ("gpu_uuid", "gpu_index", "host", "pool", "simulated", "xid"),
        "XIDs that the agent handed on, by GPU and number; also of a GPU that is lost and has no metrics of its own.",
    ),
    "tocsin_source_read_seconds": OwnMetric("histogram", ("source",), "Time that one read of a source took."),
    "tocsin_nvml_reads_total": OwnMetric(
        "counter", ("outcome",), "Readings of single GPUs through NVML: ok, lost, timed_out or not_due."
    ),
    "tocsin_nvml_read_seconds": OwnMetric("histogram", (), "Time that reading one GPU through NVML took."),
    "tocsin_nvml_released": OwnMetric(
        "gauge", (), "1 while NVML is closed on request and the agent holds no handle of any GPU."
    ),
    "tocsin_nvml_implausible_counts_total": OwnMetric(
        "counter", ("what",), "Counts by the driver that cannot be, of gpu or mig: bounded, not believed."
    ),
    "tocsin_source_failures_total": OwnMetric("counter", ("source",), "Reads of a source that failed as a whole."),
    "tocsin_stuck_readers": OwnMetric(
        "gauge", ("source",), "GPUs whose reader hangs in the driver and is waited for no longer."
    ),
    "tocsin_frozen_values_total": OwnMetric(
        "counter", (), "Values taken out because they repeat while they cannot: the source has stopped reading."
    ),
    "tocsin_clock_steps_total": OwnMetric(
        "counter", ("direction",), "Steps of the wall clock by more than a second: forward or back."
    ),
    "tocsin_manager_up": OwnMetric(
        "gauge", ("manager",), "Whether Kubernetes or Slurm showed its nodes when it was last asked: 1 or 0."
    ),
    "tocsin_kubernetes_signs_total": OwnMetric(
        "counter",
        ("kind", "outcome"),
        "Node conditions and Events about open faults, by what became of the write: written, refused.",
    ),
    "tocsin_slurm_comments_total": OwnMetric(
        "counter",
        ("outcome",),
        "Comments of Slurm's nodes about open faults, by what became of the write: written, refused.",
    ),
    "tocsin_topology_disagreements": OwnMetric(
        "gauge",
        (),
        "Places that two sources name differently for a host or GPU, or that an agent names and the site does not.",
    ),
    "tocsin_brain_active": OwnMetric(
        "gauge", (), "Whether this brain is the active one: 1, or 0 while another holds the lease."
    ),
    "tocsin_budget_refusals_total": OwnMetric(
        "counter", (), "Starts of actions that the other cells of the fleet had left no room for."
    ),
    "tocsin_gpus_moved_total": OwnMetric(
        "counter", ("cell",), "GPUs that fell silent here and report to another cell, which has them from then on."
    ),
    "tocsin_companion_up": OwnMetric(
        "gauge",
        ("companion",),
        "Whether a companion is open: 1, or 0 with the reason in the log.",
    ),
    "tocsin_companion_failures_total": OwnMetric(
        "counter",
        ("companion",),
        "Failures of a companion, whose data is then left out of the reading.",
    ),
    "tocsin_companion_seconds_total": OwnMetric(
        "counter", ("companion",), "Time that readings waited for a companion."
    ),
    "tocsin_hook_processes": OwnMetric("gauge", (), "Training processes that are connected to the agent."),
    "tocsin_hook_messages_total": OwnMetric(
        "counter",
        ("outcome",),
        "Messages of training processes: taken, malformed, too_fast, unknown_gpu, not_on_gpu or repeated.",
    ),
    "tocsin_hook_requests_total": OwnMetric(
        "counter",
        ("kind", "outcome"),
        "Requests to training processes, by how they ended: done, failed, refused, expired or lost.",
    ),
    "tocsin_limit_writes_total": OwnMetric(
        "counter",
        ("outcome",),
        "Changes of GPU limits: written, restored, overruled, rebooted, or why not (permission, lost ...).",
    ),
    "tocsin_limits_engaged": OwnMetric("gauge", (), "GPUs of this node whose limits the agent has changed."),
    "tocsin_order_polls_total": OwnMetric(
        "counter", ("outcome",), "Polls of the brain for orders: answered or failed."
    ),
    "tocsin_order_reports_total": OwnMetric(
        "counter", ("state",), "Reports of agents that the brain took in, by the order's state."
    ),
    "tocsin_model_trainings_total": OwnMetric(
        "counter", ("outcome",), "Trainings by the service: promoted, shelved or failed."
    ),
    "tocsin_model_silent_gpus": OwnMetric("gauge", (), "GPUs with no forecast of the risk model."),
    "tocsin_model_shifted_features_ratio": OwnMetric(
        "gauge", (), "Share of the features that have shifted since the risk model was trained."
    ),
    "tocsin_model_calibration_error": OwnMetric(
        "gauge", (), "Stated less observed rate of hardware faults, as an amount, over what has come due in 30 days."
    ),
    "tocsin_model_matured_predictions": OwnMetric(
        "gauge", (), "Predictions of the last 30 days whose horizon has passed, one per GPU and horizon."
    ),
    "tocsin_vllm_scrapes_total": OwnMetric(
        "counter", ("outcome",), "Scrapes of vLLM servers: taken, unreachable, unreadable or without_gpu."
    ),
    "tocsin_network_ports": OwnMetric("gauge", (), "Network ports of this node that are read."),
    "tocsin_network_counters_at_cap": OwnMetric(
        "gauge", (), "Error counters of network ports that have come to their end, so that no further error is seen."
    ),
    "tocsin_versions_known": OwnMetric("gauge", (), "Versions of this node that the companion `versions` can read."),
    "tocsin_redfish_looks_total": OwnMetric(
        "counter", ("outcome",), "Looks at management controllers: complete, partly or failed."
    ),
    "tocsin_cloud_notices_total": OwnMetric(
        "counter", ("outcome",), "Polls of the cloud's metadata service: none, notice, unreachable or unreadable."
    ),
    "tocsin_missing_readings": OwnMetric(
        "gauge", ("reason",), "Metrics without a value in the newest readings, by reason."
    ),
    "tocsin_gpus": OwnMetric("gauge", ("source",), "GPUs and MIG instances in the newest reading of a source."),
    "tocsin_ticks_missed_total": OwnMetric("counter", (), "Ticks skipped because the one before took too long."),
    "tocsin_dropped_total": OwnMetric(
        "counter",
        ("what", "reason"),
        "What was lost (value, reading, owner, event, line, batch, port or usage), by reason; never silent.",
    ),
    "tocsin_loop_failures_total": OwnMetric("counter", ("loop",), "Unexpected errors that a supervised loop survived."),
    "tocsin_dcgm_lines_total": OwnMetric(
        "counter",
        ("outcome",),
        "Lines of dcgm-exporter and dcgmi: used, blank, implausible, unknown, other_entity or malformed.",
    ),
    "tocsin_dcgm_unsettled_errors_total": OwnMetric(
        "counter",
        ("kind", "reason"),
        "Latched XIDs and SXIDs that may be new or old and gave no event: exporter_restart or no_start_time.",
    ),
    "tocsin_child_starts_total": OwnMetric(
        "counter", ("source", "reason"), "Starts of a source's child process: first, ended, stuck or regrouped."
    ),
    "tocsin_kernel_log_reading": OwnMetric(
        "gauge", ("source",), "Whether the kernel log could be read at the last attempt: 1 or 0."
    ),
    "tocsin_kernel_log_lines_total": OwnMetric("counter", ("source",), "Lines of the kernel log that were looked at."),
    "tocsin_kernel_log_twins_total": OwnMetric(
        "counter",
        ("kept",),
        "Events that kernel log and source both reported, by the one that was kept: kernel or other.",
    ),
    # spool and uplink
    "tocsin_spool_batches": OwnMetric("gauge", (), "Batches that wait for an acknowledgement."),
    "tocsin_spool_bytes": OwnMetric("gauge", (), "Size of the batches that wait, as stored."),
    "tocsin_spool_oldest_seconds": OwnMetric("gauge", (), "Age of the oldest batch that waits; 0 where none does."),
    "tocsin_spool_memory_batches": OwnMetric(
        "gauge", (), "Batches that wait in memory because the disk takes none: lost if the process ends first."
    ),
    "tocsin_spool_parked_lines": OwnMetric("gauge", (), "Lines kept aside because the receiver refused them."),
    "tocsin_push_requests_total": OwnMetric(
        "counter", ("outcome",), "Pushes by outcome: acknowledged, refused, or to be retried."
    ),
    "tocsin_push_seconds": OwnMetric("histogram", (), "Time that one push took."),
    "tocsin_push_age_seconds": OwnMetric("gauge", (), "Time since the last acknowledged push, or since the start."),
    "tocsin_otlp_points_total": OwnMetric(
        "counter",
        ("outcome",),
        "Data points for the OTLP receiver: sent, refused, or lost to newer ones while it was away.",
    ),
    # store and journal
    "tocsin_store_writes_total": OwnMetric("counter", ("store",), "Batches written to the store."),
    "tocsin_store_followed_total": OwnMetric(
        "counter", ("what",), "Readings and events that agents wrote to the store themselves, taken over by the brain."
    ),
    "tocsin_promql_up": OwnMetric(
        "gauge", ("server",), "Whether the last round of the source promql got its answers: 1 or 0."
    ),
    "tocsin_promql_gpus": OwnMetric(
        "gauge", ("server",), "GPUs and MIG instances in the last answers of the source promql."
    ),
    "tocsin_promql_rounds_total": OwnMetric(
        "counter",
        ("outcome",),
        "Rounds of the source promql: taken, unreachable, access, query, too_large, not_prometheus or nothing.",
    ),
    "tocsin_promql_round_seconds": OwnMetric(
        "histogram", (), "Time that one round of the source promql took, until the brain had its readings."
    ),
    "tocsin_promql_samples_total": OwnMetric(
        "counter",
        ("outcome",),
        "Newest samples of series: used, blank, implausible, repeated (taken before), behind (of an earlier scrape), "
        "second_target, future, other, malformed, over_limit, or too_large for a metric that no answer can hold.",
    ),
    "tocsin_promql_readings_total": OwnMetric(
        "counter",
        ("outcome",),
        "Readings of the source promql: taken, or agent where an agent speaks for the GPU or its host.",
    ),
    "tocsin_promql_metrics": OwnMetric(
        "gauge", ("use",), "Metrics of the exporters: read, or on the server and unknown to the metric table."
    ),
    "tocsin_store_write_failures_total": OwnMetric(
        "counter", ("store", "reason"), "Writes that the store did not take: unavailable or rejected."
    ),
    "tocsin_store_damaged_segments": OwnMetric("gauge", (), "Files of history that cannot be read and were set aside."),
    "tocsin_store_damaged_rows": OwnMetric(
        "gauge",
        (),
        "Rows of the embedded store (readings, events, findings, predictions and others, transactions of the "
        "write-ahead log) that were not what was written and were set aside, and what a server returned that is no "
        "point of ours.",
    ),
    "tocsin_store_write_seconds": OwnMetric("histogram", ("store",), "Time that one write to the store took."),
    "tocsin_journal_entries_total": OwnMetric("counter", ("kind",), "Entries appended to the journal."),
    "tocsin_journal_archived_entries": OwnMetric(
        "gauge", (), "Entries of the journal that stand in its archive, no more in its own file."
    ),
    "tocsin_journal_witnesses": OwnMetric(
        "gauge", (), "Witnesses of the journal that answer and have seen no more than it has."
    ),
    "tocsin_journal_witness_behind": OwnMetric(
        "gauge", (), "Entries of the journal that the witness which is furthest behind has not seen."
    ),
    "tocsin_journal_witness_failures_total": OwnMetric(
        "counter", (), "Tries at a witness of the journal that had no answer."
    ),
    # rules, forecasts, actions
    "tocsin_fleet_free_gpus": OwnMetric("gauge", (), "Idle GPUs of the fleet."),
    "tocsin_fleet_fragmented_gpus": OwnMetric(
        "gauge", (), "Free GPUs that the next job of the task mix is expected to be unable to use."
    ),
    "tocsin_fleet_stranded_gpus": OwnMetric(
        "gauge", (), "Free GPUs that are too few on their node for a job of a whole node."
    ),
    "tocsin_fleet_unusable_gpus": OwnMetric(
        "gauge", (), "Free GPUs that no job of the task mix can use where they are."
    ),
    "tocsin_rule_evaluation_seconds": OwnMetric("histogram", (), "Time that one evaluation of all rules took."),
    "tocsin_findings_opened_total": OwnMetric("counter", ("rule",), "Findings opened, by rule."),
    "tocsin_findings_active": OwnMetric("gauge", ("severity",), "Findings that hold now, by severity."),
    "tocsin_forecast_seconds": OwnMetric("histogram", ("model",), "Time that one forecast of the fleet took."),
    "tocsin_forecast_failures_total": OwnMetric("counter", (), "Forecasts of the fleet that failed as a whole."),
    "tocsin_forecasts_unsettled_total": OwnMetric(
        "counter", (), "Forecasts that count neither as right nor as wrong: their GPU was observed no more."
    ),
    "tocsin_forecast_worker_deaths": OwnMetric("gauge", (), "Times that the forecast process died since the start."),
    "tocsin_predictions_total": OwnMetric("counter", ("status",), "Predictions made, by status."),
    "tocsin_decisions_total": OwnMetric("counter", ("action",), "Decisions made, by action."),
    "tocsin_verdicts_total": OwnMetric(
        "counter", ("ruling", "guard"), "Guard verdicts on decisions, by ruling and guard."
    ),
    "tocsin_executions_total": OwnMetric(
        "counter", ("executor", "status"), "Executed decisions, by executor and outcome."
    ),
    "tocsin_pool_gpus_wanted": OwnMetric(
        "gauge", ("pool",), "GPUs that executor scale_webhook last asked an outside autoscaler for."
    ),
    "tocsin_deliveries_total": OwnMetric(
        "counter", ("outcome",), "Notifications by how they ended: delivered, retried, or failed with every channel."
    ),
    "tocsin_notifications_withheld_total": OwnMetric(
        "counter",
        ("reason",),
        "Notifications held back until a silence of Tocsin or Alertmanager ends; what then still holds is told.",
    ),
    "tocsin_channel_deliveries_total": OwnMetric(
        "counter",
        ("channel", "outcome"),
        "Notifications by channel: delivered, partial (delivered without a part, such as a ticket's evidence), "
        "summarised, retried, failed, resolved, or unresolved: end not sent.",
    ),
    "tocsin_alertmanager_up": OwnMetric(
        "gauge", ("server",), "Whether the last question for the silences of Alertmanager was answered: 1 or 0."
    ),
    "tocsin_alertmanager_looks_total": OwnMetric(
        "counter",
        ("outcome",),
        "Questions for its silences: taken, unreachable, access, too_long or not_alertmanager.",
    ),
    "tocsin_alertmanager_silences": OwnMetric(
        "gauge",
        ("state",),
        "Silences of Alertmanager: standing, unusable and so not respected, or beyond the bound and not looked at.",
    ),
    # the present state, made for the brain's page
    "tocsin_evaluation_age_seconds": OwnMetric(
        "gauge", (), "Time since the last evaluation of all rules ended, or since the start."
    ),
    "tocsin_newest_reading_age_seconds": OwnMetric(
        "gauge", (), "Age of the newest reading of the fleet; absent where there is none."
    ),
    "tocsin_fleet_gpus": OwnMetric(
        "gauge", ("state",), "GPUs that the brain knows, by state: ok, warning, critical, stale or lost."
    ),
    "tocsin_incidents_active": OwnMetric(
        "gauge", ("severity",), "Incidents that hold now, by severity of their root cause."
    ),
    "tocsin_decisions_listed": OwnMetric("gauge", ("state",), "Decisions by state, notifications included."),
    "tocsin_decisions_approvable": OwnMetric("gauge", (), "Decisions that wait for approval."),
    "tocsin_paused": OwnMetric("gauge", (), "Whether a person has paused all actions: 1 or 0."),
    "tocsin_breaker_tripped": OwnMetric("gauge", (), "Whether the breaker over all actions is tripped: 1 or 0."),
    "tocsin_mode": OwnMetric("gauge", ("mode",), "1 for the mode of the service: observe, propose or act."),
    "tocsin_rule_cases": OwnMetric(
        "gauge",
        ("rule", "outcome"),
        "Settled cases in the record of a rule: right, wrong, goal_reached or goal_missed; absent without any.",
    ),
    "tocsin_rule_acts": OwnMetric("gauge", ("rule",), "1 where the rule acts without approval, else 0."),
    "tocsin_predictions_active": OwnMetric(
        "gauge", ("target", "status"), "Predictions in force, by target and status."
    ),
    "tocsin_predictions_unlisted": OwnMetric(
        "gauge", (), "Predictions in force without series of their own: the most urgent alone have some."
    ),
    "tocsin_prediction_probability_ratio": OwnMetric(
        "gauge", PREDICTION_LABELS, "Probability that the event named by target falls in the horizon; the most urgent."
    ),
    "tocsin_prediction_warning": OwnMetric(
        "gauge",
        PREDICTION_LABELS,
        "Whether the prediction warns: 1 where its model's own level is passed and it is not muted, else 0.",
    ),
    "tocsin_prediction_lead_seconds": OwnMetric(
        "gauge",
        (*PREDICTION_LABELS, "bound"),
        "Time from now to the predicted instant, 0 once it has passed; bound: expected, earliest or latest.",
    ),
    "tocsin_prediction_horizon_seconds": OwnMetric("gauge", PREDICTION_LABELS, "Horizon of the prediction."),
    "tocsin_annotations_total": OwnMetric(
        "counter", ("place", "outcome"), "Journal entries shown as annotations: written, retried or given_up, by place."
    ),
    # API
    "tocsin_api_requests_total": OwnMetric(
        "counter", ("route", "method", "status"), "Requests answered by the API, by route, method and status."
    ),
    "tocsin_api_request_seconds": OwnMetric("histogram", ("route",), "Time that the API took to answer."),
    "tocsin_api_lines_total": OwnMetric(
        "counter", ("outcome",), "Lines of line protocol received by the API: accepted or rejected."
    ),
    "tocsin_received_samples_total": OwnMetric(
        "counter",
        ("outcome",),
        "Samples of remote write and OTLP: used, blank, implausible, other (of no GPU), agent (an agent speaks for the "
        "GPU), and what the sender is told of: refused (not for it to say), full (of more GPUs or switches than are "
        "remembered), future, broken.",
    ),
    "tocsin_received_alerts_total": OwnMetric(
        "counter",
        ("outcome",),
        "Alerts of an Alertmanager: firing, resolved, unknown_place (of no host that is known), refused (not for the "
        "sender to say), malformed, or full.",
    ),
    "tocsin_api_refused_total": OwnMetric(
        "counter", ("reason",), "Requests refused by the API, by error code (docs/access.md)."
    ),
    "tocsin_token_reviews_total": OwnMetric(
        "counter",
        ("outcome",),
        "Questions to the API server of Kubernetes about tokens of nodes: known, unknown, or failed (no answer).",
    ),
    "tocsin_api_reads_left_out_total": OwnMetric(
        "counter", (), "Reads that the journal's entries of kind `reads` count without naming them (docs/access.md)."
    ),
    "tocsin_desk_calls_total": OwnMetric(
        "counter",
        ("desk", "outcome"),
        "Signed calls of ticket systems, by name, and presses of Slack's buttons: done, over (nothing was left to do), "
        "repeated, refused, ignored (no button of Tocsin), or unanswered (the person in Slack was not told).",
    ),
}
"""Name to definition. The exporter emits ``tocsin_missing_readings`` and ``tocsin_gpus`` out of what it holds."""

BRAIN_PAGE = frozenset(
    {
        "tocsin_evaluation_age_seconds",
        "tocsin_newest_reading_age_seconds",
        "tocsin_fleet_gpus",
        "tocsin_incidents_active",
        "tocsin_decisions_listed",
        "tocsin_decisions_approvable",
        "tocsin_paused",
        "tocsin_breaker_tripped",
        "tocsin_mode",
        "tocsin_rule_cases",
        "tocsin_rule_acts",
        "tocsin_predictions_active",
        "tocsin_predictions_unlisted",
        "tocsin_prediction_probability_ratio",
        "tocsin_prediction_warning",
        "tocsin_prediction_lead_seconds",
        "tocsin_prediction_horizon_seconds",
    }
)
"""Metrics that the brain makes at the instant of a scrape out of what stands then."""

COLLECTED = BRAIN_PAGE | {"tocsin_missing_readings", "tocsin_gpus"}
"""Metrics made at the instant of a scrape; the last two by the exporter, which knows what has expired."""


class OwnMetrics:
    """The metrics of `OWN_METRICS` on one registry. A name that is not in the table raises KeyError.

    A gauge is exported from its first value on: one that this process never sets would say 0 for another's.
    """

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        self.registry = registry if registry is not None else CollectorRegistry()
        self._counters: dict[str, Counter] = {}
        self._gauges: dict[str, Gauge] = {}
        self._exported: set[str] = set()
        self._exporting = threading.Lock()
        self._histograms: dict[str, Histogram] = {}
        for name, spec in OWN_METRICS.items():
            if name not in COLLECTED:
                self._create(name, spec)
        self.set("tocsin_build_info", 1, version=__version__)

    def _create(self, name: str, spec: OwnMetric) -> None:
        if spec.kind == "counter":
            self._counters[name] = Counter(name, spec.help, spec.labels, registry=self.registry)
        elif spec.kind == "gauge":
            self._gauges[name] = Gauge(name, spec.help, spec.labels, registry=None)
        else:
            self._histograms[name] = Histogram(
                name, spec.help, spec.labels, registry=self.registry, buckets=SECONDS_BUCKETS
            )

    def count(self, name: str, amount: float = 1, **labels: str) -> None:
        counter = self._counters[name]
        (counter.labels(**labels) if labels else counter).inc(amount)

    def set(self, name: str, value: float, **labels: str) -> None:
        gauge = self._gauge(name)
        (gauge.labels(**labels) if labels else gauge).set(value)

    def set_function(self, name: str, read: Callable[[], float]) -> None:
        """Let a gauge without labels be read by `read` at every scrape."""
        self._gauge(name).set_function(read)

    def _gauge(self, name: str) -> Gauge:
        gauge = self._gauges[name]
        if name not in self._exported:
            with self._exporting:
                if name not in self._exported:
                    self.registry.register(gauge)
                    self._exported.add(name)
        return gauge

    def observe(self, name: str, seconds: float, **labels: str) -> None:
        histogram = self._histograms[name]
        (histogram.labels(**labels) if labels else histogram).observe(seconds)

    def value(self, name: str, **labels: str) -> float:
        """The present value of a counter or gauge; 0 where nothing was ever counted."""
        found = self.registry.get_sample_value(name, labels)
        return 0.0 if found is None else found


def reference() -> Mapping[str, OwnMetric]:
    """The table in order of name, for documentation."""
    return dict(sorted(OWN_METRICS.items()))
