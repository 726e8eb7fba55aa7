"""A proven repair cuts what was found before it: events and counted errors, live and after a restart."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.errors import InputError
from tocsin.domain.event import Event, EventKind
from tocsin.domain.finding import SubjectKind
from tocsin.domain.reading import Reading
from tocsin.rules.engine import Inputs, RuleEngine
from tocsin.rules.load import load_rules
from tocsin_testing.builders import T0, gpu, reading

ONE = gpu(0)
KEY = f"{SubjectKind.GPU}:{ONE.uuid}"
TOTAL = "ecc_uncorrected_aggregate_total"


def at(minute: float, errors: float) -> Reading:
    return replace(reading(ONE, T0, **{TOTAL: errors}), at_ms=T0 + round(minute * MINUTE))


def xid(minute: float) -> Event:
    return Event(EventKind.XID, ONE.uuid, ONE.host, T0 + round(minute * MINUTE), 48, "Double Bit ECC Error")


def found(engine: RuleEngine, one: Reading, *events: Event, repairs: dict[str, int] | None = None) -> set[str]:
    step = engine.step(Inputs(one.at_ms, (one,), events, repairs=repairs or {}))
    return {finding.rule for finding in step.active} & {"ecc_uncorrectable", "xid_memory"}


BOTH = {"ecc_uncorrectable", "xid_memory"}


@pytest.mark.parametrize("key", [KEY, f"{SubjectKind.HOST}:{ONE.host}"])
def test_what_was_before_a_repair_is_past_and_what_comes_after_it_counts(key: str) -> None:
    engine = RuleEngine(load_rules(None))
    assert found(engine, at(0, 3)) == set()
    assert found(engine, at(1, 5), xid(1)) == BOTH
    assert found(engine, at(2, 5)) == BOTH
    repairs = {key: T0 + 2 * MINUTE}
    assert found(engine, at(3, 5), repairs=repairs) == set()
    assert found(engine, at(4, 5), repairs=repairs) == set(), "the same repair is taken once"
    assert found(engine, at(5, 6), xid(5), repairs=repairs) == BOTH
    assert found(engine, at(6, 6), xid(1.5), repairs=repairs) == BOTH, "an old event that comes late ends nothing new"


def test_a_repair_of_another_gpu_changes_nothing() -> None:
    engine = RuleEngine(load_rules(None))
    found(engine, at(0, 3))
    found(engine, at(1, 5), xid(1))
    repairs = {f"{SubjectKind.GPU}:{gpu(1).uuid}": T0 + MINUTE, f"{SubjectKind.HOST}:elsewhere": T0 + MINUTE}
    assert found(engine, at(2, 5), repairs=repairs) == BOTH


def test_after_a_restart_the_past_is_cut_where_it_was() -> None:
    engine, repairs = RuleEngine(load_rules(None)), {KEY: T0 + 2 * HOUR}
    for minute, errors in ((0, 3), (60, 5), (119, 5)):
        engine.step(Inputs(at(minute, errors).at_ms, (at(minute, errors),)))
    engine.step(Inputs(at(121, 5).at_ms, (at(121, 5),), repairs=repairs))
    # Events of the day are told anew, behind the readings.
    assert found(engine, at(122, 5), xid(60), repairs=repairs) == set()
    assert found(engine, at(123, 6), repairs=repairs) == {"ecc_uncorrectable"}


def test_a_repair_that_is_known_late_leaves_what_was_counted_since() -> None:
    engine, repairs = RuleEngine(load_rules(None)), {KEY: T0 + 90 * MINUTE}
    for minute, errors in ((0, 3), (60, 5), (125, 5), (245, 5), (365, 7)):
        engine.step(Inputs(at(minute, errors).at_ms, (at(minute, errors),)))
    assert found(engine, at(370, 7), repairs=repairs) == {"ecc_uncorrectable"}


def test_only_what_counts_is_ended_by_a_repair(tmp_path: Path) -> None:
    file = tmp_path / "rules.toml"
    file.write_text(
        '[[rules]]\nname = "a"\nsummary = "s."\nseverity = "info"\ncategory = "thermal"\naction = "notify"\n'
        'alert = "{where}."\nall = [{ kind = "rate", metric = "gpu_temperature_celsius", over = "5m", above = 1, '
        "ended_by_repair = true }]\n"
    )
    with pytest.raises(InputError, match="is no counter"):
        load_rules(file)
