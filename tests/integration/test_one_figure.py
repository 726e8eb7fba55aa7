"""One figure, one source: what page, API, command line, `top`, metrics, map, report and journal say is the same.

A simulated fleet with faults stands still while every place is asked for the same figures. Dashboards of Grafana have
theirs from the metrics: each metric that is compared here is one that they ask for, or the alerts do.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from prometheus_client.parser import text_string_to_metric_families
from streamlit.testing.v1 import AppTest

import tocsin.dashboard
from tocsin.api.app import create_app
from tocsin.api.server import ApiServer
from tocsin.cli.main import cli
from tocsin.client.client import Client
from tocsin.client.models import STATE_RANKS, FleetSummary, GpuState
from tocsin.config.access import ApiSettings
from tocsin.config.settings import Settings
from tocsin.dashboard.access import URL_VARIABLE
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import DAY, MINUTE, from_iso, to_iso
from tocsin.domain.decision import DecisionState
from tocsin.domain.entry import EntryKind
from tocsin.domain.finding import ActionKind, Severity
from tocsin.runtime.demo import Demo, demo_settings
from tocsin_testing.builders import T0

ROOT = Path(__file__).parents[2]
APP = Path(tocsin.dashboard.__file__).with_name("app.py")
GPUS, STEPS = 16, 30
FAULTS = (("row_remap", "4"), ("fallen_off_bus", "9"), ("thermal_drift", "12"), ("memory_leak", "14"))
LEAST_FIGURES = 40
Places = dict[str, Any]
"""By place, what it says."""


@dataclass(frozen=True)
class Site:
    """A fleet that stands still, and its API."""

    demo: Demo
    url: str
    client: Client

    samples: list[Any] = field(default_factory=list)
    asked: set[str] = field(default_factory=set)

    def metric(self, name: str, **labels: str) -> float:
        """The sum over the samples of `name` with these labels, 0 where there is none of a metric that is there."""
        assert any(one.name == name for one in self.samples), f"no metric {name}"
        self.asked.add(name)
        return sum(one.value for one in self.samples if one.name == name and labels.items() <= one.labels.items())

    def told(self, *command: str) -> str:
        """What a command prints."""
        result = CliRunner().invoke(cli, [*command, "--api-url", self.url], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.output

    def printed(self, *command: str) -> Any:
        return json.loads(self.told(*command, "--json"))

    def page(self, name: str, **query: str) -> str:
        """The words of a page of the dashboard, tags taken out."""
        app = AppTest.from_file(str(APP), default_timeout=120)
        app.query_params.update(query)
        app.run()
        if name != "overview":
            app.switch_page(f"page_{name}.py")
            app.query_params.update(query)
            app.run()
        assert not app.exception
        words = [
            str(getattr(one.proto, "body", "")) for kind in ("html", "markdown", "caption") for one in app.get(kind)
        ]
        text = re.sub(r"<style.*?</style>|<script.*?</script>", " ", "\n".join(words), flags=re.DOTALL)
        return re.sub(r"\s+", " ", re.sub(r"<[^>]+>", " ", text))

    def entries(self) -> Counter[str]:
        return Counter(entry.kind for entry in self.demo.brain.journal.entries())


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("site")
    wanted = Settings.model_validate(
        {
            "simulation": {"gpus": GPUS},
            "forecast": {"worker": False, "models": folder / "models"},
            "actions": {"confirmations": 1, "boot_grace_seconds": 0},
        }
    )
    demo = Demo(demo_settings(wanted, folder), T0)
    demo._script = []
    demo.step()
    for kind, gpu in FAULTS:
        demo.service.inject(kind, gpu, "ann")
    for _ in range(STEPS):
        demo.step()
    server = ApiServer(create_app(demo.service, ApiSettings()), settings=ApiSettings())
    server.start()
    try:
        with pytest.MonkeyPatch.context() as patch, Client(server.url) as client:
            patch.setenv(URL_VARIABLE, server.url)
            families = text_string_to_metric_families(client.metrics())
            yield Site(demo, server.url, client, [sample for family in families for sample in family.samples])
    finally:
        server.stop()
        demo.running.stop()


def found(pattern: str, text: str) -> int:
    """The number in the one place where `text` has `pattern`; 0 where it has none."""
    told = set(re.findall(pattern, text))
    assert len(told) <= 1, f"{pattern}: {told}"
    return int(str(next(iter(told), "0")).replace(",", ""))


def test_cost_and_usage_tell_one_energy(site: Site) -> None:
    """Also of the time before the brain was: both have what the store has."""
    keeper, now_ms = site.demo.brain.usage, site.demo.clock.now_ms()
    keeper.look()
    day = to_iso(now_ms)[:10]
    usage = site.client.usage(day, to_iso(now_ms + DAY)[:10], ["pool"], 10).total
    cost = site.client.cost(from_iso(f"{day}T00:00:00Z"), now_ms).usage
    assert usage.gpu_hours > GPUS * STEPS / 60 * 5, "the past of the demo is hours"
    # The page of cost counts whole quarters of an hour, usage from one reading to the next: the first and last differ.
    assert usage.gpu_hours == pytest.approx(cost.gpu_hours, abs=GPUS / 2)
    assert usage.kwh == pytest.approx(cost.kwh, abs=cost.kwh / cost.gpu_hours * GPUS / 2)


@pytest.fixture(scope="module")
def figures(site: Site) -> dict[str, Places]:
    """Every figure, in every place that has it."""
    client, summary = site.client, site.client.summary()
    made: dict[str, Places] = {}
    for part in (_fleet, _states, _findings, _decisions, _cards, _control, _fragmentation, _ahead, _one_gpu, _journal):
        for name, places in part(site, client, summary).items():
            made[name] = {"API": places.pop("API"), **places}
    return made


def _fleet(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    gpus, drawn = client.gpus(), client.fleet_map()[0]
    assert drawn is not None
    status, top, now, printed = (
        site.told("status", "--all"),
        site.told("top", "--once"),
        site.page("overview"),
        site.printed("status"),
    )
    seen = [one for one in gpus if one.utilization_ratio is not None]
    told = [one for one in gpus if one.memory_used_ratio is not None]
    busy = sum(one.utilization_ratio or 0.0 for one in seen) / len(seen)
    full = sum(one.memory_used_ratio or 0.0 for one in told) / len(told)
    watts = sum(one.power_watts or 0.0 for one in gpus)
    of_map = [value for value in drawn.utilization if value is not None]
    return {
        "GPUs": {
            "API": summary.gpus, "list": len(gpus), "map": len(drawn.uuid), "metrics": site.metric("tocsin_fleet_gpus"),
            "status": found(r"(\d+) GPUs on", status), "top": found(r"(\d+) GPUs on", top), "JSON": printed["gpus"],
            "page": found(r"GPUs (\d+) hosts", now),
        },
        "hosts": {
            "API": summary.hosts, "list": len({one.host for one in gpus}), "map": len(drawn.hosts),
            "status": found(r"GPUs on (\d+) hosts", status), "top": found(r"GPUs on (\d+) hosts", top),
            "page": found(r"hosts: (\d+)", now),
        },
        "pools": {
            "API": summary.pools, "list": len({one.pool for one in gpus}), "map": len(set(drawn.pools)),
            "page": found(r"pools: (\d+)", now), "JSON": printed["pools"],
        },
        "utilization, %": {
            "API": round(100 * (summary.utilization_ratio or 0)), "list": round(100 * busy),
            "map": round(100 * sum(of_map) / len(of_map)), "status": found(r"(\d+) % busy", status),
            "page": found(r"Load (\d+) %", now),
        },
        "memory used, %": {
            "API": round(100 * (summary.memory_used_ratio or 0)), "list": round(100 * full),
            "status": found(r"memory (\d+) % full", status), "page": found(r"% memory (\d+) %", now),
        },
        "power, W": {
            "API": round(summary.power_watts or 0), "list": round(watts), "page": found(r"memory \d+ %, (\d+) W", now),
        },
        "power, kW": {
            "API": f"{(summary.power_watts or 0) / 1000:.1f}",
            "status": re.findall(r"([\d.]+) kW", status)[0],
        },
        "newest reading": {
            "API": summary.last_reading, "list": max(one.last_reading or "" for one in gpus),
            "JSON": printed["last_reading"],
        },
        "age of the newest reading, s": {
            "API": round(summary.last_reading_age_s or 0), "status": found(r"last reading (\d+) s ago", status),
            "metrics": round(site.metric("tocsin_newest_reading_age_seconds")),
            "page": found(r"Newest reading (\d+) s ago", now),
        },
        "version": {
            "API": summary.version, "JSON": printed["version"], "status": re.findall(r"Tocsin ([\d.]+):", status)[0],
            "metrics": next(one.labels["version"] for one in site.samples if one.name == "tocsin_build_info"),
        },
    }  # fmt: skip


def _states(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    gpus, drawn = client.gpus(), client.fleet_map()[0]
    assert drawn is not None
    status, top, printed, now = (
        site.told("status", "--all"),
        site.told("top", "--once"),
        site.printed("status"),
        site.page("overview"),
    )
    made: dict[str, Places] = {}
    for state in GpuState:
        made[f"GPUs that are {state}"] = {
            "API": summary.states.get(state, 0),
            "list": sum(one.state is state for one in gpus),
            "map": drawn.state.count(STATE_RANKS.index(state)),
            "metrics": site.metric("tocsin_fleet_gpus", state=state),
            "status": found(rf"[:,] (\d+) {state}\b", status.partition("GPUs on")[2].partition("\n")[0]),
            "top": found(rf"[:,] (\d+) {state}\b", top.partition("GPUs on")[2].partition("\n")[0]),
            "JSON": printed["states"].get(state, 0),
        }
    made[f"GPUs that are {GpuState.CRITICAL}"]["page"] = found(r"(\d+) critical, \d+ lost", now)
    made[f"GPUs that are {GpuState.LOST}"]["page"] = found(r"\d+ critical, (\d+) lost", now)
    made[f"GPUs that are {GpuState.STALE}"]["page"] = found(r"(\d+) without fresh data", now)
    made[f"GPUs that are {GpuState.WARNING}"]["page"] = found(r"Warning \S* ?(\d+) \d+ without", now)
    return made


def _findings(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    findings, incidents = client.findings(), client.incidents()
    status, printed, entries = site.told("status", "--all"), site.printed("status"), site.entries()
    line = next(line for line in status.splitlines() if line.startswith("findings:"))
    made: dict[str, Places] = {}
    for severity in Severity:
        made[f"findings, {severity}"] = {
            "API": summary.findings.get(severity, 0),
            "list": sum(one.severity is severity for one in findings),
            "metrics": site.metric("tocsin_findings_active", severity=severity),
            "status": found(rf"(\d+) {severity}\b", line.partition(";")[0]),
            "JSON": printed["findings"].get(severity, 0),
        }
    for level in AlertLevel:
        made[f"incidents, {level}"] = {
            "API": summary.levels.get(level, 0),
            "list": sum(one.level is level for one in incidents),
            "status": found(rf"(\d+) {level}\b", line.partition("incidents:")[2]),
            "JSON": printed["levels"].get(level, 0),
        }
    made["findings"] = {
        "API": sum(summary.findings.values()), "list": len(findings), "metrics": site.metric("tocsin_findings_active"),
        "journal": entries[EntryKind.FINDING_OPENED] - entries[EntryKind.FINDING_CLEARED],
    }  # fmt: skip
    made["incidents"] = {
        "API": summary.incidents, "list": len(incidents), "metrics": site.metric("tocsin_incidents_active"),
        "status": found(r"incidents: (\d+)", line), "JSON": len(printed["attention"]),
        "journal": entries[EntryKind.INCIDENT_OPENED] - entries[EntryKind.INCIDENT_CLOSED],
    }  # fmt: skip
    return made


def _decisions(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    decisions, scores = client.decisions(1_000), client.scoreboard()
    printed, now, board = site.printed("status"), site.page("overview"), site.page("scoreboard")
    actions = [one for one in decisions if one.action is not ActionKind.NOTIFY]
    keys = {str(entry.payload["key"]) for entry in site.demo.brain.journal.entries(kinds={EntryKind.DECISION})}
    return {
        "decisions": {
            "API": summary.decisions, "list": len(decisions), "metrics": site.metric("tocsin_decisions_listed"),
            "journal": len(keys), "JSON": printed["decisions"],
        },
        "actions decided": {
            "API": scores.decisions, "list": len(actions), "page": found(r"Decisions (\d+) Would", board),
            "command": site.printed("scoreboard")["decisions"],
        },
        "decisions held": {
            "API": summary.decisions_held, "list": sum(one.state is DecisionState.HELD for one in decisions),
            "metrics": site.metric("tocsin_decisions_listed", state="held"),
            "page": found(r"held by guards: (\d+)", now) + summary.decisions_approvable,
            "scoreboard": scores.held,
        },
        "waiting for a yes": {
            "API": summary.decisions_approvable, "list": sum(one.approvable for one in decisions),
            "metrics": site.metric("tocsin_decisions_approvable"), "page": found(r"Waiting for you (\d+)", now),
            "cards": client.cards().waiting, "report": client.morning_report().figures.waiting,
            "command": len(printed["waiting"]), "attention": client.attention().waiting,
        },
    }  # fmt: skip


def _cards(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    cards, report = client.cards(1_000), client.morning_report()
    status, printed, now, words = (
        site.told("status", "--all"),
        site.printed("cards"),
        site.page("overview"),
        site.told("report"),
    )
    changed = client.changes(1)
    return {
        "open cards": {
            "API": cards.total, "report": report.figures.open_cards, "command": len(printed["items"]),
            "status": len(re.findall(r"(?m)^  (?:page|warning|note) [0-9a-f]{16} ", status)),
            "report's words": found(r"(\d+) cards are open", words),
        },
        "faults that began": {"API": report.figures.broke, "command": found(r"(\d+) faults began", words)},
        "headline of the first card": {
            "API": cards.items[0].headline,
            "page": cards.items[0].headline if cards.items[0].headline in now else now,
            "status": cards.items[0].headline if cards.items[0].headline in status else status,
        },
        "changes of the last hour": {
            "API": changed.total, "command": site.printed("changes")["total"],
            "page": len(changed.items) if all(one.text in now for one in changed.items) else now,
        },
        "actions that ran": {
            "API": report.figures.done + report.figures.failed + report.figures.goal_not_reached,
            "scoreboard": client.scoreboard().executed, "journal": site.entries()[EntryKind.OUTCOME],
        },
    }  # fmt: skip


def _control(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    status, top, now = site.told("status", "--all"), site.told("top", "--once"), site.page("overview")
    return {
        "mode": {
            "API": str(summary.mode), "status": re.findall(r"mode (\w+),", status)[0],
            "top": re.findall(r"mode (\w+),", top)[0],
            "page": re.findall(r"Mode: (\w+)", now)[0], "report": str(client.morning_report().mode),
            "metrics": next(one.labels["mode"] for one in site.samples if one.name == "tocsin_mode" and one.value),
        },
        "paused": {"API": summary.paused, "status": "running" not in status,
        "metrics": bool(site.metric("tocsin_paused"))},
        "breaker tripped": {
            "API": summary.breaker.tripped, "status": "breaker closed" not in status,
            "metrics": bool(site.metric("tocsin_breaker_tripped")),
        },
        "causes at the breaker": {"API": summary.breaker.root_causes,
        "JSON": site.printed("status")["breaker"]["root_causes"]},
    }  # fmt: skip


def _fragmentation(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    now, page = client.fragmentation(), site.page("fragmentation")
    fleet, (plan, *_) = now.fleet, client.plan("defragment").plans
    return {
        "free GPUs": {
            "API": fleet.free, "metrics": site.metric("tocsin_fleet_free_gpus"),
            "page": float(found(r"Free GPUs (\d+) of", page)), "pools": sum(one.free for one in now.pools),
        },
        "fragmented GPUs": {
            "API": fleet.fragmented, "metrics": site.metric("tocsin_fleet_fragmented_gpus"),
            "page": float(re.findall(r"Fragmented \(F\) ([\d.]+)", page)[0]),
            "pools": sum(one.fragmented for one in now.pools), "plan": plan.before["fragmented_gpus"],
        },
        "stranded GPUs": {
            "API": fleet.stranded, "metrics": site.metric("tocsin_fleet_stranded_gpus"),
            "page": float(re.findall(r"Stranded ([\d.]+) free, too few", page)[0]),
            "pools": sum(one.stranded for one in now.pools), "plan": plan.before["stranded_gpus"],
        },
        "unusable GPUs": {
            "API": fleet.unusable, "metrics": site.metric("tocsin_fleet_unusable_gpus"),
            "page": float(re.findall(r"Unusable ([\d.]+) for any", page)[0]),
            "pools": sum(one.unusable for one in now.pools), "plan": plan.before["unusable_gpus"],
        },
    }  # fmt: skip


def _ahead(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    ahead = [one for one in client.predictions() if one.is_ahead]
    first = min(ahead, key=lambda one: one.eta_ms or 0)
    gpu, drawn = client.gpu(first.subject.name), client.fleet_map()[0]
    assert drawn is not None
    assert first.probability is not None
    assert first.eta_ms is not None
    own = next(one for one in gpu.predictions if one.target == first.target)
    series = {"gpu_uuid": first.subject.name, "target": first.target}
    now_ms = from_iso(summary.now)
    forecast, status, words = site.page("forecast"), site.told("status", "--all"), site.told("report")
    minutes = round((first.eta_ms - now_ms) / MINUTE)
    line = rf"{re.escape(gpu.summary.host)} GPU {gpu.summary.index}: memory grows"
    row = rf"{re.escape(gpu.summary.host)} · GPU {gpu.summary.index}"
    return {
        "predicted crossings": {
            "API": summary.predictions, "list": len(ahead), "status": found(r"predicted crossings: (\d+)", status),
            "page": found(r"Predicted crossings (\d+)", site.page("overview")),
            "metrics": site.metric("tocsin_predictions_active", status="crossing"),
            "report": client.morning_report().figures.expected, "command": len(site.printed("status")["ahead"]),
        },
        "a GPU's probability": {
            "API": first.probability, "GPU": own.probability,
            "metrics": site.metric("tocsin_prediction_probability_ratio", **series),
        },
        "a GPU's probability, %": {
            "API": round(100 * first.probability),
            "map": round(100 * (drawn.risk[drawn.uuid.index(gpu.summary.uuid)] or 0)),
            "page": found(rf"{row} (\d+) % · in \d+ min", forecast), "status": found(rf"(\d+) %: {line}", status),
            "report": found(r"probability (\d+) %", words), "GPU in short": round(100 * (gpu.summary.probability or 0)),
        },
        "time to the crossing, min": {
            "API": minutes, "GPU": round(((own.eta_ms or 0) - now_ms) / MINUTE),
            "metrics": round(site.metric("tocsin_prediction_lead_seconds", **series, bound="expected") / 60),
            "page": found(rf"{row} \d+ % · in (\d+) min", forecast),
            "status": found(rf"in (\d+) min, \d+ %: {line}", status),
        },
    }  # fmt: skip


def _one_gpu(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    drawn = client.fleet_map()[0]
    assert drawn is not None
    hot = max(client.gpus(), key=lambda one: one.temperature_celsius or 0.0)
    at, values, top = drawn.uuid.index(hot.uuid), client.gpu(hot.uuid).values, site.told("top", "--once")
    row = next(line for line in top.splitlines() if f"{hot.host} GPU {hot.index} " in line and "°C" in line)
    page = site.page("gpu", gpu=hot.uuid)
    return {
        "a GPU's temperature": {
            "API": round(hot.temperature_celsius or 0), "map": round(drawn.temperature[at] or 0),
            "GPU": round(values["gpu_temperature_celsius"]), "top": found(r"(\d+) °C +\d+ W", row),
            "page": found(r"Temperature (\d+) °C Utilization", page),
        },
        "a GPU's utilization, %": {
            "API": round(100 * (hot.utilization_ratio or 0)), "map": round(100 * (drawn.utilization[at] or 0)),
            "GPU": round(100 * values["gpu_utilization_ratio"]), "top": found(r"GPU \d+ +(\d+) % +\d+ %", row),
            "page": found(r"Utilization (\d+) % Memory", page),
        },
        "a GPU's memory, %": {
            "API": round(100 * (hot.memory_used_ratio or 0)), "map": round(100 * (drawn.memory[at] or 0)),
            "GPU": round(100 * values["gpu_memory_used_ratio"]), "top": found(r"GPU \d+ +\d+ % +(\d+) %", row),
            "page": found(r"Memory (\d+) % Power", page),
        },
        "a GPU's power, W": {
            "API": round(hot.power_watts or 0), "map": round(drawn.power[at] or 0),
            "GPU": round(values["gpu_power_watts"]),
            "top": found(r"(\d+) W\b", row), "page": found(r"Power (\d+) W", page),
        },
        "a GPU's state": {"API": STATE_RANKS.index(hot.state), "map": drawn.state[at]},
    }  # fmt: skip


def _journal(site: Site, client: Client, summary: FleetSummary) -> dict[str, Places]:
    entries, verified = site.entries(), client.verify_journal()
    made: dict[str, Places] = {
        "journal entries": {
            "API": verified.events,
            "metrics": site.metric("tocsin_journal_entries_total"),
            "file": entries.total(),
        }
    }
    for kind in (EntryKind.DECISION, EntryKind.NOTIFICATION, EntryKind.PREDICTION, EntryKind.INJECTION):
        page = client.journal(0, 1_000, [kind])
        made[f"entries, {kind}"] = {
            "API": len(page), "metrics": site.metric("tocsin_journal_entries_total", kind=kind), "file": entries[kind],
        }  # fmt: skip
    return made


def test_every_place_says_the_same_of_at_least_forty_figures(figures: dict[str, Places]) -> None:
    apart = {name: places for name, places in figures.items() if len(set(map(_number, places.values()))) > 1}
    assert apart == {}
    assert len([name for name, places in figures.items() if len(places) > 1]) >= LEAST_FIGURES


def _number(value: Any) -> Any:
    return float(value) if isinstance(value, int | float) and not isinstance(value, bool) else value


def test_not_all_figures_are_zero(figures: dict[str, Places]) -> None:
    """Places that say nothing at all would agree as well."""
    assert sum(bool(places["API"]) for places in figures.values()) >= LEAST_FIGURES * 3 // 4


def test_grafana_shows_the_metrics_that_were_compared(site: Site, figures: dict[str, Places]) -> None:
    files = [path for kind in ("*.json", "*.yaml") for path in (ROOT / "grafana").rglob(kind)]
    text = "\n".join(path.read_text() for path in files)
    assert {name for name in site.asked if not re.search(rf"\b{name}\b", text)} == set()
    assert len(site.asked) >= 10
