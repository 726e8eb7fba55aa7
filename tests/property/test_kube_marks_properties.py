"""What Tocsin writes on a node never touches what others wrote, whatever is there."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.kubernetes import patches
from tocsin.actions.kubernetes.api import KubeNode
from tocsin_testing.kube_state import merge

WORDS = st.text("abcdefgh-", min_size=1, max_size=6)
EFFECTS = st.sampled_from(["NoSchedule", "PreferNoSchedule", "NoExecute"])
TAINTS = st.lists(st.builds(lambda key, effect: {"key": f"them/{key}", "effect": effect}, WORDS, EFFECTS), max_size=3)
NODES = st.builds(
    lambda labels, notes, taints, out: {
        "metadata": {"name": "n", "resourceVersion": "1", "labels": labels, "annotations": notes},
        "spec": ({"unschedulable": True} if out else {}) | ({"taints": taints} if taints else {}),
    },
    st.dictionaries(WORDS, WORDS, max_size=3),
    st.dictionaries(WORDS, WORDS, max_size=3),
    TAINTS,
    st.booleans(),
)
MARKS = st.builds(
    patches.CordonNote,
    WORDS,
    st.text(max_size=2000),
    st.just("2026-11-21T00:00:00.000Z"),
    st.sampled_from(["", "tocsin.io/fault"]),
)


def _apply(raw: dict[str, Any], patch: dict[str, Any] | None) -> dict[str, Any]:
    return raw if patch is None else dict(merge(raw, patch))


def _plain(raw: dict[str, Any]) -> dict[str, Any]:
    """Without keys that say nothing: an empty list of taints is none."""
    spec = {key: value for key, value in raw["spec"].items() if value not in ([], None)}
    return raw | {"spec": spec}


@given(NODES, MARKS)
def test_an_uncordon_gives_back_exactly_the_node_before_the_cordon(
    raw: dict[str, Any], mark: patches.CordonNote
) -> None:
    taken = _apply(raw, patches.cordon(KubeNode(raw), mark))
    assert not KubeNode(taken).schedulable
    given_back = _apply(taken, patches.uncordon(KubeNode(taken), mark.taint))
    assert _plain(given_back) == _plain(raw)


@given(NODES, MARKS, st.booleans())
def test_steering_work_away_and_ending_it_leaves_nothing(
    raw: dict[str, Any], mark: patches.CordonNote, taint: bool
) -> None:
    marked = _apply(raw, patches.avoid(KubeNode(raw), "2026-11-22T00:00:00.000Z", "key", by_taint=taint))
    assert patches.avoid(KubeNode(marked), "2026-11-23T00:00:00.000Z", "key", by_taint=taint) is None
    assert patches.is_avoided(KubeNode(marked))
    assert _plain(_apply(marked, patches.no_longer_avoid(KubeNode(marked)))) == _plain(raw)
    both = _apply(marked, patches.cordon(KubeNode(marked), mark))
    assert _plain(_apply(both, patches.uncordon(KubeNode(both), mark.taint))) == _plain(raw)


@given(NODES, MARKS)
def test_a_second_cordon_of_one_key_changes_nothing(raw: dict[str, Any], mark: patches.CordonNote) -> None:
    taken = _apply(raw, patches.cordon(KubeNode(raw), mark))
    assert patches.cordon(KubeNode(taken), mark) is None


@given(NODES, MARKS)
def test_nothing_of_others_is_cordoned_or_given_back(raw: dict[str, Any], mark: patches.CordonNote) -> None:
    if not KubeNode(raw).schedulable:
        assert patches.cordon(KubeNode(raw), mark) is None
    assert patches.uncordon(KubeNode(raw), mark.taint) is None


@given(MARKS)
def test_reasons_fit_into_an_annotation(mark: patches.CordonNote) -> None:
    patch = patches.cordon(KubeNode({"metadata": {}, "spec": {}}), mark)
    assert patch is not None
    assert len(patch["metadata"]["annotations"][patches.CORDON_REASON]) <= patches.LONGEST_REASON
