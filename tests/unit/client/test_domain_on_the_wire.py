"""Domain dataclasses as JSON of the API and as points of a store: nothing is lost, whatever is added to them."""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from typing import Any

import pytest
from pydantic import ValidationError

from tocsin.client.models import FindingOut, IncidentOut
from tocsin.client.wire import adapter, extended, to_json
from tocsin.domain.diagnosis import Diagnosis
from tocsin.domain.event import Event
from tocsin.domain.finding import Incident
from tocsin.domain.order import Order, OrderReport
from tocsin.domain.place import Place, PlaceKind
from tocsin.domain.prediction import Prediction
from tocsin.store.points import PREDICTION, PointCodec
from tocsin_testing.inventory import sample as whole

SHOWN = (Prediction, Event, Diagnosis, Order, OrderReport)


def sample(kind: type[Any]) -> Any:
    """A value of `kind` with all that it can have, but for what stays behind: a finding's `told`, and the Chinese of
    pieces of evidence, which clients of 0.1.0 would refuse and findings of the API have beside them."""
    made = whole(kind)
    if kind is Incident:
        return replace(made, root=_sent(made.root), members=tuple(map(_sent, made.members)))
    return _sent(made)


def _sent(made: Any) -> Any:
    left = {"told": False} if hasattr(made, "told") else {}
    if hasattr(made, "evidence"):
        left["evidence"] = tuple(replace(one, text_zh="") for one in made.evidence)
    return replace(made, **left)


@pytest.mark.parametrize("kind", SHOWN)
def test_what_is_written_is_read_back(kind: type[Any]) -> None:
    made = sample(kind)
    assert adapter(kind).validate_json(adapter(kind).dump_json(made)) == made


def test_instants_are_texts_and_durations_seconds() -> None:
    shown = to_json(replace(sample(Prediction), at_ms=1_500, eta_ms=None, horizon_ms=2_500, curve=((1_000, 0.5),)))
    assert (shown["at"], shown["eta"], shown["horizon_s"]) == ("1970-01-01T00:00:01.500Z", None, 2.5)
    assert shown["curve"] == [[1.0, 0.5]]
    assert not [name for name in shown if name.endswith("_ms")]


def test_a_client_passes_over_what_it_does_not_know_and_a_server_refuses_it() -> None:
    made = sample(Prediction)
    newer = to_json(made) | {"mood": "good"}
    newer["subject"]["colour"] = "green"
    text = json.dumps(newer)
    assert adapter(Prediction).validate_json(text, extra="ignore") == made
    with pytest.raises(ValidationError, match="mood"):
        adapter(Prediction).validate_json(text)


def test_what_the_api_adds_stands_beside_what_the_domain_has() -> None:
    incident = sample(Incident)
    ended = extended(FindingOut, incident.root, active=False)
    shown = to_json(extended(IncidentOut, incident, root=ended, members=(ended, ended)))
    assert (shown["id"], shown["subjects"], shown["active"]) == (incident.id, 1, True)
    assert (shown["root"]["active"], shown["members"][1]["rule"]) == (False, incident.root.rule)
    assert "told" not in shown["root"]
    assert adapter(FindingOut).validate_python(shown["root"]) == ended


def test_the_place_of_an_incident_travels_and_older_ones_have_none() -> None:
    placed = replace(sample(Incident), place=Place(PlaceKind.RACK, "r1"))
    root = extended(FindingOut, placed.root)
    shown = to_json(extended(IncidentOut, placed, root=root, members=(root,)))
    assert shown["place"] == {"kind": "rack", "name": "r1"}
    assert adapter(Incident).validate_json(json.dumps(to_json(placed))).place == placed.place
    older = to_json(placed)
    del older["place"]
    assert adapter(Incident).validate_json(json.dumps(older)).place is None


@dataclass(frozen=True, slots=True)
class Longer(Prediction):
    """A prediction of a later version."""

    runs: int = 0
    checked_ms: int | None = None
    spread: float | None = None
    checker: str = ""


def test_a_new_attribute_of_a_dataclass_travels_without_further_ado() -> None:
    before = sample(Prediction)
    later = extended(Longer, before, runs=3, checked_ms=1_000, spread=0.25, checker="holt")
    shown = to_json(later)
    assert (shown["runs"], shown["checked"], shown["spread"]) == (3, "1970-01-01T00:00:01.000Z", 0.25)
    assert adapter(Longer).validate_json(json.dumps(shown)) == later
    codec = PointCodec(Longer, PREDICTION, "at_ms", tags={"model": "model", "target": "target"})
    assert codec.read(codec.point(later)) == later


def test_a_point_of_an_older_version_lacks_what_is_new() -> None:
    before = sample(Prediction)
    older = PointCodec(Prediction, PREDICTION, "at_ms", tags={"model": "model", "target": "target"}).point(before)
    codec = PointCodec(Longer, PREDICTION, "at_ms", tags={"model": "model", "target": "target"})
    assert codec.read(older) == extended(Longer, before)


def test_a_dataclass_that_no_point_can_carry_is_refused_at_once() -> None:
    @dataclass(frozen=True)
    class Odd:
        at_ms: int
        parts: tuple[bytes, ...]

    with pytest.raises(TypeError, match="no field of a point can carry"):
        PointCodec(Odd, "odd", "at_ms")
