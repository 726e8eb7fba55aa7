"""Packed lines: they say what text says, whatever their names; a hostile one costs itself alone, and little."""

from __future__ import annotations

import math
import struct
from base64 import b64encode

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.domain.batch import Batch
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Gpu, Missing, Owner, Reading
from tocsin.store.line_protocol import packed_names
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin.store.line_protocol.packed import BEGIN, MOST_ALIKE, in_plain_lines
from tocsin_testing.builders import T0, gpu

names = st.sampled_from(["GPU-1", "GPU-2", "MIG-1/2", "a.b_c", "ä", "a b", 'x"y', "G,1", "G|2", "G{3}", "G=4"])
gpus = st.builds(
    Gpu, uuid=names, host=st.sampled_from(["h1", "h2", "", "h 3"]), parent=st.sampled_from(["", "", "GPU-9", "P|1"])
)
labels = {name: spec.label for name, spec in METRICS.items() if spec.label}
keys = st.sampled_from(sorted(METRICS)).flatmap(
    lambda name: (
        st.sampled_from(["0", "17", "a.b", "ä", "", "x y"]).map(
            lambda value: variant(name, labels[name], value) if value else name
        )
        if name in labels
        else st.just(name)
    )
)


@st.composite
def alike(draw: st.DrawFn) -> list[Reading]:
    """Readings that mostly say the same."""
    said, lacked = draw(st.lists(keys, max_size=5, unique=True)), draw(st.lists(keys, max_size=3, unique=True))
    found = []
    for which in draw(st.lists(gpus, max_size=4)):
        values = {key: draw(_number(key)) for key in said}
        missing = dict.fromkeys([key for key in lacked if key not in said], draw(st.sampled_from(Missing)))
        if values or missing:
            owners = draw(st.sampled_from([(), (Owner(7, user="ann"),)]))
            found.append(Reading(which, draw(st.sampled_from([T0, T0 - 1])), values, missing, owners))
    return found


def _number(key: str) -> st.SearchStrategy[float]:
    spec = METRICS[key.partition("{")[0]]
    return st.floats(spec.minimum, spec.maximum)


@given(alike(), st.booleans())
def test_what_is_packed_is_read_as_the_text_would_be(made: list[Reading], info: bool) -> None:
    text, packed = encode(Batch(made), info=info), encode(Batch(made), info=info, packed=True)
    by_text, by_packed = decode(text, now_ms=T0), decode(packed, now_ms=T0)
    assert (by_packed.rejected, by_packed.warnings) == ([], [])
    assert {(one.gpu.uuid, one.at_ms): one for one in by_packed.batch.readings} == {
        (one.gpu.uuid, one.at_ms): one for one in by_text.batch.readings
    }


@given(alike())
def test_what_is_made_plain_is_read_as_the_text_would_be(made: list[Reading]) -> None:
    plain = in_plain_lines(encode(Batch(made), packed=True))
    assert BEGIN not in plain
    assert {(one.gpu.uuid, one.at_ms): one for one in decode(plain, now_ms=T0).batch.readings} == {
        (one.gpu.uuid, one.at_ms): one for one in decode(encode(Batch(made)), now_ms=T0).batch.readings
    }


def node(count: int = 8) -> list[Reading]:
    links = {variant("gpu_nvlink_up", "link", str(link)): 1.0 for link in range(18)}
    return [
        Reading(
            gpu(n, host="node-1"),
            T0,
            {
                "gpu_power_watts": 300.0 + n,
                **links,
                variant("gpu_process_memory_used_bytes", "pid", str(4000 + n)): 1e9 + n,
            },
            {"gpu_fan_speed_ratio": Missing.UNSUPPORTED},
            (Owner(4000 + n, user="ann"),),
        )
        for n in range(count)
    ]


def test_what_all_gpus_of_a_host_say_alike_is_said_once() -> None:
    lines = encode(Batch(node()), packed=True).splitlines()
    assert [line.partition(",")[0] for line in lines].count("gpu_packed") == 3
    assert sum(line.count("nvlink_up{link=17}") for line in lines) == 1
    assert decode("\n".join(lines), now_ms=T0).batch.readings == node()


def test_gpus_with_instances_of_their_own_say_the_rest_alike() -> None:
    used = [variant("gpu_mig_instance_memory_used_ratio", "instance", f"MIG-{n}@4") for n in range(3)]
    made = [Reading(gpu(n), T0, {"gpu_power_watts": 100.0 + n, used[n]: 0.5}) for n in range(3)]
    packed = encode(Batch(made), info=False, packed=True)
    assert packed.count(BEGIN) == packed.count("\n") == 2
    assert [one.values for one in decode(packed, now_ms=T0).batch.readings] == [one.values for one in made]


