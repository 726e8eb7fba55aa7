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


def _without_ended(raw: dict[str, Any]) -> dict[str, Any]:
    """Without the ids of what has ended, which stay."""
    ended = {patches.CORDONS_ENDED, patches.UNCORDONS_ENDED, patches.KEYS_RUN}
    notes = {key: note for key, note in raw["metadata"]["annotations"].items() if key not in ended}
    return _plain(raw | {"metadata": raw["metadata"] | {"annotations": notes}})


@given(NODES, MARKS)
def test_an_uncordon_gives_back_exactly_the_node_before_the_cordon(
    raw: dict[str, Any], mark: patches.CordonNote
) -> None:
    taken = _apply(raw, patches.cordon(KubeNode(raw), mark))
    assert not KubeNode(taken).schedulable
    given_back = _apply(taken, patches.uncordon(KubeNode(taken), "undo", mark.taint))
    assert _without_ended(given_back) == _plain(raw)


@given(NODES, st.lists(MARKS, min_size=1, max_size=2 * patches.MOST_ENDED, unique_by=lambda mark: mark.key))
def test_a_cordon_that_has_ended_is_not_made_again_for_its_decision(
    raw: dict[str, Any], marks: list[patches.CordonNote]
) -> None:
    """Whoever asks: a brain whose journal was restored has forgotten it."""
    node = raw | {"spec": {}}
    for mark in marks:
        node = _apply(node, patches.cordon(KubeNode(node), mark))
        node = _apply(node, patches.uncordon(KubeNode(node), f"undo-{mark.key}", mark.taint))
    assert KubeNode(node).schedulable
    for mark in marks[-patches.MOST_ENDED :]:
        assert patches.cordon_state(KubeNode(node), mark.key) is patches.CordonState.UNDONE
        assert patches.cordon(KubeNode(node), mark) is None
    later = patches.CordonNote("another-decision", "", marks[0].at)
    assert patches.cordon_state(KubeNode(node), later.key) is patches.CordonState.FREE
    # One that a person ends, and whose place another takes, is known as well.
    left = _apply(node, patches.cordon(KubeNode(node), later))
    left = left | {"spec": {}}
    newest = patches.CordonNote("newest-decision", "", marks[0].at)
    left = _apply(left, patches.cordon(KubeNode(left), newest)) | {"spec": {}}
    assert patches.cordon(KubeNode(left), later) is None


@given(NODES, st.lists(MARKS, min_size=1, max_size=2 * patches.MOST_ENDED, unique_by=lambda mark: mark.key))
def test_an_uncordon_that_has_ended_undoes_no_later_cordon(
    raw: dict[str, Any], marks: list[patches.CordonNote]
) -> None:
    """Whoever asks: a brain whose journal was restored has forgotten it."""
    node = raw | {"spec": {}}
    for mark in marks:
        node = _apply(node, patches.cordon(KubeNode(node), mark))
        node = _apply(node, patches.uncordon(KubeNode(node), f"undo-{mark.key}", mark.taint))
    later = patches.CordonNote("later-decision", "", marks[0].at)
    cordoned = _apply(node, patches.cordon(KubeNode(node), later))
    for mark in marks[-patches.MOST_ENDED :]:
        assert patches.has_uncordoned(KubeNode(cordoned), f"undo-{mark.key}")
        assert patches.uncordon(KubeNode(cordoned), f"undo-{mark.key}", mark.taint) is None
    assert patches.uncordon(KubeNode(cordoned), "undo-later") is not None


@given(NODES, MARKS)
def test_an_uncordon_that_found_nothing_undoes_no_later_cordon_either(
    raw: dict[str, Any], mark: patches.CordonNote
) -> None:
    clean = raw | {"spec": {}}
    assert not patches.is_touched(KubeNode(clean), mark.taint)
    noted = _apply(clean, patches.uncordon(KubeNode(clean), "undo", mark.taint))
    assert _without_ended(noted) == _plain(clean)
    cordoned = _apply(noted, patches.cordon(KubeNode(noted), mark))
    assert patches.uncordon(KubeNode(cordoned), "undo", mark.taint) is None


@given(NODES, MARKS, st.booleans())
def test_steering_work_away_and_ending_it_leaves_nothing(
    raw: dict[str, Any], mark: patches.CordonNote, taint: bool
) -> None:
    marked = _apply(raw, patches.avoid(KubeNode(raw), "2026-11-22T00:00:00.000Z", "key", by_taint=taint))
    assert patches.avoid(KubeNode(marked), "2026-11-23T00:00:00.000Z", "key", by_taint=taint) is None
    assert patches.is_avoided(KubeNode(marked))
    ended = _apply(marked, patches.no_longer_avoid(KubeNode(marked)))
    assert _without_ended(ended) == _plain(raw)
    assert patches.avoid(KubeNode(ended), "2026-11-23T00:00:00.000Z", "key", by_taint=taint) is None, "it ran before"
    both = _apply(marked, patches.cordon(KubeNode(marked), mark))
    assert _without_ended(_apply(both, patches.uncordon(KubeNode(both), "undo", mark.taint))) == _plain(raw)


@given(NODES, MARKS)
def test_an_uncordon_of_what_somebody_else_cordoned_is_still_to_be_done(
    raw: dict[str, Any], mark: patches.CordonNote
) -> None:
    out = raw | {"spec": raw["spec"] | {"unschedulable": True}}
    steered = _apply(out, patches.avoid(KubeNode(out), "2026-11-22T00:00:00.000Z", "key", by_taint=False))
    given_back = _apply(steered, patches.uncordon(KubeNode(steered), "undo", mark.taint))
    assert not patches.is_avoided(KubeNode(given_back))
    assert not KubeNode(given_back).schedulable
    assert not patches.has_uncordoned(KubeNode(given_back), "undo")


@given(NODES, MARKS)
def test_a_second_cordon_of_one_key_changes_nothing(raw: dict[str, Any], mark: patches.CordonNote) -> None:
    taken = _apply(raw, patches.cordon(KubeNode(raw), mark))
    assert patches.cordon(KubeNode(taken), mark) is None


@given(NODES, MARKS)
def test_nothing_of_others_is_cordoned_or_given_back(raw: dict[str, Any], mark: patches.CordonNote) -> None:
    if not KubeNode(raw).schedulable:
        assert patches.cordon(KubeNode(raw), mark) is None
        assert patches.uncordon(KubeNode(raw), "undo", mark.taint) is None
    else:
        noted = _apply(raw, patches.uncordon(KubeNode(raw), "undo", mark.taint))
        assert _without_ended(noted) == _plain(raw)


@given(MARKS)
def test_reasons_fit_into_an_annotation(mark: patches.CordonNote) -> None:
    patch = patches.cordon(KubeNode({"metadata": {}, "spec": {}}), mark)
    assert patch is not None
    assert len(patch["metadata"]["annotations"][patches.CORDON_REASON]) <= patches.LONGEST_REASON
