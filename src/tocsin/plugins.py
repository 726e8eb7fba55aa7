"""The one registry of plug-ins: what can be named in settings or rules, by kind and name.

Tocsin's own stand in `BUILT_IN`. An installed package adds more by entry points of group ``tocsin.KIND``, no fork:

    [project.entry-points."tocsin.executor"]
    ticket = "acme_tocsin.ticket:build"

What a plug-in of each kind is, and what it is called with, is in docs/reference/plugins.md. Nothing is imported before
it is named: the agent loads no model, the brain no driver.
"""

from __future__ import annotations

import difflib
import importlib
from collections.abc import Iterable
from dataclasses import dataclass
from enum import StrEnum
from functools import cache
from importlib.metadata import entry_points
from typing import Any

from tocsin.domain.errors import InputError, Unavailable, install_extra


class Kind(StrEnum):
    """What can be plugged in; ``tocsin.`` and the value is the group of its entry points."""

    SOURCE = "source"
    """Reads GPUs: `tocsin.collector.source.Source`."""
    COMPANION = "companion"
    """Adds to what a source read: `tocsin.collector.source.Companion`."""
    EXPORTER = "exporter"
    """Names and labels that a Prometheus has scraped: `tocsin.collector.promql.exporter.Exporter`."""
    FOLLOWER = "follower"
    """Brings the brain what others wrote to a server: `tocsin.runtime.brain.follower.Follower`."""
    CONDITION = "condition"
    """What a rule may ask: `tocsin.rules.conditions.base.Condition`."""
    FORECASTER = "forecaster"
    """Foretells when a level is crossed: `tocsin.forecaster.trend.protocol.Forecaster`."""
    SCORER = "scorer"
    """Hazard of a fault: `tocsin.forecaster.hazard.scorer.Scorer`."""
    GUARD = "guard"
    """Holds or denies a decision: `tocsin.actions.guards.base.Guard`."""
    EXECUTOR = "executor"
    """Carries out decisions: `tocsin.actions.model.executor.Executor`."""
    CHANNEL = "channel"
    """Tells people: `tocsin.actions.notifications.channel.Channel`."""
    STORE = "store"
    """Keeps telemetry: `tocsin.store.port.Store`."""


_NOTIFICATIONS = "tocsin.actions.notifications"
_EXECUTORS = "tocsin.actions.executors"
_SOURCES = "tocsin.runtime.agent.sources"
_BRAIN = "tocsin.runtime.brain"
_COMPANIONS = "tocsin.runtime.agent.companions"
_HAZARD = "tocsin.forecaster.hazard"

