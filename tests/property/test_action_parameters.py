"""Parameters of decisions and orders: what is written is read again, and what cannot be read is lost by nobody."""

from __future__ import annotations

import re
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, get_args, get_origin, get_type_hints

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.actions.model.decision_json import dump_decision, load_decision
from tocsin.client.wire import adapter, to_json
from tocsin.domain.decision import (
    PARAMETERS,
    CordonParameters,
    Decision,
    GpuPlace,
    MigrateParameters,
    Mode,
    Rank,
    RestoreParameters,
    ThrottleKind,
    ThrottleParameters,
    parameters_of,
)
from tocsin.domain.finding import ActionKind, Category, Severity, Subject, SubjectKind
from tocsin.domain.order import Order, OrderParameters, ResetOrderParameters, order_parameters_of
from tocsin.domain.parameters import Form, Parameters, decode, encode
from tocsin_testing.builders import T0

DOC = (Path(__file__).parents[2] / "docs" / "endpoints.md").read_text("utf-8")
NAMES = st.text("abcz0-./_ü", min_size=1, max_size=12)
TEXTS = st.text(max_size=20)
BY_HINT: dict[str, st.SearchStrategy[Any]] = {
    "kind of action": st.none() | st.sampled_from(ActionKind),
    "kind of throttle": st.none() | st.sampled_from(ThrottleKind),
    "text": TEXTS,
    "list of names": st.lists(NAMES, max_size=3).map(tuple),
    "true or false": st.booleans(),
    "whole number": st.none() | st.integers(0, 10**9 - 1),
    "instant in milliseconds": st.none() | st.integers(0, 2**63 - 1),
    "positive number": st.none() | st.floats(1e-3, 1e8).map(lambda value: float(f"{value:.6f}")),
    "number of GPU-hours": st.none() | st.floats(-1e6, 1e6).map(lambda value: round(value, 2)),
    "list of ranks": st.lists(st.builds(Rank, TEXTS, TEXTS), max_size=3).map(tuple),
    "comparison of losses": st.dictionaries(st.sampled_from(ActionKind), st.floats(-1e9, 1e9)),
    "list of GPUs": st.lists(st.builds(GpuPlace, NAMES, st.none() | st.integers(0, 7)), max_size=3).map(tuple),
    "list of hosts": st.lists(st.lists(NAMES, max_size=2).map(tuple), max_size=3).map(tuple),
}
ORDERS = [ActionKind.THROTTLE, ActionKind.RESTORE, ActionKind.RESET_GPU, ActionKind.CHECKPOINT]


def values(hint: Any) -> st.SearchStrategy[Any]:
    form = next(extra for extra in get_args(hint)[1:] if isinstance(extra, Form))
    return BY_HINT[form.what]


def made(kind: type[Any]) -> st.SearchStrategy[Any]:
    """A record of any kind with any values."""
    hints = get_type_hints(kind, include_extras=True)
    built: dict[str, st.SearchStrategy[Any]] = {}
    for one in fields(kind):
        if one.name != "carried":
            hint = hints[one.name]
            built[one.name] = values(hint) if get_origin(hint) is not None else made(hint)
    return st.builds(kind, **built)


def test_the_documentation_has_every_key_with_its_actions() -> None:
    rows = re.findall(r"^\| `?(\w+)`? \| ([^|]+) \|", DOC.split("## Parameters of a decision")[1], re.MULTILINE)
    shown = {action: set(re.findall(r"`(\w+)` \(", keys)) for action, keys in rows if action != "action"}
    common = shown.pop("all")
    assert {action: shown.get(action, set()) | common for action in ActionKind} == {
        action: encode_keys(kind) for action, kind in PARAMETERS.items()
    }
    assert [action for action, keys in shown.items() if keys & common] == []


def decision(parameters: Any) -> Decision:
    subject = Subject(SubjectKind.GPU, "GPU-0", "node-0", "train")
    kinds = (Mode.ACT, Severity.WARNING, Category.THERMAL)
    return Decision("r", subject, parameters.action, *kinds, T0, T0 + 1, "k", "s", parameters=parameters)


def test_every_kind_of_action_has_one_record_of_its_own() -> None:
    assert set(PARAMETERS) == set(ActionKind)
    assert len(set(PARAMETERS.values())) == len(ActionKind)
    assert all(kind.action is action for action, kind in PARAMETERS.items())