def test_many_gpus_on_one_line_are_not_remembered() -> None:
    many, before = ",".join(f"G{n}" for n in range(MOST_ALIKE + 1)), packed_names._known_members.cache_info().currsize
    numbers = b64encode(struct.pack("<d", 1.0) * (MOST_ALIKE + 1)).decode()
    found = decode(f'gpu_packed,host=h gpus="{many}",names="power_watts",values="{numbers}" {T0}', now_ms=T0)
    assert len(found.batch.readings) == MOST_ALIKE + 1
    assert packed_names._known_members.cache_info().currsize == before


def test_a_gpu_of_another_hosts_costs_itself_alone() -> None:
    made = node(3)
    stolen = made[1].gpu.uuid
    found = decode(
        encode(Batch(made), info=False, packed=True),
        now_ms=T0,
        admit=lambda _measurement, _host, uuids: "it is node-2's" if stolen in uuids else "",
    )
    assert [one.gpu.uuid for one in found.batch.readings] == [made[0].gpu.uuid, made[2].gpu.uuid]
    assert {bad.problem for bad in found.rejected} == {"it is node-2's"}


def test_a_value_that_is_no_reading_costs_itself_alone() -> None:
    raw = b64encode(struct.pack("<4d", math.nan, 40.0, 300.0, 41.0)).decode()
    line = f'gpu_packed,host=h gpus="G1,G2",names="power_watts,temperature_celsius",values="{raw}" {T0}'
    found = decode(line, now_ms=T0)
    one, other = found.batch.readings
    assert (dict(one.values), dict(one.missing)) == (
        {"gpu_temperature_celsius": 40.0},
        {"gpu_power_watts": Missing.BLANK},
    )
    assert dict(other.values) == {"gpu_power_watts": 300.0, "gpu_temperature_celsius": 41.0}
    assert (found.rejected, found.dropped) == ([], 1)


def test_a_name_that_nobody_knows_costs_itself_alone() -> None:
    raw = b64encode(struct.pack("<2d", 1.0, 40.0)).decode()
    found = decode(f'gpu_packed,host=h gpus="G1",names="made_up,temperature_celsius",values="{raw}" {T0}', now_ms=T0)
    assert [dict(one.values) for one in found.batch.readings] == [{"gpu_temperature_celsius": 40.0}]
    assert (found.rejected, found.dropped) == ([], 1)
    reasons = decode(f'gpu_packed,host=h gpus="G1",names="made_up,power_watts",reasons="1,77" {T0}', now_ms=T0)
    assert [dict(one.missing) for one in reasons.batch.readings] == [{"gpu_power_watts": Missing.BLANK}]


ONE = b64encode(struct.pack("<d", 1.0)).decode()


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("gpu_packed,host=h power_watts=1", "gpu_packed is no head,"),
        (f'gpu_packed,host=h gpus="G",names="power_watts",values="{ONE}"', "gpu_packed is no head,"),
        (f'gpu_packed,host=h gpus="G",names="power_watts",values="{ONE[:-1]}" 1', "values of gpu_packed are not base"),
        (f'gpu_packed,host=h gpus="G",names="power_watts",values="{ONE}" soon', "timestamp 'soon' is not a whole"),
        (f'gpu_packed,host=h gpus="G",names="power_watts,nvlink_up",values="{ONE}" 1', "8 bytes of values for 1 gpus"),
        (f'gpu_packed,host=h gpus="G,H",names="power_watts",values="{ONE}" 1', "8 bytes of values for 2 gpus"),
        (f'gpu_packed,host=h gpus=",",names="power_watts",values="{ONE}{ONE}" 1', "values of gpu_packed are not base"),
        (f'gpu_packed,host=h gpus="{{1}}",names="power_watts",values="{ONE}" 1', "tag gpu_uuid is missing"),
        (f'gpu_packed,host=h gpus="G{{1}}",names="power_watts",values="{ONE}" 1', "'G' has a label in its braces"),
        (f'gpu_packed,host=h,label=pid gpus="G",names="power_watts",values="{ONE}" 1', "'G' has no label in its"),
        (f'gpu_packed,host=h gpus="{"G" * 2_000}",names="power_watts",values="{ONE}" 1', "tag gpu_uuid is longer"),
        (f'gpu_packed,host=h gpus="G\0",names="power_watts",values="{ONE}" 1', "a control character stands in gpus"),
        ('gpu_packed,host=h gpus="G",names="nvlink_up{link=\x1b}",reasons="1" 1', "a control character stands in"),
        (
            'gpu_packed,host=h,label=link gpus="G{7}",names="nvlink_up",reasons="1" 1',
            "a line of reasons has label 'link'",
        ),
        ('gpu_packed,host=h gpus="G",names="nvlink_up{link=}",reasons="1" 1', "'nvlink_up{link=}' is no field{label"),
        (f'gpu_packed,host=h gpus="G",names="nvlink_up{{link=1",values="{ONE}" 1', "'nvlink_up{link=1' is no field"),
        ('gpu_packed,host=h gpus="G",names="power_watts,nvlink_up",reasons="1" 1', "1 reasons for 2 names"),
        (
            f'gpu_packed,host=h,label=pid gpus="G{{1}}",names="nvlink_up{{link=1}}",values="{ONE}" 1',
            "'nvlink_up{link=1}' has a label, and so has its line",
        ),
    ],
)
def test_each_bad_line_says_why(line: str, problem: str) -> None:
    found = decode(f"gpu,gpu_uuid=A power_watts=1\n{line}\ngpu,gpu_uuid=B power_watts=1", now_ms=T0)
    assert [one.gpu.uuid for one in found.batch.readings] == ["A", "B"]
    assert [bad.number for bad in found.rejected] == [2]
    assert found.rejected[0].problem.startswith(problem)


