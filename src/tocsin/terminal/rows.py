"""Lines of the tables: what needs attention, nodes, decisions; filters over GPUs."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from tocsin.client.models import SEVERITY_STATES, DecisionOut, GpuState, GpuSummary, IncidentOut
from tocsin.client.models_cards import Card
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.decision import Ruling
from tocsin.domain.errors import InputError
from tocsin.domain.finding import SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.terminal import text
from tocsin.terminal.look import Look

LATEST = 1e12
"""Lead of what has none, for ordering: seconds, beyond any."""


def said(gpu: GpuSummary, now: str) -> str:
    """The worst that is said of a GPU: finding, then prediction with chance and lead, or the age of a stale reading."""
    name = text.label(gpu)
    parts = [text.plain(gpu.finding, name).rstrip(".")] if gpu.finding else []
    if gpu.prediction:
        sure = f"{text.chance(gpu.probability)} " if gpu.probability is not None else ""
        when = text.lead(now, gpu.eta, gpu.eta_low, gpu.eta_high)
        parts.append(f"{text.FORECAST} {sure}{f'{when}: ' if when else ''}{text.plain(gpu.prediction, name)}")
    if not parts and gpu.state is not GpuState.OK and gpu.last_reading_age_s is not None:
        parts.append(f"last reading {text.span(gpu.last_reading_age_s)} ago")
    return "; ".join(parts)


def urgency(gpu: GpuSummary) -> tuple[int, float, str, str, int, str]:
    """Order of need: worst state, most probable, soonest, then place."""
    index = -1 if gpu.index is None else gpu.index
    return (-gpu.state.rank, -(gpu.probability or 0.0), gpu.eta or "~", gpu.host, index, gpu.uuid)


@dataclass(frozen=True, slots=True)
class AttentionLine:
    """A GPU that is not well or not expected to stay so, or an incident of something larger. `lead_s` is `LATEST` and
    `probability` 0 where nothing is predicted; `uuid` is empty where it is no GPU."""

    key: str
    state: GpuState
    name: str
    lead_s: float
    probability: float
    sentence: str
    uuid: str = ""


def attention(look: Look) -> list[AttentionLine]:
    """What needs attention, most urgent first: the brain's cards, in its order; without a brain every GPU that is not
    well.
    """
    if look.summary is not None:
        return [_of_card(one) for one in look.cards]
    chosen = [gpu for gpu in look.gpus if gpu.state is not GpuState.OK or gpu.prediction]
    found = [_of_gpu(gpu, look.at) for gpu in sorted(chosen, key=urgency)]
    found += [
        _of_incident(one) for one in look.incidents if one.active and one.root.subject.kind is not SubjectKind.GPU
    ]
    return sorted(found, key=lambda one: (-one.state.rank, -one.probability, one.lead_s))


def _of_gpu(gpu: GpuSummary, now: str) -> AttentionLine:
    lead = text.lead_seconds(now, gpu.eta)
    lead = LATEST if lead is None else lead
    return AttentionLine(gpu.uuid, gpu.state, text.label(gpu), lead, gpu.probability or 0.0, said(gpu, now), gpu.uuid)


def _of_card(card: Card) -> AttentionLine:
    uuid = card.subject.name if card.subject.kind is SubjectKind.GPU else ""
    name, colon, what = card.headline.partition(": ")
    urgent = "PAGE " if card.level is AlertLevel.PAGE else ""
    then = card.next if card.action is not None else card.obstacle or card.next
    sentence = f"{urgent}{what if colon else card.headline}; {card.state.value}. {then}"
    chance = card.probability or 0.0
    return AttentionLine(card.id, card.health, name if colon else "", LATEST, chance, sentence, uuid)


def _of_incident(incident: IncidentOut) -> AttentionLine:
    name = text.subject_label(incident.root.subject, {})
    state = SEVERITY_STATES[incident.root.severity]
    return AttentionLine(f"incident:{incident.id}", state, name, LATEST, 0.0, _levelled(incident, name))


def _levelled(incident: IncidentOut, name: str) -> str:
    """What it says, after a word where it needs a person now."""
    said = text.plain(incident.sentence, name)
    return f"PAGE {said}" if incident.level is AlertLevel.PAGE else said


@dataclass(frozen=True, slots=True)
class Node:
    """The GPUs of one host. Means over the GPUs that report it, power their sum, the hottest; None where none does."""

    host: str
    pool: str
    gpus: int
    states: Counter[GpuState]
    utilization: float | None
    memory: float | None
    hottest: float | None
    power: float | None
    worst: GpuSummary

    @property
    def state(self) -> GpuState:
        return self.worst.state


def nodes(gpus: Iterable[GpuSummary]) -> list[Node]:
    """All hosts, by name."""
    by_host = grouped((gpu.host, gpu) for gpu in gpus)
    return [_node(host, by_host[host]) for host in sorted(by_host)]


def _node(host: str, own: Sequence[GpuSummary]) -> Node:
    pools = sorted({gpu.pool for gpu in own if gpu.pool})
    power = _present(gpu.power_watts for gpu in own)
    return Node(
        host,
        ", ".join(pools),
        len(own),
        Counter(gpu.state for gpu in own),
        _mean(gpu.utilization_ratio for gpu in own),
        _mean(gpu.memory_used_ratio for gpu in own),
        max(_present(gpu.temperature_celsius for gpu in own), default=None),
        sum(power) if power else None,
        min(own, key=urgency),
    )


def _present(values: Iterable[float | None]) -> list[float]:
    return [value for value in values if value is not None]


def _mean(values: Iterable[float | None]) -> float | None:
    present = _present(values)
    return sum(present) / len(present) if present else None


def held(decision: DecisionOut) -> str:
    """Why a decision is held or denied: each guard that does not allow it, with its reason."""
    against = [v for v in decision.verdicts if v.ruling is not Ruling.ALLOW]
    return "; ".join(f"{v.guard}: {text.whole_seconds(v.reason)}" if v.reason else v.guard for v in against)


def ordered(decisions: Iterable[DecisionOut]) -> list[DecisionOut]:
    """Those that wait for a person first, then the newest."""
    newest = sorted(decisions, key=lambda decision: decision.at_ms, reverse=True)
    return sorted(newest, key=lambda decision: not decision.approvable)


Test = Callable[[GpuSummary], bool]
_FIGURES: dict[str, tuple[Callable[[GpuSummary], float | None], float]] = {
    "util": (lambda gpu: gpu.utilization_ratio, 100.0),
    "mem": (lambda gpu: gpu.memory_used_ratio, 100.0),
    "temp": (lambda gpu: gpu.temperature_celsius, 1.0),
    "power": (lambda gpu: gpu.power_watts, 1.0),
    "chance": (lambda gpu: gpu.probability, 100.0),
}
_FIELDS: dict[str, Callable[[GpuSummary], str]] = {
    "host": lambda gpu: gpu.host,
    "model": lambda gpu: gpu.model,
    "pool": lambda gpu: gpu.pool,
    "rack": lambda gpu: gpu.rack,
    "state": lambda gpu: gpu.state.value,
    "uuid": lambda gpu: gpu.uuid,
}
_COMPARED = re.compile(r"([a-z]+)([<>])(-?\d+(?:\.\d+)?)")


def gpu_filter(words: str) -> Test:
    """A test for GPUs: every word of `words` has to fit.

    A word is ``temp>80`` (also util, mem and chance in percent, power in watts), ``pool:training`` (also host, model,
    rack, state, uuid), or text that occurs in any of these or in what is said of the GPU. Raises InputError for a name
    that is none of these.
    """
    tests = [_test(word.lower()) for word in words.split()]
    return lambda gpu: all(test(gpu) for test in tests)


def _test(word: str) -> Test:
    compared = _COMPARED.fullmatch(word)
    if compared is not None:
        return _figure(word, compared[1], compared[2], float(compared[3]))
    name, colon, wanted = word.partition(":")
    if colon and name in _FIELDS:
        field = _FIELDS[name]
        return lambda gpu: wanted in field(gpu).lower()
    return lambda gpu: word in _everything(gpu)


def _figure(word: str, name: str, sign: str, bound: float) -> Test:
    if name not in _FIGURES:
        raise InputError("filter", word, "is no figure of a GPU", f"compare one of {', '.join(_FIGURES)}")
    figure, factor = _FIGURES[name]

    def test(gpu: GpuSummary) -> bool:
        value = figure(gpu)
        return value is not None and (value * factor > bound if sign == ">" else value * factor < bound)

    return test


def _everything(gpu: GpuSummary) -> str:
    fields = " ".join(field(gpu) for field in _FIELDS.values())
    return f"{text.label(gpu)} {fields} {gpu.finding} {gpu.prediction}".lower()
