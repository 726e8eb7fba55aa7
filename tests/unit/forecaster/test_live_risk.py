"""The risk at every turn: scores over a store, reasons, past cases, sentences, and the shelf that models come from."""

from __future__ import annotations

import pickle
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from tocsin.config.settings import ForecastSettings, StoreKind, StoreSettings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, HOUR, MINUTE, to_minute
from tocsin.domain.errors import Conflict, InputError
from tocsin.domain.finding import SubjectKind
from tocsin.domain.prediction import HARDWARE_FAULT, MODEL_GATE, Prediction, PredictionStatus
from tocsin.forecaster.features.builder import FeatureBuilder
from tocsin.forecaster.features.examples import NEVER, Examples, Floats
from tocsin.forecaster.features.plan import FeaturePlan
from tocsin.forecaster.features.table import names_of
from tocsin.forecaster.hazard import registry
from tocsin.forecaster.hazard.artefact import ModelCard
from tocsin.forecaster.hazard.scorer import Scorer
from tocsin.forecaster.lifecycle.cases import CaseRecord
from tocsin.forecaster.lifecycle.gate import LEARNING, SIMULATED_ALONE, GateRecord, ModelGate
from tocsin.forecaster.lifecycle.model_registry import CASES, MODEL, PRIOR, ModelRegistry, ModelVersion
from tocsin.forecaster.live.news import moved
from tocsin.forecaster.live.reasons import CHANNELS, Reason, likely_sentence, reasons, why
from tocsin.forecaster.live.risk import RiskModel, RiskWatch
from tocsin.forecaster.live.risk_inputs import RiskInputs, SeenGpus
from tocsin.forecaster.live.worker import ForecastWorker
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin.store.factory import open_store
from tocsin.store.port import Store
from tocsin_testing.builders import T0, gpu, reading
from tocsin_testing.law_words import finding

START = T0 // HOUR * HOUR
PLAN = FeaturePlan()
NAMES = names_of(PLAN)
ERRORS = NAMES.index("pcie_replay.24h")


def examples(rows: int = 600, seed: int = 1) -> Examples:
    """GPUs of which those with many PCIe replays fail within two days, of the bus; nothing else is known."""
    rng = np.random.default_rng(seed)
    features = np.full((rows, len(NAMES)), np.nan, np.float32)
    sick = rng.random(rows) < 0.15
    features[:, ERRORS] = np.where(sick, rng.normal(6, 0.5, rows), rng.normal(1, 0.5, rows))
    at_ms = START + np.sort(rng.integers(0, 60, rows)) * 12 * HOUR
    event = np.where(sick, at_ms + rng.integers(1, 47, rows) * HOUR, NEVER)
    return Examples(
        devices=tuple(f"G{n}" for n in range(rows)),
        device=np.arange(rows, dtype=np.int32),
        groups=("all",),
        group=np.zeros(rows, np.int32),
        at_ms=at_ms,
        names=NAMES,
        features=features,
        seen_ms=at_ms,
        history_ms=np.full(rows, 30 * DAY),
        event_ms=event,
        until_ms=np.full(rows, START + 100 * DAY),
        event_class=np.where(sick, "bus", ""),
        weight=np.ones(rows),
    )


@pytest.fixture(scope="module")
def fitted() -> Scorer:
    made = registry.build("calibrated", scorer="hazard")
    made.fit(examples())
    return made


def card(version: str = "v1", family: str = "calibrated") -> ModelCard:
    return ModelCard(
        name="risk", version=version, family=family, horizons_ms=(HOUR,), features=NAMES, provenance="a test",
        data_hash="d", code_version="c", created_ms=START, trained_from_ms=START, trained_to_ms=START + DAY, rows=1,
        onsets=1,
    )  # fmt: skip


@pytest.fixture(scope="module")
def book(fitted: Scorer) -> CaseRecord:
    table = examples()
    return CaseRecord.of(table, fitted.score(table)[:, -1], 48 * HOUR)


