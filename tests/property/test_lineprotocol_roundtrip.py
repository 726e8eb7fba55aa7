"""Line protocol: what is encoded is decoded, and a bad line never costs a good one."""

from __future__ import annotations

import math
from dataclasses import asdict

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.batch import Batch
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import ActionKind, Category, Evidence, Finding, Severity, Subject, SubjectKind
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.domain.reading import MAX_FUTURE_MS, Gpu, Missing, Owner, Reading
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin.store.points import CONTROL
from tocsin_testing.builders import T0, gpu, reading, xid

text = st.text(max_size=12)
# No name has control characters: the encoder replaces them. Nor can a tag hold a backslash at its end.
attribute = st.text(st.characters(exclude_categories=["Cc", "Cs"]), max_size=12)
tag = attribute.filter(lambda value: not value.endswith("\\"))
named = tag.filter(bool)
instants = st.integers(min_value=0, max_value=T0)
numbers = st.floats(allow_nan=False, allow_infinity=False)
owners = st.lists(st.builds(Owner, st.integers(0, 2**31), text, text, text, text, text, text, text), max_size=2).map(
    tuple
)
plain = [name for name, spec in METRICS.items() if spec.entity == "gpu"]
labelled = [name for name, spec in METRICS.items() if spec.label]


@st.composite
def keys(draw: st.DrawFn) -> str:
    if draw(st.booleans()):
        return draw(st.sampled_from(plain))
    name = draw(st.sampled_from(labelled))
    return variant(name, METRICS[name].label, draw(named))


@st.composite
def readings(draw: st.DrawFn) -> Reading:
    slice_ = draw(st.booleans())
    which = Gpu(
        uuid=draw(named),
        host=draw(tag),
        index=draw(st.none() | st.integers(0, 15)),
        model=draw(attribute),
        serial=draw(attribute),
        pci_bus_id=draw(attribute),
        parent=draw(named) if slice_ else "",
        mig_profile=draw(attribute),
        pool=draw(attribute),
        rack=draw(attribute),
        labels=draw(st.dictionaries(attribute, attribute, max_size=3)),
        simulated=draw(st.booleans()),
    )
    values, missing = {}, {}
    for key in draw(st.lists(keys(), max_size=8, unique=True)):
        spec = METRICS[key.partition("{")[0]]
        if draw(st.booleans()):
            values[key] = draw(st.floats(spec.minimum, spec.maximum))
        else:
            missing[key] = draw(st.sampled_from(Missing))
    return Reading(which, draw(instants), values, missing, draw(owners))


subjects = st.builds(Subject, st.sampled_from(SubjectKind), named, text, text, tag)
evidence = st.lists(st.builds(Evidence, text, text, instants, st.none() | numbers), max_size=2).map(tuple)
events = st.builds(
    Event,
    st.sampled_from(EventKind),
    tag,
    tag,
    instants,
    st.integers(0, 2**31),
    text,
    text,
    st.booleans(),
    st.none() | st.sampled_from(Severity),
    text,
)
findings = st.builds(
    Finding,
    rule=named,
    subject=subjects,
    severity=st.sampled_from(Severity),
    category=st.sampled_from(Category),
    action=st.sampled_from(ActionKind),
    started_ms=instants,
    last_ms=instants,
    sentence=text,
    metric=text,
    value=st.none() | numbers,
    threshold=st.none() | numbers,
    evidence=evidence,
    simulated=st.booleans(),
    owners=owners,
)
predictions = st.builds(
    Prediction,
    subject=subjects,
    target=named,
    at_ms=instants,
    horizon_ms=instants,
    status=st.sampled_from(PredictionStatus),
    model=named,
    model_version=text,
    sentence=text,
    metric=text,
    threshold=st.none() | numbers,
    value=st.none() | numbers,
    probability=st.none() | st.floats(0, 1),
    eta_ms=st.none() | instants,
    eta_low_ms=st.none() | instants,
    eta_high_ms=st.none() | instants,
    coverage=st.none() | st.floats(0, 1),
    reason=text,
    evidence=evidence,
    simulated=st.booleans(),
)


