"""The board of what Tocsin finds, decides and does, and of how it is itself."""

from __future__ import annotations

from tocsin_grafana import flux
from tocsin_grafana.annotations import TOLD
from tocsin_grafana.parts import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, YES_NO, steps
from tocsin_grafana.spec import Board, Panel, Query, Row, help_of


def _state(name: str, title: str, width: int = 4, **more: object) -> Panel:
    return Panel(
        title,
        help_of(name),
        "stat",
        (Query(f"max({name})", instant=True),),
        width=width,
        height=4,
        **more,  # type: ignore[arg-type]
    )


def _counted(name: str, title: str, by: str, legend: str, width: int = 8, where: str = "", **more: object) -> Panel:
    chosen = f"{name}{{{where}}}" if where else name
    return Panel(
        title,
        help_of(name),
        "timeseries",
        (Query(f"sum by ({by}) (increase({chosen}[$__rate_interval]))", legend),),
        width=width,
        stack=True,
        least=0,
        **more,  # type: ignore[arg-type]
    )


def _now() -> Row:
    return Row(
        "Now",
        (
            Panel(
                "Mode",
                help_of("tocsin_mode"),
                "stat",
                (Query("max by (mode) (tocsin_mode) == 1", "{{mode}}", True),),
                width=4,
                height=4,
                states={1: ("in force", BLUE)},
            ),
            _state("tocsin_paused", "Paused", states=YES_NO),
            _state("tocsin_breaker_tripped", "Breaker tripped", states=YES_NO),
            _state("tocsin_decisions_approvable", "Wait for a person", steps=steps((None, GREEN), (1, YELLOW))),
            Panel(
                "Active brain",
                help_of("tocsin_brain_active"),
                "stat",
                (Query("sum(tocsin_brain_active)", instant=True),),
                width=4,
                height=4,
                steps=steps((None, RED), (1, GREEN), (2, RED)),
            ),
            _state("tocsin_evaluation_age_seconds", "Since the last evaluation", unit="s"),
        ),
    )


def _found() -> Row:
    return Row(
        "Found",
        (
            Panel(
                "Incidents that hold",
                help_of("tocsin_incidents_active"),
                "timeseries",
                (Query("sum by (severity) (tocsin_incidents_active)", "{{severity}}"),),
                width=8,
                stack=True,
                least=0,
            ),
            _counted("tocsin_findings_opened_total", "Findings opened, by rule", "rule", "{{rule}}"),
            Panel(
                "Findings that hold",
                help_of("tocsin_findings_active"),
                "timeseries",
                (Query("sum by (severity) (tocsin_findings_active)", "{{severity}}"),),
                width=8,
                stack=True,
                least=0,
            ),
            Panel(
                "Findings by rule",
                "Findings that began in each window, by rule.",
                "timeseries",
                influxdb=(Query(flux.counted(flux.stream(flux.WORDS, "gpu_finding", ["sentence"]), "rule")),),
                stack=True,
                least=0,
            ),
            Panel(
                "Findings in words",
                "The findings of the span, the newest first.",
                "table",
                influxdb=(
                    Query(
                        flux.list_of(
                            flux.stream(flux.WORDS, "gpu_finding", ["sentence", "severity", "action", "subject_host"]),
                            ["_time", "rule", "severity", "subject_host", "subject", "action", "sentence"],
                        )
                    ),
                ),
            ),
            Panel(
                "Events of the driver",
                "XIDs, lost GPUs, reloads and notices, the newest first.",
                "table",
                influxdb=(
                    Query(
                        flux.list_of(
                            flux.stream(flux.WORDS, "gpu_event", ["message", "source"], flux.FLEET),
                            ["_time", "kind", "code", "host", "gpu_uuid", "message", "source"],
                        )
                    ),
                ),
                width=24,
            ),
        ),
    )


def _done() -> Row:
    kinds = " or ".join(f'r.kind == "{kind}"' for kind in TOLD)
    return Row(
        "Decided and done",
        (
            Panel(
                "Decisions on record",
                help_of("tocsin_decisions_listed"),
                "timeseries",
                (Query("sum by (state) (tocsin_decisions_listed)", "{{state}}"),),
                width=8,
                stack=True,
                least=0,
            ),
            _counted("tocsin_decisions_total", "New decisions, by action", "action", "{{action}}"),
            _counted(
                "tocsin_verdicts_total", "What guards held or denied", "guard", "{{guard}}", where='ruling!="allow"'
            ),
            _counted(
                "tocsin_executions_total", "Executions, by outcome", "executor, status", "{{executor}} {{status}}"
            ),
            _counted("tocsin_deliveries_total", "Notifications, by how they ended", "outcome", "{{outcome}}"),
            _counted("tocsin_journal_entries_total", "Entries of the journal", "kind", "{{kind}}"),
            Panel(
                "Actions, incidents and pauses by kind",
                "Entries of the journal that are worth a mark, by kind.",
                "timeseries",
                influxdb=(
                    Query(flux.counted(flux.stream(flux.WORDS, "tocsin_entry", ["text"], f"({kinds})"), "kind")),
                ),
                stack=True,
                least=0,
            ),
            Panel(
                "The journal in words",
                "What was done, and by whom, the newest first.",
                "table",
                influxdb=(
                    Query(
                        flux.list_of(
                            flux.stream(flux.WORDS, "tocsin_entry", ["text", "actor"]),
                            ["_time", "kind", "host", "gpu_uuid", "action", "actor", "text"],
                        )
                    ),
                ),
            ),
        ),
    )


def _quantile(name: str, share: str, by: str = "") -> str:
    labels = f"le, {by}" if by else "le"
    return f"histogram_quantile({share}, sum by ({labels}) (rate({name}_bucket[$__rate_interval])))"


def _itself() -> Row:
    return Row(
        "Tocsin itself",
        (
            Panel(
                "Age of what is known",
                "Age of the fleet's newest reading, and time since the agents' last acknowledged push.",
                "timeseries",
                (
                    Query("max(tocsin_newest_reading_age_seconds)", "newest reading"),
                    Query("max(tocsin_push_age_seconds)", "slowest push"),
                    Query("max(tocsin_spool_oldest_seconds)", "oldest in a spool"),
                ),
                unit="s",
                width=8,
                least=0,
            ),
            Panel(
                "Losses and failures in ten minutes",
                "What was lost, and unexpected errors that a loop survived; both should be zero.",
                "timeseries",
                (
                    Query("sum by (what, reason) (increase(tocsin_dropped_total[10m]))", "{{what}}: {{reason}}"),
                    Query("sum by (loop) (increase(tocsin_loop_failures_total[10m]))", "loop {{loop}}"),
                    Query("sum(increase(tocsin_ticks_missed_total[10m]))", "readings skipped"),
                ),
                width=8,
                least=0,
                steps=steps((None, GREY), (1, ORANGE)),
            ),
            Panel(
                "Slowest twentieth",
                "The 95th percentile of an evaluation, a write to the store, and a reading of a source.",
                "timeseries",
                (
                    Query(_quantile("tocsin_rule_evaluation_seconds", "0.95"), "evaluation"),
                    Query(_quantile("tocsin_source_read_seconds", "0.95"), "reading"),
                    Query(_quantile("tocsin_api_request_seconds", "0.95"), "answer of the API"),
                ),
                unit="s",
                width=8,
                least=0,
            ),
        ),
    )


def board() -> Board:
    """From what was found to what was done about it."""
    return Board(
        "actions",
        "Actions",
        "What was found, what was decided, what held it back, what was done, and how Tocsin itself is.",
        "fleet",
        (_now(), _found(), _done(), _itself()),
    )
