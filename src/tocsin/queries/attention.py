"""What needs a person's attention now, ranked, each with what waiting may cost."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Sequence

from tocsin.actions.model.cost import Stake, prices
from tocsin.client.models import SEVERITY_STATES, Attention, AttentionItem, GpuState
from tocsin.config.settings import CostSettings
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.clock import optional_iso, to_iso
from tocsin.domain.finding import ActionKind, Finding, Incident, Subject, SubjectKind
from tocsin.domain.grouping import grouped
from tocsin.domain.prediction import Prediction, most_urgent
from tocsin.domain.reading import Reading
from tocsin.domain.usage import Prices
from tocsin.queries.fleet_map import FleetMapSnapshot, is_warning

_URGENT = (GpuState.LOST, GpuState.CRITICAL)


def gpu_hours_at_risk(gpus: int, probability: float, hardware: bool, cost: CostSettings) -> float:
    """Expected loss of going on as before: a restart and half the span since the last checkpoint for each of `gpus`,
    and what a fault of the hardware costs beside its job, times the `probability`: `tocsin.actions.model.cost`.
    """
    going_on = prices(Stake(gpus, probability), cost)[ActionKind.NOTIFY]
    return going_on if hardware else going_on - probability * cost.fault_gpu_hours


def attention(
    snapshot: FleetMapSnapshot,
    incidents: Sequence[Incident],
    predictions: Iterable[Prediction],
    cost: CostSettings,
    price: Prices,
    limit: int,
) -> Attention:
    """The `limit` worst things of the fleet: open incidents, GPUs that are silent without one, and what is expected.

    A GPU-hour costs the `price` of the subject's model.

    What is lost or critical comes first, then what is a warning or is expected, then what is merely silent or a hint;
    among these what costs most to wait for, then the most probable, then the soonest.
    """
    ranking = Ranking(snapshot, cost, price)
    items = [*ranking.incidents(incidents), *ranking.silent(), *ranking.expected(predictions)]
    items.sort(key=_rank)
    return Attention(total=len(items), items=items[:limit])


def _rank(item: AttentionItem) -> tuple[int, float, float, str, str]:
    if item.state in _URGENT:
        group = 0
    elif item.state is GpuState.WARNING or item.prediction:
        group = 1
    else:
        group = 2
    return group, -(item.cost_gpu_hours or 0.0), -(item.probability or 0.0), item.eta or "~", item.subject.name


class Ranking:
    """The items over one snapshot, each subject listed once, and what they are ranked by."""

    def __init__(self, snapshot: FleetMapSnapshot, cost: CostSettings, price: Prices) -> None:
        self._snapshot = snapshot
        self._cost = cost
        self._price = price
        self._listed: set[str] = set()
        self._readings = {reading.gpu.uuid: reading for reading in snapshot.readings}
        self._by_host = grouped((reading.gpu.host, reading) for reading in snapshot.readings)
        self.jobs = snapshot.jobs
        self._ranks = Counter(self.jobs.values())

    def incidents(self, incidents: Iterable[Incident]) -> list[AttentionItem]:
        """One item for the incidents whose roots have one subject, about the worst of them."""
        by_subject = grouped((incident.root.subject, incident) for incident in incidents)
        self._listed |= {one.subject.key for found in by_subject.values() for each in found for one in each.members}
        made = []
        for subject, found in by_subject.items():
            worst = max(found, key=_gravity)
            warned = self._snapshot.warnings.get(subject.name, ())
            item = self._item(subject, worst.root, worst, most_urgent(warned), self.state(worst))
            made.append(item.model_copy(update={"others": len(found) - 1}))
        return made

    def state(self, incident: Incident) -> GpuState:
        """How bad it is that `incident` goes on: lost where its GPU is, whatever the findings say."""
        own = SEVERITY_STATES[incident.severity]
        known = self._snapshot.states.get(incident.root.subject.name, GpuState.OK)
        return GpuState.LOST if known is GpuState.LOST else own

    def silent(self) -> list[AttentionItem]:
        """GPUs that are lost or stale and that no incident tells of: one item for those of a host in the same state."""
        made = []
        for state, members in self.quiet(self._listed):
            gpu, host = members[0].gpu, members[0].gpu.host
            self._listed.update(f"{SubjectKind.GPU}:{reading.gpu.uuid}" for reading in members)
            subject = Subject(SubjectKind.GPU, gpu.uuid, host, gpu.pool)
            if len(members) > 1:
                subject = Subject(SubjectKind.HOST, host, host, gpu.pool)
            item = self._item(subject, None, None, None, state)
            since = to_iso(min(reading.at_ms for reading in members))
            made.append(item.model_copy(update={"subjects": len(members), "since": since}))
        return made

    def quiet(self, listed: Collection[str]) -> list[tuple[GpuState, Sequence[Reading]]]:
        """The GPUs that are lost or stale and whose keys are not in `listed`, by state, those of a host together."""
        states = self._snapshot.states
        groups = grouped(
            ((one.gpu.host, states[one.gpu.uuid]), one)
            for one in self._snapshot.readings
            if states[one.gpu.uuid] in (GpuState.LOST, GpuState.STALE)
            and f"{SubjectKind.GPU}:{one.gpu.uuid}" not in listed
        )
        return [(state, members) for (_, state), members in groups.items()]

    def expected(self, predictions: Iterable[Prediction]) -> list[AttentionItem]:
        """What is only predicted: the most urgent prediction of each subject without an incident."""
        unlisted = (one for one in predictions if is_warning(one) and one.subject.key not in self._listed)
        return [
            self._item(subject, None, None, most_urgent(found), GpuState.OK)
            for subject, found in grouped((one.subject, one) for one in unlisted).items()
        ]

    def _item(
        self,
        subject: Subject,
        root: Finding | None,
        incident: Incident | None,
        expected: Prediction | None,
        state: GpuState,
    ) -> AttentionItem:
        reading = self._readings.get(subject.name)
        gpus = self.at_stake(subject)
        lost = self.cost_of_waiting(gpus, incident, expected, state)
        money, currency = self.money(subject, lost)
        return AttentionItem(
            subject=subject,
            index=reading.gpu.index if reading is not None else None,
            state=state,
            severity=root.severity if root is not None else None,
            level=_level(incident, expected),
            sentence=incident.sentence if incident is not None else "",
            since=to_iso(incident.opened_ms) if incident is not None else None,
            subjects=incident.subjects if incident is not None else 1,
            prediction=expected.sentence if expected else "",
            prediction_zh=expected.sentence_zh if expected else "",
            probability=expected.probability if expected else None,
            eta=optional_iso(expected.eta_ms) if expected else None,
            eta_low=optional_iso(expected.eta_low_ms) if expected else None,
            eta_high=optional_iso(expected.eta_high_ms) if expected else None,
            gpus=gpus,
            cost_gpu_hours=lost,
            cost_money=money,
            currency=currency,
        )

    def money(self, subject: Subject, gpu_hours: float | None) -> tuple[float | None, str]:
        """What `gpu_hours` of the subject's model cost, with the currency; None and nothing where no price is set."""
        paid = self._price.of_model(self.on(subject)[0].gpu.model) if self.on(subject) else None
        if gpu_hours is None or paid is None:
            return None, ""
        return gpu_hours * paid, self._price.currency

    def on(self, subject: Subject) -> Sequence[Reading]:
        """The GPUs that the subject is, or has; of a pool or the fleet none, for they are not all at risk."""
        if subject.kind is SubjectKind.HOST:
            return self._by_host.get(subject.name, ())
        own = self._readings.get(subject.name)
        return [] if own is None else [own]

    def at_stake(self, subject: Subject) -> int:
        """GPUs of the jobs on the subject: a GPU, or a host with several."""
        here = self.on(subject)
        jobs = {self.jobs[reading.gpu.uuid] for reading in here if self.jobs.get(reading.gpu.uuid)}
        # Something runs there, whoever's it is.
        busy = [one for one in here if one.owners or one.values.get("gpu_utilization_ratio", 0.0) > 0.0]
        unnamed = sum(not self.jobs.get(reading.gpu.uuid) for reading in busy)
        return sum(self._ranks[job] for job in jobs) + unnamed

    def cost_of_waiting(
        self, gpus: int, incident: Incident | None, expected: Prediction | None, state: GpuState
    ) -> float | None:
        """GPU-hours that waiting may cost; None where the cause has ended, and for all that nobody knows."""
        if incident is not None and incident.cause_cleared:
            return None
        return self.expected_loss(gpus, None if incident is None else incident.root, expected, state)

    def expected_loss(
        self, gpus: int, root: Finding | None, expected: Prediction | None, state: GpuState
    ) -> float | None:
        """A fault that is there is certain; one that is expected has its prediction's chance; else nobody knows."""
        there = state is GpuState.LOST or (root is not None and root.is_hardware_fault)
        if there:
            return gpu_hours_at_risk(gpus, 1.0, True, self._cost)
        if expected is None or expected.probability is None:
            return None
        return gpu_hours_at_risk(gpus, expected.probability, not expected.metric, self._cost)


def _gravity(incident: Incident) -> tuple[int, bool, int, str]:
    """The worst is the greatest: what holds is before what has ended, then the older."""
    return incident.root.severity.rank, not incident.cause_cleared, -incident.opened_ms, incident.id


def _level(incident: Incident | None, expected: Prediction | None) -> AlertLevel:
    """That of the incident, else of what is expected; a GPU that only fell silent is for the working day."""
    if incident is not None:
        return incident.alert_level
    return expected.alert_level if expected is not None else AlertLevel.WARNING