BUILT_IN: dict[Kind, dict[str, str]] = {
    Kind.SOURCE: {
        "auto": f"{_SOURCES}:open_auto",
        "nvml": f"{_SOURCES}:open_nvml",
        "nvidia_smi": f"{_SOURCES}:open_nvidia_smi",
        "dcgm_exporter": "tocsin.collector.dcgm.exporter:open_dcgm_exporter",
        "dcgmi": "tocsin.collector.dcgm.dcgmi:open_dcgmi",
        "amdsmi": f"{_SOURCES}:open_amdsmi",
        "npu_smi": f"{_SOURCES}:open_npu_smi",
        "simulated": f"{_SOURCES}:open_simulated",
        "replay": f"{_SOURCES}:open_replay",
    },
    # In the order in which they are asked: what marks the source's own values comes first.
    Kind.COMPANION: {
        "frozen": f"{_COMPANIONS}:companion_frozen",
        "kernel_log": f"{_COMPANIONS}:companion_kernel_log",
        "hook": f"{_COMPANIONS}:companion_hook",
        "vllm": f"{_COMPANIONS}:companion_vllm",
        "notices": f"{_COMPANIONS}:companion_notices",
        "host_load": f"{_COMPANIONS}:companion_host_load",
        "versions": f"{_COMPANIONS}:companion_versions",
        "network": f"{_COMPANIONS}:companion_network",
        "host_errors": f"{_COMPANIONS}:companion_host_errors",
        "redfish": f"{_COMPANIONS}:companion_redfish",
        "attribution": f"{_COMPANIONS}:companion_attribution",
    },
    Kind.EXPORTER: {
        "dcgm_exporter": "tocsin.collector.promql.exporter:open_dcgm_exporter",
        "nvidia_gpu_exporter": "tocsin.collector.promql.mapping:open_nvidia_gpu_exporter",
        "amd": "tocsin.collector.promql.mapping:open_amd",
    },
    Kind.FOLLOWER: {
        "silences": f"{_BRAIN}.alert_silences:open_alert_silences",
        "store": f"{_BRAIN}.store_follower:open_store_follower",
        "promql": f"{_BRAIN}.promql_follower:open_promql",
    },
    Kind.CONDITION: {
        "drift": "tocsin.rules.conditions.drift:Drift",
        "elastic": "tocsin.rules.conditions.elastic:Elastic",
        "event_count": "tocsin.rules.conditions.event_count:EventCount",
        "forecast": "tocsin.rules.conditions.forecast:Forecast",
        "frozen": "tocsin.rules.conditions.frozen:Frozen",
        "growth": "tocsin.rules.conditions.growth:Growth",
        "missing_family": "tocsin.rules.conditions.missing_family:MissingFamily",
        "peer": "tocsin.rules.conditions.peer:Peer",
        "rate": "tocsin.rules.conditions.rate:Rate",
        "risk": "tocsin.rules.conditions.risk:Risk",
        "silent": "tocsin.rules.conditions.silent:Silent",
        "stuck": "tocsin.rules.conditions.stuck:Stuck",
        "sxid": "tocsin.rules.conditions.sxid_class:Sxid",
        "threshold": "tocsin.rules.conditions.threshold:Threshold",
        "xid": "tocsin.rules.conditions.xid_class:Xid",
    },
    Kind.GUARD: {
        "mode": "tocsin.actions.guards.permission:mode",
        "active": "tocsin.actions.guards.permission:active",
        "pause": "tocsin.actions.guards.permission:pause",
        "fresh_data": "tocsin.actions.guards.evidence:fresh_data",
        "still_live": "tocsin.actions.guards.evidence:still_live",
        "silence": "tocsin.actions.guards.silence:silence",
        "not_done": "tocsin.actions.guards.repetition:not_done",
        "proof": "tocsin.actions.guards.evidence:proof",
        "evidence": "tocsin.actions.guards.evidence:evidence",
        "boot_grace": "tocsin.actions.guards.evidence:boot_grace",
        "cooldown": "tocsin.actions.guards.repetition:cooldown",
        "maintenance": "tocsin.actions.guards.maintenance:maintenance",
        "planned_maintenance": "tocsin.actions.guards.silence:planned_maintenance",
        "known_node": "tocsin.actions.guards.permission:known_node",
        "managed": "tocsin.actions.guards.permission:managed",
        "opt_out": "tocsin.actions.guards.permission:opt_out",
        "hold_off": "tocsin.actions.guards.permission:hold_off",
        "place": "tocsin.actions.guards.place:place",
        "max_concurrent": "tocsin.actions.guards.limits:max_concurrent",
        "max_share": "tocsin.actions.guards.limits:max_share",
        "max_per_host": "tocsin.actions.guards.limits:max_per_host",
        "max_per_rack": "tocsin.actions.guards.limits:max_per_rack",
        "capacity": "tocsin.actions.guards.limits:capacity",
        "attempts": "tocsin.actions.guards.repetition:attempts",
        "breaker": "tocsin.actions.guards.limits:breaker",
        "approval": "tocsin.actions.guards.permission:approval",
        "time_box": "tocsin.actions.guards.evidence:time_box",
    },
    Kind.FORECASTER: {"threshold": "tocsin.forecaster.trend.model_threshold:build"},
    Kind.SCORER: {
        "boosting": f"{_HAZARD}.scorer_boosting:build",
        "calibrated": f"{_HAZARD}.scorer_calibrated:build",
        "ensemble": f"{_HAZARD}.scorer_ensemble:build",
        "hazard": f"{_HAZARD}.scorer_hazard:build",
        "isolation": f"{_HAZARD}.scorer_isolation:build",
        "lstm": "tocsin.forecaster.deep.scorer_lstm:build",
        "rate": f"{_HAZARD}.scorer_rate:build",
        "reconstruction": f"{_HAZARD}.scorer_reconstruction:build",
        "rules": f"{_HAZARD}.scorer_rules:build",
    },
    Kind.EXECUTOR: {
        "aws_asg": f"{_EXECUTORS}.aws_asg:build",
        "journal_only": f"{_EXECUTORS}.journal_only:build",
        "kubernetes": f"{_EXECUTORS}.kubernetes:build",
        "node": f"{_EXECUTORS}.node:build",
        "scale_webhook": f"{_EXECUTORS}.scale_webhook:build",
        "simulated": f"{_EXECUTORS}.simulated:build",
        "slurm": f"{_EXECUTORS}.slurm:build",
        "webhook": f"{_EXECUTORS}.webhook:build",
    },
    Kind.CHANNEL: {
        "alertmanager": f"{_NOTIFICATIONS}.alertmanager:Alertmanager",
        "cloudevents": f"{_NOTIFICATIONS}.cloudevents:CloudEvents",
        "dingtalk": f"{_NOTIFICATIONS}.dingtalk:DingTalk",
        "email": f"{_NOTIFICATIONS}.mail:build",
        "feishu": f"{_NOTIFICATIONS}.feishu:Feishu",
        "pagerduty": f"{_NOTIFICATIONS}.pagerduty:PagerDuty",
        "slack": f"{_NOTIFICATIONS}.slack:Slack",
        "teams": f"{_NOTIFICATIONS}.teams:Teams",
        "ticket": f"{_NOTIFICATIONS}.ticket:build",
    },
    Kind.STORE: {
        "memory": "tocsin.store.factory:open_memory",
        "sqlite": "tocsin.store.factory:open_sqlite",
        "influxdb": "tocsin.store.influx.store:InfluxStore",
        "victoriametrics": "tocsin.store.factory:open_victoriametrics",
    },
}
"""Tocsin's own plug-ins, as ``module:attribute``. The order is that of lists shown to people."""

