"""Places of requests and bytes of bodies: who takes too much keeps nobody else out."""

from __future__ import annotations

from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tocsin.api.errors import ApiError
from tocsin.api.gate import BodyBudget, Share, Shares

kinds = st.sampled_from(list(Share))


@given(most=st.integers(1, 300), asked=st.lists(st.tuples(kinds, st.sampled_from("abcd")), max_size=400), last=kinds)
def test_a_kind_that_is_full_takes_no_place_of_another(most: int, asked: list[tuple[Share, str]], last: Share) -> None:
    shares = Shares(most)
    with ExitStack() as held:
        for share, caller in asked:
            if share is last:
                continue
            with suppress(ApiError):
                held.enter_context(shares.place(share, caller))
        with shares.place(last, "somebody"):
            pass


def test_one_caller_gets_a_quarter_of_a_kind() -> None:
    shares = Shares(256)
    with ExitStack() as held:
        for _ in range(32):
            held.enter_context(shares.place(Share.AGENTS, "greedy"))
        with pytest.raises(ApiError, match="too many requests are in work"):
            held.enter_context(shares.place(Share.AGENTS, "greedy"))
        with shares.place(Share.AGENTS, "modest"):
            pass
    with shares.place(Share.AGENTS, "greedy"):
        pass


def test_bytes_are_one_sum_with_a_quarter_for_one_caller() -> None:
    budget = BodyBudget(100)
    budget.take("greedy", 25)
    with pytest.raises(ApiError) as caught:
        budget.take("greedy", 1)
    assert (caught.value.status_code, caught.value.code) == (429, "too_many_bytes")
    for name in "abc":
        budget.take(name, 25)
    with pytest.raises(ApiError):
        budget.take("modest", 1)
    budget.give_back("greedy", 25)
    budget.take("modest", 1)
