"""The board of what Tocsin finds, decides and does, and of how it is itself."""

from __future__ import annotations

from tocsin_grafana import flux
from tocsin_grafana.annotations import TOLD
from tocsin_grafana.parts import BLUE, GREEN, GREY, ORANGE, RED, YELLOW, YES_NO, split, steps, told, words
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


def _counted(metric: str, title: str, by: str, where: str = "") -> Panel:
    """What a counter grew by, as a stack: a band for each value of the labels `by`."""
    chosen = f"{metric}{{{where}}}" if where else metric
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return told(title, help_of(metric), {legend: f"sum by ({by}) (increase({chosen}[$__rate_interval]))"}, stack=True)


def _marks(title: str, text: str, points: str, tag: str) -> Panel:
    """How many points InfluxDB has in each window, as a stack: a band for each value of `tag`."""
    return Panel(title, text, "timeseries", influxdb=(Query(flux.counted(points, tag)),), stack=True, least=0)


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
    findings = flux.stream(flux.WORDS, "gpu_finding", ["sentence", "severity", "action", "subject_host"])
    events = flux.stream(flux.WORDS, "gpu_event", ["message", "source"], flux.FLEET)
    return Row(
        "Found",
        (
            split("tocsin_incidents_active", "Incidents that hold", "severity"),
            _counted("tocsin_findings_opened_total", "Findings opened, by rule", "rule"),
            split("tocsin_findings_active", "Findings that hold", "severity"),
            _marks(
                "Findings by rule",
                "Findings that began in each window, by rule.",
                flux.stream(flux.WORDS, "gpu_finding", ["sentence"]),
                "rule",
            ),
            words(
                "Findings in words",
                "The findings of the span, the newest first.",
                findings,
                ["_time", "rule", "severity", "subject_host", "subject", "action", "sentence"],
            ),
            words(
                "Events of the driver",
                "XIDs, lost GPUs, reloads and notices, the newest first.",
                events,
                ["_time", "kind", "code", "host", "gpu_uuid", "message", "source"],
                width=24,
            ),
        ),
    )


def _done() -> Row:
    kinds = " or ".join(f'r.kind == "{kind}"' for kind in TOLD)
    return Row(
        "Decided and done",
        (
            split("tocsin_decisions_listed", "Decisions on record", "state"),
            _counted("tocsin_decisions_total", "New decisions, by action", "action"),
            _counted("tocsin_verdicts_total", "What guards held or denied", "guard", where='ruling!="allow"'),
            _counted("tocsin_executions_total", "Executions, by outcome", "executor, status"),
            _counted("tocsin_deliveries_total", "Notifications, by how they ended", "outcome"),
            _counted("tocsin_journal_entries_total", "Entries of the journal", "kind"),
            _marks(
                "Actions, incidents and pauses by kind",
                "Entries of the journal that are worth a mark, by kind.",
                flux.stream(flux.WORDS, "tocsin_entry", ["text"], f"({kinds})"),
                "kind",
            ),
            words(
                "The journal in words",
                "What was done, and by whom, the newest first.",
                flux.stream(flux.WORDS, "tocsin_entry", ["text", "actor"]),
                ["_time", "kind", "host", "gpu_uuid", "action", "actor", "text"],
            ),
        ),
    )


def _slowest(metric: str) -> str:
    """The 95th percentile of a histogram."""
    return f"histogram_quantile(0.95, sum by (le) (rate({metric}_bucket[$__rate_interval])))"


def _itself() -> Row:
    ages = {
        "newest reading": "max(tocsin_newest_reading_age_seconds)",
        "slowest push": "max(tocsin_push_age_seconds)",
        "oldest in a spool": "max(tocsin_spool_oldest_seconds)",
    }
    losses = {
        "{{what}}: {{reason}}": "sum by (what, reason) (increase(tocsin_dropped_total[10m]))",
        "loop {{loop}}": "sum by (loop) (increase(tocsin_loop_failures_total[10m]))",
        "readings skipped": "sum(increase(tocsin_ticks_missed_total[10m]))",
    }
    times = {
        "evaluation": _slowest("tocsin_rule_evaluation_seconds"),
        "reading": _slowest("tocsin_source_read_seconds"),
        "answer of the API": _slowest("tocsin_api_request_seconds"),
    }
    return Row(
        "Tocsin itself",
        (
            told(
                "Age of what is known",
                "Age of the fleet's newest reading, and time since the agents' last acknowledged push.",
                ages,
                unit="s",
            ),
            told(
                "Losses and failures in ten minutes",
                "What was lost, and unexpected errors that a loop survived; both should be zero.",
                losses,
                steps=steps((None, GREY), (1, ORANGE)),
            ),
            told(
                "Slowest twentieth",
                "The 95th percentile of an evaluation, a write to the store, and a reading of a source.",
                times,
                unit="s",
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
