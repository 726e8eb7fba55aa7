"""Who may write a line is found by the line before where it goes on about the same GPU, and comes to the same."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tocsin.api.ingest import own_lines
from tocsin.api.principal import simple
from tocsin.config.access import Role

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
FIELDS = (" power_watts=1 1", " power_watts=1", "", "  ", ' name="a b,host=b" 1', "\tpower_watts=1 1", " ,host=b")
line = st.builds(
    "".join,
    st.tuples(st.sampled_from(("", " ")), st.sampled_from(HEADS), st.sampled_from(TAGS), st.sampled_from(FIELDS)),
)


def against(gpu: str, host: str) -> str:
    return "b" if gpu == "F" else ""


@given(st.lists(line, min_size=1, max_size=6))
def test_a_line_is_judged_as_if_it_stood_alone(lines: list[str]) -> None:
    _, refused = own_lines("\n".join(lines), WHO, against)
    alone = [
        (number, found[1].first[0].problem)
        for number, one in enumerate(lines, start=1)
        if (found := own_lines(one, WHO, against))[1].first
    ]
    assert [(one.number, one.problem) for one in refused.first] == alone


def test_owners_of_a_gpu_are_asked_for_once_for_all_of_its_lines() -> None:
    asked: list[str] = []
    lines = [f"gpu,gpu_uuid=G,host=a,link={number} nvlink_up=1 1" for number in range(18)]
    own_lines("\n".join(lines), WHO, lambda gpu, _host: asked.append(gpu) or "")  # type: ignore[func-returns-value]
    assert asked == ["G"]
