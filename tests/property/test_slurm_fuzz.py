"""No output of Slurm, whole, cut or wrong, makes a parser raise anything but ValueError."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.slurm import comments
from tocsin.actions.slurm.comments import CommentTag
from tocsin.actions.slurm.state import (
    BASES,
    expand,
    jobs_of_json,
    jobs_of_text,
    nodes_of_json,
    nodes_of_text,
    split_state,
)

DATA = Path(__file__).parent.parent / "data" / "slurm"
SEEN_NODES = json.loads((DATA / "sinfo_all_states.json").read_text())["nodes"]
SEEN_JOBS = json.loads((DATA / "squeue_mixed.json").read_text())["jobs"]
LINES = [(DATA / f).read_text() for f in ("scontrol_show_node_all_states.txt", "scontrol_show_job_running.txt")]

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=8,
)


def changed(records: list[dict[str, Any]]) -> st.SearchStrategy[dict[str, Any]]:
    """A recorded record of which some fields hold anything."""
    keys = sorted({key for record in records for key in record})
    other = st.dictionaries(st.sampled_from(keys), anything, max_size=4)
    return st.builds(lambda record, fields: {**record, **fields}, st.sampled_from(records), other)


@given(st.lists(changed(SEEN_NODES), max_size=3))
def test_nodes_of_any_shape(records: list[dict[str, Any]]) -> None:
    for node in nodes_of_json(json.dumps({"nodes": records})):
        assert node.name
        assert node.base in BASES
        assert not node.flags & BASES


@given(st.lists(changed(SEEN_JOBS), max_size=3))
def test_jobs_of_any_shape(records: list[dict[str, Any]]) -> None:
    for job in jobs_of_json(json.dumps({"jobs": records})):
        assert job.ref
        assert not (job.active and job.pending)
        assert set(job.gpus) <= set(job.nodes)


@given(st.text(max_size=200) | anything.map(json.dumps))
def test_what_is_no_such_output_is_a_value_error(text: str) -> None:
    for read in (nodes_of_json, jobs_of_json):
        try:
            read(text)
        except ValueError:
            continue


@given(st.sampled_from(LINES), st.data())
def test_text_cut_and_changed_anywhere(text: str, data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(text)))
    broken = text[:at] + data.draw(st.text(max_size=10)) + text[at + data.draw(st.integers(0, 30)) :]
    for node in nodes_of_text(broken):
        assert node.base in BASES
    for job in jobs_of_text(broken):
        assert job.number > 0


@given(st.lists(st.text(alphabet="DRAINIDLE+*~#%@^!$ \t", max_size=12), max_size=4))
def test_state_words_of_any_kind(words: list[str]) -> None:
    base, flags = split_state(words)
    assert base in BASES
    assert all(flag for flag in flags)


names = st.from_regex(r"[a-z]{1,4}-?", fullmatch=True)


@given(st.lists(st.tuples(names, st.integers(0, 900), st.integers(0, 20)), min_size=1, max_size=4))
def test_a_host_list_names_each_number_of_each_range(parts: list[tuple[str, int, int]]) -> None:
    text = ",".join(f"{name}[{low}-{low + more}]" for name, low, more in parts)
    width = [len(str(low)) for _, low, _ in parts]
    wanted = [
        f"{name}{str(n).zfill(w)}"
        for (name, low, more), w in zip(parts, width, strict=True)
        for n in range(low, low + more + 1)
    ]
    assert list(expand(text)) == wanted


@given(st.text(max_size=60), st.text(max_size=40))
def test_marks_survive_any_words_around_them(before: str, after: str) -> None:
    mark = CommentTag("drain", "0123456789abcdef", 1_795_231_366_000)
    assert comments.find(f"{before} {mark} {after}", "drain") == mark
    assert comments.find(comments.put(before, mark), "drain") == mark
    assert comments.find(comments.drop(comments.put(before, mark), "drain"), "drain") is None


@given(st.text(max_size=300))
def test_a_reason_is_plain_whatever_the_sentence(sentence: str) -> None:
    made = comments.reason(sentence, "0123456789abcdef")
    assert comments.is_own(made)
    assert made.isascii()
    assert not set(made) & set("'\"`$\\|&<>{}*?!#~\n=")