@pytest.fixture
def store() -> Store:
    """Four GPUs read every five minutes for a day and a half; GPU 2 replays more and more."""
    made = open_store(StoreSettings(kind=StoreKind.MEMORY))
    made.init()
    rows = []
    for step in range(36 * 12):
        at_ms = START + step * 5 * MINUTE
        for n in range(4):
            noise = ((step * 37 + n * 11) % 17) / 10
            replays = float(max(0, step - 200) * 2) if n == 2 else float(step // 100)
            rows.append(
                reading(
                    gpu(n),
                    at_ms,
                    temperature_celsius=60 + noise,
                    power_watts=400 + 10 * noise,
                    energy_joules_total=1e6 + 2e5 * step,
                    pcie_replay_total=replays,
                    utilization_ratio=0.9,
                )
            )
    made.write(Batch(readings=rows))
    return made


NOW = START + 36 * HOUR
GPUS = [gpu(n) for n in range(4)]


def place(folder: Path) -> RiskInputs:
    return RiskInputs(StoreSettings(kind=StoreKind.MEMORY), folder / "models", folder / "state.npz", alarm_share=0.01)


PASSED = ModelGate((GateRecord(True, False, "a test", 9, (), ("above recency rule on a test",)),))


def shelve(
    folder: Path, scorer: Scorer, book: CaseRecord | None, version: str = "v1", gate: ModelGate = PASSED
) -> ModelRegistry:
    shelf = ModelRegistry(folder / "models")
    shelf.add(ModelVersion(version, scorer, card(version), book, gate=gate))
    shelf.promote(version, NOW, "ann")
    return shelf


@pytest.fixture
def said(tmp_path: Path, fitted: Scorer, book: CaseRecord, store: Store) -> list[Prediction]:
    shelve(tmp_path, fitted, book)
    return RiskWatch(place(tmp_path), store).predict(SeenGpus(GPUS), NOW)


def test_the_gpu_that_goes_bad_is_warned_of_with_its_reasons(said: list[Prediction]) -> None:
    assert [one.subject.name for one in said] == [one.uuid for one in GPUS]
    assert [one.status is PredictionStatus.LIKELY for one in said] == [False, False, True, False]
    warned = said[2]
    assert warned.target == HARDWARE_FAULT
    assert warned.threshold is not None
    assert warned.probability is not None
    assert warned.probability >= warned.threshold
    assert [ahead for ahead, _ in warned.curve] == [HOUR, 6 * HOUR, 24 * HOUR, 48 * HOUR]
    chances = [chance for _, chance in warned.curve]
    assert chances == sorted(chances)
    assert warned.evidence[0].name.startswith("pcie_replay.")
    assert "PCIe replays" in warned.sentence
    assert "PCIe 重放" in warned.sentence_zh
    assert f"a hardware fault within 48 h of {to_minute(warned.at_ms)} has a probability of" in warned.sentence
    assert warned.evidence[-1].name == "past cases"
    assert warned.evidence[-1].text.startswith("situations like this one ended in a fault before: ")
    assert "past" not in warned.sentence, "what is kept of the past is chosen: its share of faults is no rate"
    assert "unlikely" in said[0].sentence


def test_the_rule_takes_the_warning_up(said: list[Prediction]) -> None:
    engine = RuleEngine(load_rules(None))
    readings = tuple(reading(one, NOW, temperature_celsius=60.0) for one in GPUS)
    found = [f for f in engine.step(Inputs(NOW, readings, predictions=said)).active if f.rule == "gpu_fault_predicted"]
    assert [finding.subject.name for finding in found] == [GPUS[2].uuid]
    assert found[0].sentence == said[2].sentence
    calm = [replace(one, at_ms=NOW + MINUTE, status=PredictionStatus.UNLIKELY) for one in said]
    assert _active(engine, NOW + MINUTE, calm) == []
    assert _active(engine, NOW + 2 * MINUTE, [replace(one, at_ms=NOW + 2 * MINUTE) for one in said]) == [GPUS[2].uuid]
    assert _active(engine, NOW + HOUR, []) == [GPUS[2].uuid], "silence of the model clears nothing"
    assert _active(engine, NOW + 49 * HOUR, []) == [], "its horizon has passed"


def test_no_risk_is_stated_of_a_gpu_that_hardware_slows_for_heat(tmp_path: Path, fitted: Scorer, store: Store) -> None:
    shelve(tmp_path, fitted, None)
    failing = GPUS[2]
    watch = RiskWatch(place(tmp_path), store)
    assert watch.predict(SeenGpus(GPUS), NOW - HOUR)[2].status is PredictionStatus.LIKELY
    now_hot = watch.predict(SeenGpus(GPUS, slowed=frozenset({failing.uuid})), NOW - HOUR)
    store.write(Batch(findings=[finding(failing, NOW - HOUR, NOW - 30 * MINUTE, rule="thermal_slowdown")]))
    since = watch.predict(SeenGpus(GPUS), NOW)
    for said in (now_hot, since):
        assert [one.status is PredictionStatus.NOT_ENOUGH_DATA for one in said] == [False, False, True, False]
        assert said[2].probability is None
        assert said[2].reason == "hardware slowed it for heat, so that its past is one of a fault that is there"
        assert "硬件" in said[2].reason_zh
    engine = RuleEngine(load_rules(None))
    readings = tuple(reading(one, NOW, temperature_celsius=60.0) for one in GPUS)
    found = engine.step(Inputs(NOW, readings, predictions=since)).active
    assert "gpu_fault_predicted" not in {one.rule for one in found}, "it has been told of already"


def _active(engine: RuleEngine, at_ms: int, said: list[Prediction]) -> list[str]:
    readings = tuple(reading(one, at_ms, temperature_celsius=60.0) for one in GPUS)
    found = engine.step(Inputs(at_ms, readings, predictions=said)).active
    return [finding.subject.name for finding in found if finding.rule == "gpu_fault_predicted"]


def test_a_turn_later_only_what_is_new_is_read_and_a_restart_goes_on_from_the_state(
    tmp_path: Path, fitted: Scorer, store: Store
) -> None:
    shelve(tmp_path, fitted, None)
    asked: list[tuple[int, int]] = []

    class Counted:
        def __getattr__(self, name: str) -> object:
            return getattr(store, name)

        def columns(self, metrics: object, start_ms: int, end_ms: int, gpus: object = None) -> object:
            asked.append((start_ms, end_ms))
            return store.columns(metrics, start_ms, end_ms, gpus)  # type: ignore[arg-type]

    counted: Store = Counted()  # type: ignore[assignment]
    first = RiskWatch(place(tmp_path), counted)
    first.predict(SeenGpus(GPUS), NOW - 2 * HOUR)
    first.predict(SeenGpus(GPUS), NOW - HOUR)
    whole = first.predict(SeenGpus(GPUS), NOW)
    assert asked[-1] == (NOW - HOUR + 1, NOW + 1)
    assert (tmp_path / "state.npz").exists()
    asked.clear()
    again = RiskWatch(place(tmp_path), counted).predict(SeenGpus(GPUS), NOW)
    assert all(start >= NOW - HOUR for start, _ in asked)
    assert [one.probability for one in again] == pytest.approx([one.probability for one in whole])
    (tmp_path / "state.npz").write_bytes(b"torn")
    fresh = RiskWatch(place(tmp_path), store).predict(SeenGpus(GPUS), NOW)
    assert [one.probability for one in fresh] == pytest.approx([one.probability for one in whole])


def test_a_promotion_is_seen_at_the_next_turn_and_no_model_says_nothing(
    tmp_path: Path, fitted: Scorer, store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tocsin.forecaster.lifecycle.model_registry.shipped", lambda: None)
    watch = RiskWatch(place(tmp_path), store)
    (silence,) = watch.predict(SeenGpus(GPUS), NOW - HOUR)
    assert (silence.sentence, silence.reason) == (LEARNING, "no model is in service")
    shelf = shelve(tmp_path, fitted, None)
    assert {one.model_version for one in watch.predict(SeenGpus(GPUS), NOW)} == {"v1"}
    shelf.add(ModelVersion("v2", fitted, card("v2"), None, gate=PASSED))
    shelf.promote("v2", NOW, "bob")
    assert {one.model_version for one in watch.predict(SeenGpus(GPUS), NOW)} == {"v2"}


FAILED = ModelGate((GateRecord(False, False, "a test", 9, (), ("not above recency rule on a test",)),))
SIMULATED = ModelGate((GateRecord(True, True, "a simulated fleet", 9),))


@pytest.mark.parametrize("gate", [FAILED, ModelGate(), SIMULATED])
def test_a_model_that_has_not_passed_is_not_heard_of_real_gpus(
    gate: ModelGate, tmp_path: Path, fitted: Scorer, store: Store
) -> None:
    shelve(tmp_path, fitted, None, gate=gate)
    (said,) = RiskWatch(place(tmp_path), store).predict(SeenGpus(GPUS), NOW)
    assert (said.target, said.subject.kind) == (MODEL_GATE, SubjectKind.FLEET)
    assert said.status is PredictionStatus.NOT_ENOUGH_DATA
    assert said.sentence == LEARNING
    assert said.probability is None
    assert said.reason == (FAILED.records[0].because[0] if gate is FAILED else "it was never judged on a real fleet")


def test_a_model_fitted_on_simulated_data_speaks_of_simulated_gpus_alone(
    tmp_path: Path, fitted: Scorer, store: Store
) -> None:
    shelve(tmp_path, fitted, None, gate=SIMULATED)
    mixed = [replace(one, simulated=number > 1) for number, one in enumerate(GPUS)]
    said = RiskWatch(place(tmp_path), store).predict(SeenGpus(mixed), NOW)
    risks = [one for one in said if one.target == HARDWARE_FAULT]
    assert [one.subject.name for one in risks] == [one.uuid for one in mixed[2:]]
    verdicts = {one.subject.name: one.sentence for one in said if one.target == MODEL_GATE}
    assert verdicts == {"fleet": LEARNING, "simulated fleet": SIMULATED_ALONE}


def test_a_record_at_the_gate_is_heard_at_the_next_start(tmp_path: Path, fitted: Scorer, store: Store) -> None:
    shelf = shelve(tmp_path, fitted, None, gate=FAILED)
    assert shelf.record("v1", PASSED.records[0]) == PASSED, "the newer record on the same data counts"
    said = RiskWatch(place(tmp_path), store).predict(SeenGpus(GPUS), NOW)
    assert {one.target for one in said} == {HARDWARE_FAULT}
    (tmp_path / "models" / "v1" / "gate.json").write_text("{")
    with pytest.raises(InputError, match="gate"):
        shelf.load("v1")
    with pytest.raises(InputError, match="ships with the package"):
        shelf.record(PRIOR, PASSED.records[0])


def test_what_a_repair_has_mended_is_no_sign_until_there_are_new_ones(
    tmp_path: Path, fitted: Scorer, store: Store
) -> None:
    shelve(tmp_path, fitted, None)
    watch = RiskWatch(place(tmp_path), store)
    before = {one.subject.name: one for one in watch.predict(SeenGpus(GPUS), NOW) if one.target == HARDWARE_FAULT}
    failing = GPUS[2].uuid
    assert before[failing].status is PredictionStatus.LIKELY
    reset_ms = NOW - HOUR // 2
    after = {one.subject.name: one for one in watch.predict(SeenGpus(GPUS, repaired={failing: reset_ms}), NOW)}
    assert after[failing].status is PredictionStatus.UNLIKELY
    assert f"what it showed before its repair at {to_minute(reset_ms)} no longer counts" in after[failing].sentence
    assert "不再计入" in after[failing].sentence_zh
    assert {one.sentence for uuid, one in after.items() if uuid != failing} == {
        one.sentence for uuid, one in before.items() if uuid != failing
    }
    repaired = {failing: NOW - 12 * HOUR}
    long_ago = {one.subject.name: one for one in watch.predict(SeenGpus(GPUS, repaired=repaired), NOW)}
    assert long_ago[failing].status is PredictionStatus.LIKELY, "it has replayed for hours since"


def test_what_no_sign_foretells_is_stated_beside_the_models_word_and_warns_of_nobody_else(
    tmp_path: Path, fitted: Scorer, store: Store
) -> None:
    shelve(tmp_path, fitted, None)
    watch = RiskWatch(place(tmp_path), store)
    alone = [one for one in watch.predict(SeenGpus(GPUS), NOW) if one.target == HARDWARE_FAULT]
    model, version = alone[0].model, alone[0].model_version
    unforeseen = {(model, version, False): 0.02, (model, version, True): 0.5, (model, "another", False): 0.5}
    beside = [one for one in watch.predict(SeenGpus(GPUS, unforeseen=unforeseen), NOW) if one.target == HARDWARE_FAULT]
    for before, after in zip(alone, beside, strict=True):
        assert before.probability is not None
        assert after.probability is not None
        assert after.probability == pytest.approx(1 - (1 - before.probability) * 0.98)
        assert (after.raw, after.status) == (before.probability, before.status)
        assert after.curve[-1] == (after.horizon_ms, after.probability)
        for (_, own), (_, alone_chance) in zip(after.own_curve, before.curve, strict=True):
            assert own == pytest.approx(alone_chance), "what is done goes by the model's own word"
        assert not moved(before, after)
        assert [chance for _, chance in after.curve] == sorted(chance for _, chance in after.curve)
        assert sum(chance for _, chance in after.classes) == pytest.approx(after.probability if after.classes else 0)
        assert (after.threshold is None) is (before.threshold is None)
        assert after.threshold is None or (after.probability >= after.threshold) is (
            after.status is PredictionStatus.LIKELY
        )
        assert after.sentence != before.sentence or after.probability > 0.99


def test_a_clock_that_was_set_back_starts_from_the_past_again(tmp_path: Path, fitted: Scorer, store: Store) -> None:
    shelve(tmp_path, fitted, None)
    watch = RiskWatch(place(tmp_path), store)
    watch.predict(SeenGpus(GPUS), NOW)
    earlier = watch.predict(SeenGpus(GPUS), NOW - 10 * HOUR)
    alone = RiskWatch(replace(place(tmp_path), state=None), store).predict(SeenGpus(GPUS), NOW - 10 * HOUR)
    assert earlier == alone


def test_a_short_past_is_said(tmp_path: Path, book: CaseRecord, store: Store) -> None:
    scorer = registry.build("calibrated", scorer="hazard", min_history_ms=5 * DAY)
    scorer.fit(examples())
    (one, *_) = RiskModel(ModelVersion("v", scorer, card(), book)).predict(_builder(store), SeenGpus(GPUS), NOW)
    assert one.status is PredictionStatus.NOT_ENOUGH_DATA
    assert "h of history, 120.0 h needed" in one.sentence
    assert "数据不足" in one.sentence_zh


def _builder(store: Store):  # type: ignore[no-untyped-def]
    from tocsin.forecaster.features.builder import FeatureBuilder
    from tocsin_testing.feature_data import warm

    builder = FeatureBuilder(PLAN, GPUS)
    warm(builder, store, NOW)
    return builder


def test_a_model_that_was_not_calibrated_never_warns(store: Store) -> None:
    scorer = registry.build("hazard")
    scorer.fit(examples())
    said = RiskModel(ModelVersion("v", scorer, card(), None)).predict(_builder(store), SeenGpus(GPUS), NOW)
    assert {one.status for one in said} == {PredictionStatus.UNLIKELY}
    assert {one.threshold for one in said} == {None}


def test_a_model_warns_of_nothing_less_likely_than_the_floor(
    tmp_path: Path, store: Store, said: list[Prediction]
) -> None:
    sure = said[2].probability or 0.0
    for least, warns in ((sure - 0.01, True), (min(1.0, sure + 1e-6), False)):
        one = RiskWatch(replace(place(tmp_path), least=least), store).predict(SeenGpus(GPUS), NOW)[2]
        assert (one.status is PredictionStatus.LIKELY) is warns
        assert (one.probability, one.threshold) == (sure, least)
    assert one.sentence.endswith(", no warning yet."), "what is as likely as that is not called unlikely"
    assert one.sentence_zh.endswith("，尚不告警。")


class Sum:
    """A scorer whose log-odds are the sum of two features."""

    name, version, horizons_ms, min_history_ms = "sum", "1", (HOUR,), 0

    def score(self, table: Examples) -> Floats:
        z = np.nan_to_num(table.features[:, :2]).sum(axis=1).astype(np.float64)
        return np.asarray(1 / (1 + np.exp(-z)))[:, None]


def test_reasons_are_what_the_score_loses_when_one_thing_is_as_usual() -> None:
    table = examples(101)
    names = ("a.24h", "b.24h", "c.24h", *NAMES[3:])
    features = np.zeros_like(table.features)
    features[0, :3] = (3.0, 1.0, 9.0)
    table = replace(table, names=names, features=features)
    (found,) = reasons(Sum(), table, np.array([0]))  # type: ignore[arg-type]
    assert [(one.group, round(one.weight, 6)) for one in found] == [("a", 3.0), ("b", 1.0)], "c plays no part"
    assert (found[0].feature, found[0].value, found[0].usual) == ("a.24h", 3.0, 0.0)
    assert reasons(Sum(), table, np.array([], dtype=np.int64)) == []  # type: ignore[arg-type]


def test_counts_are_said_as_counts() -> None:
    one = Reason("ecc_corrected", 2.0, "ecc_corrected.24h", float(np.log1p(1500)), 0.0)
    assert why(one) == ("1,500 corrected ECC errors in 24h (usual 0)", "24h 内 1,500 次可纠正 ECC 错误（通常 0）")
    assert why(Reason("thermal", 1.0, "thermal.drift", 0.3, 0.0)) == ("its thermal resistance", "热阻")
    assert why(Reason("new_thing", 1.0, "new_thing.1h", 0.3, 0.0)) == ("new thing", "new_thing")
    slow = Reason("pcie_replay", 1.0, "pcie_replay.rate", float(np.log1p(0.4)), float("nan"))
    assert why(slow)[0] == "0.4 PCIe replays an hour"
    english, chinese = likely_sentence("n GPU 1", 0.6, T0, 48 * HOUR, [], [("nvlink", 0.21), ("memory", 0.2)])
    # A decision keeps the sentence, while the probability goes on.
    within = f"a hardware fault within 48 h of {to_minute(T0)} has a probability of"
    assert english == f"n GPU 1: {within} 60%, most likely of NVLink (21%)."
    assert f"自 {to_minute(T0)} 起 48 小时内" in chinese
    assert "60%，最可能是 NVLink 故障（21%）" in chinese
    assert "a probability of > 99%" in likely_sentence("n GPU 1", 0.9961, T0, 48 * HOUR, [])[0]
    english, chinese = likely_sentence("n GPU 1", 0.034, T0, 48 * HOUR, [one])
    assert english == (f"n GPU 1: {within} 3.40%, because of 1,500 corrected ECC errors in 24h (usual 0).")
    assert chinese.endswith("。")


def test_every_channel_has_words_in_both_languages() -> None:
    assert [name for name in PLAN.names if name not in CHANNELS] == []


class TestCases:
    def test_many_rows_before_one_fault_are_one_case(self) -> None:
        table = examples(200)
        struck = np.flatnonzero(table.event_ms != NEVER)
        same = replace(table, device=table.device.copy(), event_ms=table.event_ms.copy())
        same.device[struck], same.event_ms[struck] = struck[0], table.event_ms[struck].max()
        same = replace(same, at_ms=np.where(table.event_ms != NEVER, same.event_ms - HOUR, table.at_ms))
        book = CaseRecord.of(same, np.zeros(len(same)), 48 * HOUR)
        assert {one.faults for one in book.like(table.take(struck))} == {1}

    def test_like_situations_had_like_ends(self, book: CaseRecord) -> None:
        table = examples(50, seed=9)
        found = book.like(table)
        sick = np.isfinite(np.where(table.event_ms == NEVER, np.nan, 1.0))
        assert np.mean([one.faults for one, bad in zip(found, sick, strict=True) if bad]) > 7
        assert np.mean([one.faults for one, bad in zip(found, sick, strict=True) if not bad]) < 3
        assert {kind for one in found for kind, _ in one.classes} == {"bus"}

    def test_a_book_comes_back_from_its_file(self, book: CaseRecord, tmp_path: Path) -> None:
        book.save(tmp_path / "cases")
        back = CaseRecord.load(tmp_path / "cases")
        table = examples(20, seed=3)
        assert back.like(table) == book.like(table)
        fewer = replace(table, names=table.names[::-1], features=table.features[:, ::-1])
        assert back.like(fewer) == book.like(table), "features are found by name"

    def test_a_damaged_record_of_cases_is_one_clear_error(self, tmp_path: Path) -> None:
        (tmp_path / "cases").write_bytes(b"\x00" * 30)
        with pytest.raises(InputError, match="not a record of cases"):
            CaseRecord.load(tmp_path / "cases")


def test_the_shipped_model_scores_without_what_it_was_made_with(tmp_path: Path) -> None:
    """They are most of a worker's memory."""
    heavy = ("scipy", "sklearn", "torch", "statsmodels", "pandas")
    (rows := tmp_path / "rows").write_bytes(pickle.dumps(examples(30)))
    code = (
        "import pickle, sys\n"
        "from pathlib import Path\n"
        "from tocsin.forecaster.lifecycle.model_registry import PRIOR, ModelRegistry\n"
        "from tocsin.forecaster.live.risk import RiskWatch\n"
        f"rows = pickle.loads(Path({str(rows)!r}).read_bytes())\n"
        f"assert len(ModelRegistry(Path({str(tmp_path)!r})).load(PRIOR).scorer.score(rows)) == 30\n"
        f"print([name for name in {heavy} if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120, check=False)
    assert (done.stdout.strip(), done.stderr) == ("[]", "")


class TestShelf:
    def test_versions_come_and_go_in_service(self, tmp_path: Path, fitted: Scorer, book: CaseRecord) -> None:
        shelf = ModelRegistry(tmp_path / "models")
        assert shelf.versions() == shelf.history() == []
        shelf.add(ModelVersion("a", fitted, card("a"), book))
        shelf.add(ModelVersion("b", fitted, card("b"), None))
        assert shelf.versions() == ["a", "b"]
        shelf.promote("a", 1, "ann")
        assert shelf.promote("b", 2, "bob") == "a"
        assert shelf.in_service == "b"
        with pytest.raises(Conflict, match="in service already"):
            shelf.promote("b", 3, "bob")
        assert shelf.rollback(4, "ann") == ("a", "b")
        assert [(one.version, one.actor) for one in shelf.history()] == [("a", "ann"), ("b", "bob"), ("a", "ann")]
        loaded = shelf.load("a")
        assert loaded.cases is not None
        assert shelf.load("b").cases is None
        table = examples(30, seed=4)
        np.testing.assert_array_equal(loaded.scorer.score(table), fitted.score(table))

    def test_each_rollback_goes_one_further_back(
        self, tmp_path: Path, fitted: Scorer, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tocsin.forecaster.lifecycle.model_registry.shipped", lambda: None)
        shelf = ModelRegistry(tmp_path / "models")
        for at_ms, version in enumerate("abc"):
            shelf.add(ModelVersion(version, fitted, card(version), None))
            shelf.promote(version, at_ms, "ann")
        assert [shelf.rollback(9, "ann"), shelf.rollback(10, "ann")] == [("b", "c"), ("a", "b")]
        with pytest.raises(Conflict, match="first version"):
            shelf.rollback(11, "ann")
        shelf.promote("c", 12, "ann")
        shelf.promote("a", 13, "ann")
        assert shelf.rollback(14, "ann") == ("c", "a")

    def test_what_is_not_there_is_named(self, tmp_path: Path, fitted: Scorer, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tocsin.forecaster.lifecycle.model_registry.shipped", lambda: None)
        shelf = ModelRegistry(tmp_path / "models")
        with pytest.raises(InputError, match="run tocsin train"):
            shelf.load("a")
        with pytest.raises(Conflict, match="nothing was promoted"):
            shelf.rollback(1, "ann")
        shelf.add(ModelVersion("a", fitted, card("a"), None))
        with pytest.raises(InputError, match="use one of: a"):
            shelf.promote("z", 1, "ann")
        with pytest.raises(InputError, match="name is taken"):
            shelf.add(ModelVersion("a", fitted, card("a"), None))
        with pytest.raises(InputError, match="name is taken"):
            shelf.add(ModelVersion(PRIOR, fitted, card(), None))
        shelf.promote("a", 1, "ann")
        with pytest.raises(Conflict, match="first version"):
            shelf.rollback(2, "ann")
        assert sorted(path.name for path in (tmp_path / "models").iterdir()) == ["a", "service.json"]
        (tmp_path / "models" / "service.json").write_text("{")
        with pytest.raises(InputError, match="unreadable"):
            shelf.history()

    def test_the_folder_is_what_the_docs_say(self, tmp_path: Path, fitted: Scorer, book: CaseRecord) -> None:
        shelve(tmp_path, fitted, book)
        assert (tmp_path / "models" / "v1" / MODEL / "card.json").exists()
        assert (tmp_path / "models" / "v1" / CASES).exists()


def test_the_worker_process_reads_the_store_itself(
    tmp_path: Path, fitted: Scorer, monkeypatch: pytest.MonkeyPatch
) -> None:
    left: list[object] = []
    monkeypatch.setattr(FeatureBuilder, "leave_out", lambda _builder, surplus: left.append(surplus))
    settings = StoreSettings(kind=StoreKind.SQLITE, path=tmp_path / "store.db")
    store = open_store(settings)
    store.init()
    times = range(NOW - 30 * HOUR, NOW + 1, 10 * MINUTE)
    store.write(
        Batch(
            readings=[reading(GPUS[0], at_ms, power_watts=300.0 + at_ms % 7, pcie_replay_total=0.0) for at_ms in times]
        )
    )
    shelve(tmp_path, fitted, None)
    where = RiskInputs(settings, tmp_path / "models")
    answers = []
    for process in (True, False):
        worker = ForecastWorker(ForecastSettings(worker=process), ["threshold"], where, store)
        answers.append(worker.submit_risk(SeenGpus(GPUS[:1], frozenset({"GPU-surplus"})), NOW).result(120))
        worker.close()
    store.close()
    assert answers[0] == answers[1]
    assert left == [{"GPU-surplus"}]
    assert [one.status for one in answers[0]] == [PredictionStatus.UNLIKELY]
    alone = ForecastWorker(ForecastSettings(worker=False))
    assert alone.submit_risk(SeenGpus(GPUS), NOW).result() == []
