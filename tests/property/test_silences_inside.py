"""A silence hides what lies wholly in it, and nothing else."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.model.silences import Cause, Silence, around, matchers_of
from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.finding import Subject, SubjectKind
from tocsin.domain.reading import Gpu
from tocsin.domain.silence import Matcher, MatcherKind, SilenceKind
from tocsin_testing.builders import T0

few = st.sampled_from(["a", "b"])
gpus = st.builds(
    Gpu,
    st.sampled_from([f"GPU-{n}" for n in range(6)]),
    few,
    pool=few,
    rack=st.sampled_from(["", "a", "b"]),
    labels=st.dictionaries(few, few, max_size=2),
)
fleets = st.lists(gpus, min_size=1, max_size=6, unique_by=lambda gpu: gpu.uuid)
matchers = st.one_of(
    st.builds(Matcher, st.sampled_from([MatcherKind.HOST, MatcherKind.POOL, MatcherKind.RACK]), few),
    st.builds(lambda key, value: Matcher(MatcherKind.LABEL, f"{key}={value}"), few, few),
)
levels = st.sampled_from(AlertLevel)


def covers(matcher: Matcher, gpu: Gpu) -> bool:
    """The meaning of a matcher, spelt out."""
    if matcher.kind is MatcherKind.LABEL:
        key, _, value = matcher.name.partition("=")
        return gpu.labels.get(key) == value
    return getattr(gpu, matcher.kind.value) == matcher.name


@settings(max_examples=300)
@given(fleets, st.data(), matchers, levels, levels)
def test_hidden_if_and_only_if_wholly_inside(
    fleet: list[Gpu], data: st.DataObject, matcher: Matcher, level: AlertLevel, known: AlertLevel
) -> None:
    touched = data.draw(st.lists(st.sampled_from(fleet), min_size=1, unique_by=lambda gpu: gpu.uuid))
    hosts = data.draw(st.lists(st.sampled_from(sorted({gpu.host for gpu in fleet})), max_size=1))
    subjects = [Subject(SubjectKind.GPU, gpu.uuid, gpu.host, gpu.pool) for gpu in touched]
    subjects += [Subject(SubjectKind.HOST, host, host) for host in hosts]
    touched += [gpu for gpu in fleet if gpu.host in hosts]
    found = around(subjects, lambda one: [gpu for gpu in fleet if one.name in (gpu.uuid, gpu.host)])
    wholly = all(covers(matcher, gpu) for gpu in touched)
    cause = Cause("c", level, tuple(subjects))
    planned = Silence("s", SilenceKind.MAINTENANCE, matcher, T0, T0 + 1)
    snoozed = Silence("s", SilenceKind.SNOOZE, matcher, T0, T0 + 1, levels={"c": known})
    assert planned.contains(cause, found) is wholly, "maintenance holds however bad it gets"
    assert snoozed.contains(cause, found) is (wholly and level.rank <= known.rank)


@given(gpus, matchers)
def test_the_matchers_of_a_gpu_are_those_that_cover_it(gpu: Gpu, matcher: Matcher) -> None:
    assert (matcher in matchers_of(gpu)) is covers(matcher, gpu)


def test_what_is_nowhere_known_or_everywhere_lies_in_nothing() -> None:
    fleet, pool = Subject(SubjectKind.FLEET, "fleet"), Subject(SubjectKind.POOL, "a", pool="a")
    unknown = Subject(SubjectKind.GPU, "GPU-x", "a")
    nothing = frozenset[Matcher]()
    assert around([fleet], lambda _: []) == around([fleet, pool], lambda _: []) == around([], lambda _: []) == nothing
    assert around([pool], lambda _: []) == {Matcher(MatcherKind.POOL, "a")}
    assert around([unknown], lambda _: []) == {Matcher(MatcherKind.HOST, "a")}