def once(found: list[Reading]) -> list[Reading]:
    """One reading per GPU and instant: two of them merge, which is a law of its own."""
    return list({(r.gpu.uuid, r.at_ms): r for r in found}.values())


@given(st.lists(readings(), max_size=4).map(once), st.booleans())
def test_readings_come_back_with_their_gpu(written: list[Reading], owner_labels: bool) -> None:
    decoded = decode(encode(Batch(written), owner_labels=owner_labels), now_ms=T0)
    assert (decoded.rejected, decoded.warnings, decoded.dropped) == ([], [], 0)
    assert decoded.batch.readings == written
    assert [asdict(r.gpu) for r in decoded.batch.readings] == [asdict(r.gpu) for r in written]


@given(st.lists(events, max_size=3), st.lists(findings, max_size=3), st.lists(predictions, max_size=3))
def test_events_findings_and_predictions_come_back(
    some: list[Event], others: list[Finding], more: list[Prediction]
) -> None:
    decoded = decode(encode(Batch([], some, others, more)), now_ms=T0)
    assert decoded.rejected == []
    assert (decoded.batch.events, decoded.batch.findings, decoded.batch.predictions) == (some, others, more)


@given(st.text(max_size=200) | st.binary(max_size=200))
def test_no_input_raises(body: str | bytes) -> None:
    decoded = decode(body, now_ms=T0)
    assert all(line.number >= 1 and line.problem for line in decoded.rejected)


@given(st.lists(st.text(st.characters(exclude_characters="\n\r", codec="utf-8"), min_size=1, max_size=40), max_size=4))
def test_bad_lines_never_cost_the_good_ones(garbage: list[str]) -> None:
    body, bad = "", 0
    for n, line in enumerate(garbage):
        bad += bool(line.strip()) and not line.lstrip().startswith("#")
        body += f"{line}\ngpu,gpu_uuid=G{n} power_watts={n} {T0}\n"
    decoded = decode(body, now_ms=T0)
    kept = {r.gpu.uuid for r in decoded.batch.readings}
    assert {f"G{n}" for n in range(len(garbage))} <= kept
    assert len(decoded.rejected) <= bad


@pytest.mark.parametrize(("precision", "per_ms"), [("ns", 1_000_000), ("us", 1_000), ("ms", 1)])
def test_precisions(precision: str, per_ms: int) -> None:
    line = f"gpu,gpu_uuid=G power_watts=1 {T0 * per_ms}"
    assert [r.at_ms for r in decode(line, precision=precision, now_ms=T0).batch.readings] == [T0]
    assert decode("gpu,gpu_uuid=G power_watts=1 1795000000", precision="s", now_ms=T0).batch.readings[0].at_ms == T0
    with pytest.raises(InputError, match="precision = 'h'"):
        decode(line, precision="h", now_ms=T0)


def test_a_point_without_a_timestamp_is_of_now() -> None:
    assert decode("gpu,gpu_uuid=G power_watts=1", now_ms=T0).batch.readings[0].at_ms == T0


def test_a_reading_from_the_future_is_rejected_alone() -> None:
    lines = [f"gpu,gpu_uuid=G{n} power_watts=1 {T0 + ahead}" for n, ahead in enumerate((0, MAX_FUTURE_MS, 7_200_000))]
    decoded = decode("\n".join(lines), now_ms=T0)
    assert [r.gpu.uuid for r in decoded.batch.readings] == ["G0", "G1"]
    (bad,) = decoded.rejected
    assert bad.number == 3
    assert bad.problem.startswith("dated 7200 s in the future")