@pytest.mark.parametrize("action", ActionKind)
@settings(max_examples=60)
@given(data=st.data())
def test_what_is_written_is_read_again(action: ActionKind, data: st.DataObject) -> None:
    parameters = data.draw(made(PARAMETERS[action]))
    texts = encode(parameters)
    assert parameters_of(action, texts) == parameters
    assert encode(parameters_of(action, texts)) == texts
    assert parameters.problem == ""
    one = decision(parameters)
    assert load_decision(dump_decision(one)) == one


@pytest.mark.parametrize("action", ORDERS)
@settings(max_examples=60)
@given(data=st.data())
def test_orders_likewise(action: ActionKind, data: st.DataObject) -> None:
    parameters = data.draw(made(type(order_parameters_of(action, {}))))
    order = Order("k", "d", "node-0", "GPU-0", action, T0, T0 + 1, parameters=parameters)
    assert adapter(Order).validate_python(to_json(order)) == order


@pytest.mark.parametrize("action", ActionKind)
@settings(max_examples=60)
@given(data=st.data())
def test_any_mapping_comes_out_as_it_was(action: ActionKind, data: st.DataObject) -> None:
    known = sorted(encode_keys(PARAMETERS[action]))
    ugly = st.sampled_from(["", "many", "-1", "nan", "1e999", "[[]]", "[" * 2000, "true", "9" * 5000, "1_0", " 7 "])
    texts = data.draw(st.dictionaries(st.sampled_from(known) | NAMES, TEXTS | ugly))
    parameters = parameters_of(action, texts)
    assert encode(parameters) == texts
    assert encode(replace(parameters)) == texts
    for order_action in ORDERS:
        assert encode(order_parameters_of(order_action, texts)) == texts


def encode_keys(kind: type[Parameters]) -> set[str]:
    """Keys of a kind, also those of what it has in common with the others."""
    hints = get_type_hints(kind, include_extras=True)
    found: set[str] = set()
    for one in fields(kind):
        named = [extra for extra in get_args(hints[one.name]) if isinstance(extra, str)]
        found |= {named[0] if named else one.name} if one.name != "context" else encode_keys(hints[one.name])
    return found - {"carried"}


def test_what_cannot_be_read_is_said_once_and_in_one_place() -> None:
    parameters = parameters_of(ActionKind.THROTTLE, {"power_limit_watts": "many", "new": "x", "was_watts": ""})
    assert parameters.problem == "power_limit_watts = 'many' is no positive number"
    assert isinstance(parameters, ThrottleParameters)
    assert parameters.power_limit_watts is None
    mended = replace(parameters, power_limit_watts=450.0)
    assert encode(mended) == {"power_limit_watts": "450", "new": "x", "was_watts": ""}
    long = parameters_of(ActionKind.SCALE_IN, {"nodes": "9" * 5000}).problem
    assert long.startswith("nodes = '999")
    assert len(long) < 150


def test_a_value_that_was_replaced_is_written_anew() -> None:
    parameters = decode(MigrateParameters, {"gain_gpu_hours": "12.5", "from": "GPU-a@4 GPU-b"})
    assert parameters.source == (GpuPlace("GPU-a", 4), GpuPlace("GPU-b"))
    assert encode(parameters)["gain_gpu_hours"] == "12.5"
    assert encode(replace(parameters, gain_gpu_hours=13.25))["gain_gpu_hours"] == "13.25"
    assert encode(replace(parameters, gain_gpu_hours=None)) == {"from": "GPU-a@4 GPU-b"}


def test_a_decision_has_the_parameters_of_its_action() -> None:
    throttle = decision(ThrottleParameters(power_limit_watts=450, was_watts=700, cause="c"))
    restore = replace(throttle, action=ActionKind.RESTORE)
    assert restore.parameters == RestoreParameters(power_limit_watts=450, was_watts=700, cause="c")
    cordon = replace(throttle, action=ActionKind.CORDON)
    assert isinstance(cordon.parameters, CordonParameters)
    assert encode(cordon.parameters) == encode(throttle.parameters)
    assert replace(cordon, action=ActionKind.THROTTLE) == throttle
    plain = Order(
        "k", "d", "node-0", "GPU-0", ActionKind.RESET_GPU, T0, T0 + 1, parameters=OrderParameters(dry_run=True)
    )
    assert plain.parameters == ResetOrderParameters(dry_run=True)
