"""The snapshot of the fleet, what needs attention and what waiting costs, and the band of a GPU's peers."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from tocsin.client.models import Attention, FleetMap, GpuState, PeerGroup
from tocsin.config.settings import CostSettings
from tocsin.domain.clock import HOUR, MINUTE, SECOND, to_iso
from tocsin.domain.finding import ActionKind, Category, Finding, Incident, Severity, Subject, SubjectKind
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import Missing, Owner, Reading
from tocsin.domain.usage import Prices
from tocsin.queries.attention import attention, gpu_hours_at_risk
from tocsin.queries.fleet_map import MOST_LABELS, MOST_VALUES, FleetMapSnapshot, snapshot_of
from tocsin.queries.views import MOST_PEERS, MOST_PEERS_LONG, group_of, peer_band
from tocsin.store.port import Columns
from tocsin_testing.builders import T0, gpu, reading

COST = CostSettings()
FREE = Prices()


def node(n: int, **values: float) -> Reading:
    """GPU `n` of a fleet with four GPUs a host and two hosts a rack."""
    which = gpu(n, host=f"node-{n // 4}", rack=f"rack-{n // 8}", pool="training")
    return reading(which, T0, temperature_celsius=50.0, **values)


def at_work(one: Reading, job: str) -> Reading:
    return replace(one, owners=(Owner(pid=1, slurm_job=job),))


def subject(one: Reading) -> Subject:
    return Subject(SubjectKind.GPU, one.gpu.uuid, one.gpu.host, one.gpu.pool)


def finding(one: Reading, severity: Severity, category: Category = Category.HARDWARE) -> Finding:
    return Finding("a-rule", subject(one), severity, category, ActionKind.NOTIFY, T0 - HOUR, T0, "something is wrong")


def incident(*members: Finding) -> Incident:
    return Incident(members[0], members, T0 - HOUR, T0, members[0].sentence)


def prediction(one: Reading, chance: float | None, hours: float | None = 2.0, metric: str = "m") -> Prediction:
    status = PredictionStatus.LIKELY if hours is None else PredictionStatus.CROSSING
    eta = None if hours is None else T0 + int(hours * HOUR)
    return Prediction(
        subject(one), "target", T0, 48 * HOUR, status, "model", "1", "it will be bad", metric=metric,
        probability=chance, eta_ms=eta, sentence_zh="会变坏",
    )  # fmt: skip


def snapshot(
    readings: list[Reading], findings: list[Finding] | None = None, ahead: list[Prediction] | None = None
) -> FleetMapSnapshot:
    return snapshot_of(readings, findings or [], ahead or [], T0, 60 * SECOND)


def listed(
    readings: list[Reading],
    findings: list[Finding] | None = None,
    ahead: list[Prediction] | None = None,
    price: Prices = FREE,
    limit: int = 50,
) -> Attention:
    incidents = [incident(one) for one in findings or []]
    return attention(snapshot(readings, findings, ahead), incidents, ahead or [], COST, price, limit)


# ---------------------------------------------------------------------- the snapshot


def test_the_map_has_jobs_and_the_labels_that_tell_hosts_apart() -> None:
    def labelled(n: int, **labels: str) -> Reading:
        one = node(n)
        return replace(one, gpu=replace(one.gpu, labels=labels))

    readings = [
        at_work(labelled(0, zone="b", name="x"), "7"),
        labelled(4, name="y"),
        at_work(labelled(8, zone="a", name="z"), "7"),
    ]
    made = snapshot([*readings, labelled(12, zone="a", os="linux", name="z2")]).map
    assert (made.jobs, made.job) == (["slurm 7"], [0, None, 0, None])
    assert {key: (one.values, one.of) for key, one in made.labels.items()} == {
        "name": (["x", "y", "z", "z2"], [0, 1, 2, 3]),
        "os": (["", "linux"], [0, 0, 0, 1]),
        "zone": (["", "a", "b"], [2, 0, 1, 1]),
    }
    FleetMap.model_validate(made.model_dump())


def test_a_label_that_tells_nothing_or_each_host_is_left_out_and_so_are_too_many() -> None:
    def fleet(**labels: str) -> list[Reading]:
        ones = [node(4 * n) for n in range(MOST_VALUES + 1)]
        return [
            replace(
                one, gpu=replace(one.gpu, labels={key: value.format(n=n, even=n % 2) for key, value in labels.items()})
            )
            for n, one in enumerate(ones)
        ]

    assert set(snapshot(fleet(own="{n}", same="x", two="{even}")).map.labels) == {"two"}
    many = {f"k{n:02d}": "{even}" for n in range(MOST_LABELS + 4)}
    assert list(snapshot(fleet(**many)).map.labels) == sorted(many)[:MOST_LABELS]


def test_the_snapshot_is_by_rack_host_and_index() -> None:
    readings = [node(n) for n in (9, 0, 4, 1, 8)]
    made = snapshot(readings).map
    assert [made.uuid[n][-2:] for n in range(5)] == ["00", "01", "04", "08", "09"]
    assert made.hosts == ["node-0", "node-1", "node-2"]
    assert made.racks == ["rack-0", "rack-0", "rack-1"]
    assert made.host == [0, 0, 1, 2, 2]
    assert type(made).model_validate(made.model_dump()) == made


def test_states_and_risks_are_those_of_the_gpu() -> None:
    readings = [node(n) for n in range(4)]
    readings[1] = replace(readings[1], at_ms=T0 - 2 * MINUTE)
    readings[2] = replace(readings[2], values={}, missing={"gpu_power_watts": Missing.LOST})
    found = snapshot(readings, [finding(readings[3], Severity.WARNING)], [prediction(readings[0], 0.25)])
    assert found.map.state == [0, 1, 4, 2]
    assert found.map.risk == [0.25, None, None, None]
    assert found.map.temperature == [50.0, 50.0, None, 50.0]
    assert found.counts == {GpuState.OK: 1, GpuState.STALE: 1, GpuState.LOST: 1, GpuState.WARNING: 1}


def test_a_prediction_that_warns_of_nothing_is_no_risk() -> None:
    one = node(0)
    calm = replace(prediction(one, 0.9), status=PredictionStatus.NO_CROSSING)
    assert snapshot([one], [], [calm]).map.risk == [None]


# ---------------------------------------------------------------------- the cost of waiting


def test_the_cost_is_what_the_choice_of_actions_weighs() -> None:
    """p (G (l + r) + d), and without d where no hardware is at stake."""
    assert gpu_hours_at_risk(8, 0.5, True, COST) == pytest.approx(0.5 * (8 * (2.0 + 0.25) + 4.0))
    assert gpu_hours_at_risk(8, 0.5, False, COST) == pytest.approx(0.5 * 8 * 2.25)
    assert gpu_hours_at_risk(0, 1.0, True, COST) == pytest.approx(4.0)


def test_a_fault_costs_the_whole_job_and_money_where_a_price_is_set() -> None:
    readings = [at_work(node(n), "4711.0") for n in range(6)] + [node(7)]
    bad = finding(readings[2], Severity.CRITICAL)
    free = listed(readings, [bad]).items[0]
    assert (free.gpus, free.cost_gpu_hours) == (6, pytest.approx(6 * 2.25 + 4.0))
    assert (free.cost_money, free.currency) == (None, "")
    paid = listed(readings, [bad], price=Prices("EUR", {"A100": 2.0})).items[0]
    assert (paid.cost_money, paid.currency) == (pytest.approx(35.0), "EUR")
    other = listed(readings, [bad], price=Prices("EUR", {"H100": 2.0})).items[0]
    assert (other.cost_money, other.currency) == (None, "")


def test_a_warning_without_a_chance_has_no_cost() -> None:
    one = node(0)
    assert listed([one], [finding(one, Severity.WARNING)]).items[0].cost_gpu_hours is None
    hot = finding(one, Severity.CRITICAL, Category.THERMAL)
    assert listed([one], [hot]).items[0].cost_gpu_hours is None
    expected = listed([one], [hot], [prediction(one, 0.5)]).items[0]
    assert (expected.probability, expected.cost_gpu_hours) == (0.5, 0.0)


def test_a_busy_gpu_of_nobody_known_is_at_risk_itself() -> None:
    busy, idle = node(0, utilization_ratio=0.4), node(1, utilization_ratio=0.0)
    bad = [finding(one, Severity.CRITICAL) for one in (busy, idle)]
    found = listed([busy, idle], bad)
    assert [(item.index, item.gpus, item.cost_gpu_hours) for item in found.items] == [(0, 1, 6.25), (1, 0, 4.0)]


def test_incidents_about_one_gpu_are_one_item() -> None:
    one = node(0)
    worst = finding(one, Severity.CRITICAL)
    found = listed([one], [finding(one, Severity.WARNING), worst, replace(worst, rule="another", started_ms=T0)])
    assert [(item.severity, item.others) for item in found.items] == [(Severity.CRITICAL, 2)]


def test_a_host_is_at_risk_with_all_its_jobs() -> None:
    readings = [at_work(node(n), "1" if n < 2 else "2") for n in range(8)]
    host = Subject(SubjectKind.HOST, "node-0", "node-0", "training")
    down = replace(finding(readings[0], Severity.CRITICAL), subject=host)
    found = attention(snapshot(readings, [down]), [incident(down)], [], COST, FREE, 5)
    assert found.items[0].gpus == 8


# ---------------------------------------------------------------------- the list


def test_the_worst_comes_first() -> None:
    readings = [node(n) for n in range(8)]
    readings[5] = replace(readings[5], values={}, missing={"gpu_power_watts": Missing.LOST})
    readings[6] = replace(readings[6], at_ms=T0 - HOUR)
    found = listed(
        readings,
        [finding(readings[0], Severity.WARNING), finding(readings[1], Severity.CRITICAL),
         finding(readings[2], Severity.INFO)],
        [prediction(readings[3], 0.2), prediction(readings[4], 0.9, None, metric="")],
    )  # fmt: skip
    assert [(item.index, item.state.value) for item in found.items] == [
        (1, "critical"), (5, "lost"), (4, "ok"), (3, "ok"), (0, "warning"), (2, "ok"), (6, "stale"),
    ]  # fmt: skip
    assert found.total == 7


def test_what_is_expected_of_a_gpu_in_trouble_stands_with_its_trouble() -> None:
    one = node(0)
    found = listed([one], [finding(one, Severity.WARNING)], [prediction(one, 0.7), prediction(one, 0.8, 1.0)])
    assert [(item.sentence, item.prediction, item.prediction_zh) for item in found.items] == [
        ("something is wrong", "it will be bad", "会变坏")
    ]
    assert (found.items[0].probability, found.items[0].eta) == (0.8, to_iso(T0 + HOUR))


def test_members_of_an_incident_are_not_told_of_again() -> None:
    readings = [replace(node(n), at_ms=T0 - HOUR) for n in range(3)]
    burst = [finding(one, Severity.CRITICAL) for one in readings]
    found = attention(snapshot(readings, burst), [incident(*burst)], [], COST, FREE, 5)
    assert [(item.subjects, item.since) for item in found.items] == [(3, to_iso(T0 - HOUR))]


def test_of_causes_as_bad_what_holds_is_told_before_an_older_one_that_has_ended() -> None:
    one = node(0)
    old, new = (replace(finding(one, Severity.CRITICAL), rule=rule, sentence=rule) for rule in ("old", "new"))
    over = replace(incident(old), opened_ms=T0 - 9 * HOUR, cleared=(old.id,))
    found = attention(snapshot([one], [old, new]), [over, incident(new)], [], COST, FREE, 5)
    assert [(item.sentence, item.others) for item in found.items] == [("new", 1)]


def test_silent_gpus_of_a_host_are_one_item() -> None:
    readings = [replace(node(n), at_ms=T0 - HOUR + n) for n in range(5)]
    found = listed(readings)
    assert [(item.subject.kind.value, item.subject.name, item.subjects) for item in found.items] == [
        ("gpu", readings[4].gpu.uuid, 1), ("host", "node-0", 4),
    ]  # fmt: skip
    assert found.items[1].since == to_iso(T0 - HOUR)


def test_a_pool_is_told_of_by_its_name() -> None:
    one = node(0)
    low = replace(finding(one, Severity.INFO, Category.CAPACITY), subject=Subject(SubjectKind.POOL, "training"))
    item = listed([one], [low]).items[0]
    assert (item.subject.kind, item.index, item.gpus, item.cost_gpu_hours) == (SubjectKind.POOL, None, 0, None)


def test_only_so_many_are_listed_and_all_are_counted() -> None:
    readings = [node(n) for n in range(8)]
    found = listed(readings, ahead=[prediction(one, 0.1 * n) for n, one in enumerate(readings)], limit=3)
    assert found.total == 8
    assert [item.probability for item in found.items] == pytest.approx([0.7, 0.6, 0.5])


# ---------------------------------------------------------------------- peers


class Past:
    """A store of one metric: each GPU at `per_gpu[uuid]` once a minute."""

    def __init__(self, per_gpu: dict[str, float]) -> None:
        self.per_gpu = per_gpu
        self.asked: list[str] = []

    def columns(self, metrics: list[str], start_ms: int, end_ms: int, gpus: list[str]) -> Columns:
        self.asked = list(gpus)
        uuids = tuple(sorted(uuid for uuid in gpus if uuid in self.per_gpu))
        at = np.arange(start_ms, end_ms, MINUTE, dtype=np.int64)
        values = np.array([[self.per_gpu[uuid]] * len(metrics) for _ in at for uuid in uuids]).reshape(-1, len(metrics))
        place = np.tile(np.arange(len(uuids), dtype=np.int32), len(at))
        return Columns(uuids, tuple(metrics), place, np.repeat(at, len(uuids)), values)


def test_peers_are_those_of_node_model_or_job() -> None:
    readings = [at_work(node(n), "7" if n in (0, 5) else "8") for n in range(8)]
    readings[3] = replace(readings[3], gpu=replace(readings[3].gpu, model="other"))
    names = {by: [uuid[-1] for uuid in group_of(readings[0], readings, {}, by)] for by in PeerGroup}
    assert names == {PeerGroup.NODE: ["1", "2", "3"], PeerGroup.MODEL: list("124567"), PeerGroup.JOB: ["5"]}
    assert group_of(node(0), readings, {}, PeerGroup.JOB) == []


def test_the_band_holds_the_middle_eighty_percent() -> None:
    readings = [node(n) for n in range(4)]
    past = Past({one.gpu.uuid: float(n) for n, one in enumerate(readings)})
    band = peer_band(past, readings[0], readings, {}, PeerGroup.NODE, ["m"], T0, T0 + HOUR, 12)  # type: ignore[arg-type]
    assert (band.peers, band.group, len(band.at), band.at[0]) == (3, 3, 12, to_iso(T0 + 150 * SECOND))
    expected = np.percentile([1.0, 2.0, 3.0], (10, 50, 90))
    for values, one in zip((band.low, band.middle, band.high), expected, strict=True):
        assert values["m"] == pytest.approx([one] * 12)


def test_a_span_without_a_value_is_a_gap() -> None:
    readings = [node(0), node(1)]
    past = Past({readings[1].gpu.uuid: float("nan")})
    band = peer_band(past, readings[0], readings, {}, PeerGroup.NODE, ["m"], T0, T0 + HOUR, 10)  # type: ignore[arg-type]
    assert band.low["m"] == [None] * 10


def test_a_gpu_alone_has_no_band_and_a_large_group_is_sampled() -> None:
    alone = node(0)
    band = peer_band(Past({}), alone, [alone], {}, PeerGroup.NODE, ["m"], T0, T0 + HOUR, 10)  # type: ignore[arg-type]
    assert (band.peers, band.at, band.low) == (0, [], {})
    many = [node(n) for n in range(1_000)]
    past = Past({one.gpu.uuid: 1.0 for one in many})
    for span, most in ((HOUR, MOST_PEERS), (48 * HOUR, MOST_PEERS_LONG)):
        wide = peer_band(past, many[0], many, {}, PeerGroup.MODEL, ["m"], T0, T0 + span, 10)  # type: ignore[arg-type]
        assert most - 2 <= wide.peers <= most
        assert wide.group == 999
        assert len(past.asked) == wide.peers