def test_unusable_values_are_blank_and_counted() -> None:
    body = f"gpu,gpu_uuid=G temperature_celsius=NaN,power_watts=-inf,utilization_ratio=7,sm_clock_hertz=5,oops=1 {T0}"
    decoded = decode(body, now_ms=T0)
    (one,) = decoded.batch.readings
    assert dict(one.values) == {"gpu_sm_clock_hertz": 5.0}
    blank = ("gpu_temperature_celsius", "gpu_power_watts", "gpu_utilization_ratio")
    assert dict(one.missing) == dict.fromkeys(blank, Missing.BLANK)
    assert (decoded.rejected, decoded.dropped, len(decoded.warnings)) == ([], 4, 4)


def test_a_value_that_is_not_finite_travels_as_blank() -> None:
    found = decode(encode(Batch([reading(power_watts=math.nan, temperature_celsius=40)])), now_ms=T0).batch.readings
    assert dict(found[0].values) == {"gpu_temperature_celsius": 40.0}
    assert dict(found[0].missing) == {"gpu_power_watts": Missing.BLANK}


def test_numpy_scalars_are_numbers() -> None:
    values = {"gpu_power_watts": np.float64(1.5), "gpu_temperature_celsius": np.float64(40)}
    line = encode(Batch([Reading(gpu(0), T0, values)]), info=False)
    assert line == f"gpu,gpu_uuid=GPU-00000000,host=node-1 power_watts=1.5,temperature_celsius=40.0 {T0}\n"


def test_an_integer_threshold_is_written_as_a_float() -> None:
    subject = Subject(SubjectKind.GPU, "G")
    made = Finding("r", subject, Severity.INFO, Category.POWER, ActionKind.NOTIFY, T0, T0, "s", value=90, threshold=85)
    assert "value=90.0,threshold=85.0," in encode(Batch(findings=[made]))


def test_text_that_does_not_end_costs_its_own_line_alone() -> None:
    head = "gpu_event,kind=xid,gpu_uuid=G,code=79"
    good = encode(Batch(events=[xid(48)]))
    decoded = decode(f'{head} message="never ends\n{good}{good}', now_ms=T0)
    assert [(line.number, line.problem) for line in decoded.rejected] == [(1, "quoted text does not end")]
    assert decoded.batch.events == [xid(48)] * 2


def test_warnings_are_bounded_and_the_rest_is_counted() -> None:
    body = "\n".join(f"gpu,gpu_uuid=G made_up_{n}=1,power_watts=1 {T0}" for n in range(300))
    decoded = decode(body, now_ms=T0)
    assert (decoded.dropped, len(decoded.warnings), decoded.warnings[-1]) == (300, 101, "and 200 more warnings")


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("garbage", "no fields"),
        ("cpu,host=a usage=1", "unknown measurement 'cpu'"),
        ("gpu,host=a power_watts=1", "tag gpu_uuid is missing"),
        ("gpu,gpu_uuid= power_watts=1", "tag 'gpu_uuid=' is not name=value"),
        ("gpu,gpu_uuid=G power_watts=x", "'x' is not a number"),
        ("gpu,gpu_uuid=G power_watts=1_0", "'1_0' is not a number"),
        ("gpu,gpu_uuid=G power_watts=1 soon", "timestamp 'soon' is not a whole number"),
        ("gpu,gpu_uuid=G,link=1,pid=2 power_watts=1", "tags link and pid are labels of different metrics"),
        (
            "gpu,gpu_uuid=G power_watts,1=temperature_celsius=2",
            "'power_watts,1=temperature_celsius=2' is not name=value",
        ),
        ("gpu,gpu_uuid=G power_watts=1,=2", "'=2' is not name=value"),
        ("gpu,gpu_uuid=G,link=1=2 nvlink_up=1", "tag 'link=1=2' is not name=value"),
        ("gpu,link=1 nvlink_up=1", "tag gpu_uuid is missing"),
        ("gpu_missing,gpu_uuid=G power_watts", "'power_watts' is not name=value"),
        ('gpu_event,kind=fire,code=1 message="x"', "kind = 'fire' is not usable in gpu_event"),
        ('gpu_event,kind=xid,code=1 severity="dire"', "severity = 'dire' is not usable in gpu_event"),
        ('gpu_finding,rule=r,subject_kind=gpu sentence="x"', "gpu_finding needs severity"),
        (f'gpu_info,gpu_uuid=G labels="{"[" * 20_000}"', "labels is no JSON object"),
        (
            f'gpu_prediction,target=t,subject_kind=gpu horizon_ms=1i,status="likely",curve="{"[" * 20_000}"',
            "curve '[[[",
        ),
        (
            'gpu_prediction,target=t,subject_kind=gpu horizon_ms=1i,status="likely",curve="[[Infinity, 1]]"',
            "curve '[[Infinity, 1]]'",
        ),
    ],
)
def test_each_bad_line_says_why(line: str, problem: str) -> None:
    decoded = decode(f"gpu,gpu_uuid=A power_watts=1\n{line}\ngpu,gpu_uuid=B power_watts=1", now_ms=T0)
    assert [r.gpu.uuid for r in decoded.batch.readings] == ["A", "B"]
    ((number, found),) = [(bad.number, bad.problem) for bad in decoded.rejected]
    assert number == 2
    assert found.startswith(problem)


