"""The two signatures of what comes back: the right one is taken, whatever differs in the least is not."""

from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.actions.notifications.delivery import sign
from tocsin.actions.notifications.slack_buttons import Button, Deed
from tocsin.api.errors import ApiError
from tocsin.api.signatures import (
    FRESH_MS,
    MOST_REMEMBERED,
    Replays,
    Signature,
    own_mac,
    own_signature,
    signer,
    slack_mac,
    slack_signature,
)
from tocsin.domain.clock import SECOND, ManualClock
from tocsin_testing.builders import T0
from tocsin_testing.signed import press_headers

# HMAC fills a short key up with zero bytes: with one at its end it is the same key.
keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
bodies = st.binary(max_size=200)
FORMS = ("own", "slack")


def read(form: str, key: str, body: bytes, at_ms: int) -> Signature:
    """What a request that is signed so says in its headers."""
    if form == "own":
        return own_signature(sign(key, body, at_ms))
    headers = press_headers(body, at_ms, key)
    return slack_signature(headers["X-Slack-Request-Timestamp"], headers["X-Slack-Signature"])


def made(form: str, key: str, body: bytes, signature: Signature) -> str:
    return (own_mac if form == "own" else slack_mac)(key, body, signature)


@pytest.mark.parametrize("form", FORMS)
@given(known=st.lists(keys, min_size=1, max_size=5, unique=True), body=bodies, number=st.integers(0, 4), off=st.data())
def test_a_fresh_one_is_known_by_its_key(
    form: str, known: list[str], body: bytes, number: int, off: st.DataObject
) -> None:
    at_ms = T0 + off.draw(st.integers(-FRESH_MS + SECOND, FRESH_MS))
    which = number % len(known)
    signature = read(form, known[which], body, at_ms)
    assert signer(signature, [made(form, key, body, signature) for key in known], T0) == which


@pytest.mark.parametrize("form", FORMS)
@given(key=keys, body=bodies, at=st.integers(0, 40), change=st.data())
def test_nothing_that_was_changed_is_taken(form: str, key: str, body: bytes, at: int, change: st.DataObject) -> None:
    signature = read(form, key, body, T0 + at * SECOND)
    what = change.draw(st.sampled_from(["body", "key", "time", "mac"]))
    if what == "body":
        body = change.draw(bodies.filter(lambda other: other != body))
    elif what == "key":
        key = change.draw(keys.filter(lambda other: other != key))
    elif what == "time":
        signature = Signature(str(T0 // SECOND + change.draw(st.integers(41, 200))), signature.mac)
    else:
        place = change.draw(st.integers(0, 63))
        digit = change.draw(st.sampled_from("0123456789abcdef").filter(lambda one: one != signature.mac[place]))
        signature = Signature(signature.seconds, signature.mac[:place] + digit + signature.mac[place + 1 :])
    with pytest.raises(ApiError) as caught:
        signer(signature, [made(form, key, body, signature)], T0)
    assert (caught.value.status_code, caught.value.code) == (401, "signature_wrong")


@pytest.mark.parametrize("form", FORMS)
@given(off=st.integers(FRESH_MS + SECOND, 10**13), early=st.booleans())
def test_none_is_taken_out_of_its_time(form: str, off: int, early: bool) -> None:
    at_ms = max(0, T0 - off) if early else min(T0 + off, 999_999_999_999 * SECOND)
    signature = read(form, "key", b"body", at_ms)
    with pytest.raises(ApiError) as caught:
        signer(signature, [made(form, "key", b"body", signature)], T0)
    assert caught.value.code == "signature_old"


@given(header=st.text(max_size=300) | st.from_regex(r"t=[0-9+ x]{0,14},v1=[0-9a-fA]{62,66}", fullmatch=True))
def test_any_header_is_read_or_refused(header: str) -> None:
    good = re.fullmatch(r"t=([0-9]{1,12}),v1=([0-9a-f]{64})", header)
    if good is None:
        with pytest.raises(ApiError) as caught:
            own_signature(header)
        assert (caught.value.status_code, caught.value.code) == (401, "signature_required")
    else:
        assert own_signature(header) == Signature(*good.groups())


@given(timestamp=st.text(max_size=20), header=st.text(max_size=100))
def test_any_header_of_slack_is_read_or_refused(timestamp: str, header: str) -> None:
    with pytest.raises(ApiError) as caught:
        slack_signature(timestamp, header)
    assert (caught.value.status_code, caught.value.code) == (401, "signature_required")


@given(steps=st.lists(st.tuples(st.sampled_from("ab"), st.integers(0, 5), st.integers(0, 400), st.booleans())))
def test_one_is_taken_once_while_it_can_be_fresh(steps: list[tuple[str, int, int, bool]]) -> None:
    clock = ManualClock(T0)
    replays, taken = Replays(clock), dict[tuple[str, int], float]()
    for sender, number, seconds, fails in steps:
        clock.advance(seconds * SECOND)
        try:
            with replays.once(sender, str(number)) as new:
                before = taken.get((sender, number))
                assert new or before is not None
                assert not new or before is None or clock.monotonic() - before > 2 * FRESH_MS / SECOND
                if fails:
                    raise KeyError
        except KeyError:
            continue
        if new:
            taken[sender, number] = clock.monotonic()


def test_a_sender_that_sends_too_much_is_told_so_and_costs_no_other() -> None:
    replays = Replays(ManualClock(T0))
    for number in range(MOST_REMEMBERED):
        with replays.once("loud", str(number)) as new:
            assert new
    with pytest.raises(ApiError) as caught, replays.once("loud", "one more"):
        pass
    assert (caught.value.status_code, caught.value.code) == (429, "rate_limited")
    with replays.once("quiet", "one more") as new:
        assert new


def test_what_is_in_work_is_not_done_twice_at_once() -> None:
    replays = Replays(ManualClock(T0))
    with replays.once("a", "1") as new:
        assert new
        with pytest.raises(ApiError) as caught, replays.once("a", "1"):
            pass
        assert (caught.value.status_code, caught.value.code) == (503, "busy")
    with replays.once("a", "1") as new:
        assert not new


buttons = st.builds(Button, st.sampled_from(Deed), st.text(min_size=1, max_size=64))


@given(button=buttons, key=keys)
def test_a_button_is_known_again(button: Button, key: str) -> None:
    assert Button.read(button.value(key), key) == button


@given(button=buttons, other=buttons, key=keys, wrong=keys, text=st.text(max_size=100))
def test_a_button_that_is_not_ours_is_none(button: Button, other: Button, key: str, wrong: str, text: str) -> None:
    seal = button.value(key).rpartition(":")[2]
    if other != button:
        assert Button.read(f"{other.deed}:{other.target}:{seal}", key) is None
    if wrong != key:
        assert Button.read(button.value(key), wrong) is None
    assert Button.read(text, key) is None