PIECES = (
    "gpu_packed,host=h", ",label=pid", ' gpus="', '",names="', '",values="', '",reasons="', '" 1', "G1", "{1}", "|",
    ",", "power_watts", "nvlink_up{link=0}", ONE, "=", "\n", '"', "\\", " ", "{", "}", "1", "9" * 30,
)  # fmt: skip
pieces = st.lists(st.sampled_from(PIECES), max_size=40).map("".join)


@given(pieces | st.binary(max_size=80).map(lambda raw: BEGIN.encode() + raw))
def test_no_packed_line_raises(body: str | bytes) -> None:
    found = decode(body, now_ms=T0)
    assert all(bad.problem for bad in found.rejected)
    if isinstance(body, str):
        in_plain_lines(body)


def test_what_is_made_of_a_line_is_in_proportion_to_its_bytes() -> None:
    many = [f"G{n}" for n in range(20_000)]
    raw = b64encode(struct.pack("<20000d", *([1.0] * 20_000))).decode()
    found = decode(f'gpu_packed,host=h gpus="{",".join(many)}",names="power_watts",values="{raw}" {T0}', now_ms=T0)
    assert len(found.batch.readings) == 20_000
    names, reasons = ",".join(f"nvlink_up{{link={n}}}" for n in range(5_000)), ",".join(["1"] * 5_000)
    line = f'gpu_packed,host=h gpus="%s",names="{names}",reasons="{reasons}" {T0}'
    refused = decode(line % ",".join(many[: MOST_ALIKE + 1]), now_ms=T0)
    assert (refused.batch.readings, refused.rejected[0].problem[:29]) == ([], "17 gpus that lack the same ar")
    taken = decode(line % ",".join(many[:MOST_ALIKE]), now_ms=T0)
    assert [len(one.missing) for one in taken.batch.readings] == [5_000] * MOST_ALIKE
    assert len({id(one.missing) for one in taken.batch.readings}) == 1


def test_unknown_reasons_are_read_once_for_all_gpus_that_have_them() -> None:
    gpus, names = ",".join(f"G{n}" for n in range(MOST_ALIKE)), ",".join(f"xyz{n}" for n in range(1_000))
    line = f'gpu_packed,host=h gpus="{gpus}",names="power_watts,{names}",reasons="{",".join(["x" * 90] * 1_001)}" {T0}'
    found = decode(line, now_ms=T0)
    assert (found.dropped, len(found.batch.readings)) == (1_001, MOST_ALIKE)
    assert max(map(len, found.warnings)) < 200
    assert {tuple(one.missing.items()) for one in found.batch.readings} == {(("gpu_power_watts", Missing.BLANK),)}


def test_what_a_sender_makes_up_is_not_remembered() -> None:
    before = packed_names._known_names.cache_info().currsize
    for n in range(50):
        decode(f'gpu_packed,host=h,label={"x" * 500}{n} gpus="G{{1}}",names="a{n}",values="{ONE}" {T0}', now_ms=T0)
        decode(f'gpu_packed,host=h gpus="G",names="made_up_{n}",reasons="1" {T0}', now_ms=T0)
    assert packed_names._known_names.cache_info().currsize == before


def test_many_gpus_of_one_host_are_several_lines() -> None:
    made = [Reading(gpu(n, host="node-1"), T0, {"gpu_power_watts": float(n)}) for n in range(200)]
    packed = encode(Batch(made), info=False, packed=True)
    assert packed.count("\n") == 4
    assert decode(packed, now_ms=T0).batch.readings == made
