"""What a sender may not say is refused line by line, whatever else is in the body."""

from __future__ import annotations

import struct
from base64 import b64encode

from hypothesis import given
from hypothesis import strategies as st

from tocsin.api.principal import Principal, simple
from tocsin.api.write_access import WriteAccess
from tocsin.config.access import Role
from tocsin.store.line_protocol.decode import Decoded, decode
from tocsin_testing.builders import T0

WHO = simple("host:a", Role.AGENT, host="a")
HEADS = (
    "gpu",
    "gpu_missing",
    "gpu_event",
    "finding",
    "gpu,gpu_uuid=G,host=a",
    "gpu,gpu_uuid=G,host=b",
    "gpu,host=a,gpu_uuid=G",
    "gpu,gpu_uuid=G,host=ab",
    "gpu,gpu_uuid=F,host=a",
    "gpu_missing,gpu_uuid=G,host=a",
    "gpu_packed,host=a",
    "gpu_packed,host=b",
    "#gpu",
    "",
)
TAGS = (
    "",
    ",link=0",
    ",link=0,kind=x",
    ",host=b",
    ",mig_uuid=F",
    ",gpu_uuid=F",
    r",link=\,host=b",
    r"\ ,host=b",
    ",x",
    ",=1",
    "x",
)
ONE = b64encode(struct.pack("<d", 1.0)).decode()
THREE = b64encode(struct.pack("<3d", 1.0, 2.0, 3.0)).decode()
FIELDS = (
    " power_watts=1 1",
    " power_watts=1",
    "",
    "  ",
    ' name="a b,host=b" 1',
    "\tpower_watts=1 1",
    " ,host=b",
    f' gpus="G",names="power_watts",values="{ONE}" 1',
    ' gpus="F",names="power_watts",reasons="1" 1',
    f' gpus="G,G|F,H",names="power_watts",values="{THREE}" 1',
)
line = st.builds(
    "".join,
    st.tuples(st.sampled_from(("", " ")), st.sampled_from(HEADS), st.sampled_from(TAGS), st.sampled_from(FIELDS)),
)


def against(gpu: str, host: str) -> str:
    return "b" if gpu == "F" else ""


def judged(*lines: str, who: Principal = WHO) -> Decoded:
    return decode("\n".join(lines), now_ms=T0, admit=WriteAccess(who, against))


@given(st.lists(line, min_size=1, max_size=6))
def test_a_line_is_judged_as_if_it_stood_alone(lines: list[str]) -> None:
    alone = [
        (number, found.rejected[0].problem)
        for number, one in enumerate(lines, start=1)
        if (found := judged(one)).rejected
    ]
    assert [(one.number, one.problem) for one in judged(*lines).rejected] == alone


@given(st.lists(line, min_size=1, max_size=6))
def test_nothing_of_another_node_is_taken(lines: list[str]) -> None:
    for reading in judged(*lines).batch.readings:
        assert reading.gpu.host == "a"
        assert "F" not in {reading.gpu.uuid, reading.gpu.parent}


def test_each_reason_is_told() -> None:
    found = judged(
        "gpu,gpu_uuid=G,host=a power_watts=1 1",
        "gpu,gpu_uuid=G,host=b power_watts=1 1",
        "gpu,gpu_uuid=G,host=a,mig_uuid=F power_watts=1 1",
        "gpu_prediction,gpu_uuid=G,host=a,kind=x p=1 1",
        'gpu_info,gpu_uuid=F,host=a model="H100" 1',
        'gpu_event,gpu_uuid=F,host=a,kind=xid code=79i,message="x" 1',
    )
    assert [(one.number, one.problem) for one in found.rejected] == [
        (2, "host:a may not write for host 'b'"),
        (3, "host:a may not write for a GPU that host 'b' reports"),
        (4, "host:a may write readings and events alone"),
        (5, "host:a may not write for a GPU that host 'b' reports"),
        (6, "host:a may not write for a GPU that host 'b' reports"),
    ]
    assert len(found.batch.readings) == 1


def test_a_gpu_of_another_node_in_a_packed_line_costs_itself_alone() -> None:
    found = judged(
        f'gpu_packed,host=a gpus="G,F,G|F",names="power_watts",values="{THREE}" 1',
        'gpu_packed,host=a gpus="H,F",names="power_watts",reasons="1" 1',
        f'gpu_packed,host=b gpus="G,H,I",names="power_watts",values="{THREE}" 1',
    )
    assert [one.gpu.uuid for one in found.batch.readings] == ["G", "H"]
    assert [(one.number, one.problem) for one in found.rejected] == [
        (1, "host:a may not write for a GPU that host 'b' reports"),
        (2, "host:a may not write for a GPU that host 'b' reports"),
        (3, "host:a may not write for host 'b'"),
    ]


def test_owners_of_a_gpu_are_asked_for_once_for_all_of_its_lines() -> None:
    asked: list[str] = []
    lines = [f"gpu,gpu_uuid=G,host=a,link={number} nvlink_up=1 1" for number in range(18)]
    access = WriteAccess(WHO, lambda gpu, _host: asked.append(gpu) or "")  # type: ignore[func-returns-value]
    decode("\n".join(lines), now_ms=T0, admit=access)
    assert asked == ["G"]