EXTRAS = {
    "fastapi": "brain",
    "uvicorn": "brain",
    "influxdb_client": "brain",
    "polars": "brain",
    "pyarrow": "brain",
    "safetensors": "brain",
    "sklearn": "brain",
    "skops": "brain",
    "statsmodels": "brain",
    "joserfc": "access",
    "cryptography": "encryption",
    "sqlcipher3": "encryption",
    "ldap": "ldap",
    "torch": "deep",
    "ray": "ray",
    "amdsmi": "amd",
    "kubernetes": "kubernetes",
    "boto3": "aws",
    "botocore": "aws",
    "streamlit": "dashboard",
    "plotly": "dashboard",
    "textual": "terminal",
    "rich": "terminal",
    "mcp": "mcp",
}
"""Libraries that a plain installation goes without, and the extra that brings each."""

OWN_PACKAGE = "tocsin"


@dataclass(frozen=True, slots=True)
class Plugin:
    """One plug-in: where it comes from (`package`, as installed) and the ``module:attribute`` that it is."""

    kind: Kind
    name: str
    package: str
    target: str

    def load(self) -> Any:
        """The attribute itself.

        Raises Unavailable where a library of an extra is not installed, InputError where a package of others cannot be
        loaded, whatever it raises: it must not end the service with a traceback.
        """
        module, _, attribute = self.target.partition(":")
        try:
            return getattr(importlib.import_module(module), attribute)
        except ModuleNotFoundError as error:
            library = (error.name or "").split(".")[0]
            if library in EXTRAS:
                remedy = install_extra(EXTRAS[library])
                raise Unavailable(
                    f"{self.kind} {self.name} needs {library}, which is not installed: {remedy}"
                ) from error
            if self.package == OWN_PACKAGE:
                raise
            raise self._broken(error) from error
        except Exception as error:
            if self.package == OWN_PACKAGE:
                raise
            raise self._broken(error) from error

    def _broken(self, error: Exception) -> InputError:
        remedy = f"mend or uninstall package {self.package}"
        return InputError(f"plugin {self.kind}", self.name, f"{self.target} does not load: {error}", remedy)


@cache
def plugins(kind: Kind) -> dict[str, Plugin]:
    """Every plug-in of `kind` by name: Tocsin's own in their order, then those of other packages by name.

    Raises InputError where two packages claim one name: which of two guards holds must not hang on the order of
    installation.
    """
    found = {name: Plugin(kind, name, OWN_PACKAGE, target) for name, target in BUILT_IN.get(kind, {}).items()}
    for point in sorted(entry_points(group=f"tocsin.{kind}"), key=lambda point: point.name):
        package = point.dist.name if point.dist is not None else "unknown"
        taken = found.get(point.name)
        if taken is not None and (taken.package, taken.target) != (package, point.value):
            problem = f"is claimed by packages {taken.package} and {package}"
            raise InputError(f"plugin {kind}", point.name, problem, "rename one of them or uninstall its package")
        found[point.name] = Plugin(kind, point.name, package, point.value)
    return found


@cache
def load_all(kind: Kind) -> dict[str, Any]:
    """Every plug-in of `kind` by name, loaded. Raises what `plugins` and `Plugin.load` raise."""
    return {name: plugin.load() for name, plugin in plugins(kind).items()}


def _nearest(name: str, found: Iterable[str]) -> str:
    near = difflib.get_close_matches(name, found, 1)
    hint = f"did you mean {near[0]}? " if near else ""
    return f"{hint}known are {', '.join(sorted(found))}"


def known(kind: Kind, name: str) -> str:
    """`name` where it is a plug-in of `kind`; ValueError, which a settings model turns into its error, where not."""
    found = plugins(kind)
    if name not in found:
        raise ValueError(f"no {kind} has this name; {_nearest(name, found)}")
    return name


def named_by(field: str, kind: Kind, name: str) -> Plugin:
    """The plug-in of `kind` that setting `field` names; raises InputError where there is none of that name."""
    found = plugins(kind)
    if name not in found:
        raise InputError(field, name, f"no {kind} has this name", _nearest(name, found))
    return found[name]


def load(kind: Kind, name: str, field: str) -> Any:
    """The plug-in of `kind` that setting `field` names, loaded.

    Raises InputError where there is none of that name or it does not load, Unavailable where it needs a library that
    is not installed.
    """
    return named_by(field, kind, name).load()