def test_the_fast_way_and_the_slow_way_agree() -> None:
    plain = f"gpu,gpu_uuid=G,host=h,link=3 nvlink_up=1.0,nvlink_replay_errors_total=7 {T0}"
    odd = f"gpu,link=3,gpu_uuid=G,host=h nvlink\\_up=x1.0,nvlink_replay_errors_total=7 {T0}".replace("\\_up=x", "_up=")
    reasons = f"gpu_missing,gpu_uuid=G,host=h power_watts=2i,nvlink_up=3i {T0}"
    floats = f"gpu_missing,gpu_uuid=G,host=h power_watts=2,nvlink_up=3.0 {T0}"
    assert decode(plain, now_ms=T0) == decode(odd, now_ms=T0)
    assert decode(reasons, now_ms=T0) == decode(floats, now_ms=T0)
    assert len(decode(plain, now_ms=T0).batch.readings[0].values) == 2
    assert len(decode(reasons, now_ms=T0).batch.readings[0].missing) == 2


def test_what_is_remembered_of_a_gpu_never_leaks_into_another_reading() -> None:
    one, other = (
        {"gpu_power_watts": Missing.DENIED},
        {"gpu_power_watts": Missing.LOST, "gpu_sm_clock_hertz": Missing.LOST},
    )
    for missing in (one, other, one, {}):
        written = Reading(gpu(0), T0, {"gpu_temperature_celsius": 40.0}, missing)
        (found,) = decode(encode(Batch([written])), now_ms=T0).batch.readings
        assert dict(found.missing) == missing
    moved = gpu(0, host="another")
    assert ",host=another " in encode(Batch([Reading(moved, T0, {}, one)]), info=False)


@given(st.text(alphabet="a\0\n\x1b\x7f\x9b", min_size=1, max_size=4))
def test_what_our_own_senders_find_in_names_costs_no_line(odd: str) -> None:
    """A driver or a site's file may have anything in a name: it is said with spaces, and taken."""
    which = Gpu(f"GPU{odd}1", host=f"h{odd}1", pool=odd, serial=odd, labels={odd: odd})
    found = decode(encode(Batch([Reading(which, T0, {"gpu_temperature_celsius": 40.0})])), now_ms=T0)
    assert found.rejected == []
    (read,) = found.batch.readings
    plain = CONTROL.sub(" ", odd)
    assert (read.gpu.uuid, read.gpu.host) == (f"GPU{plain}1", f"h{plain}1")
    assert (read.gpu.pool, read.gpu.serial, read.gpu.labels) == (plain, plain, {plain: plain})
