"""Whatever is put, looked at, settled and reopened: the spool behaves as a list with a bound."""

from __future__ import annotations

import tempfile
import zlib
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.collector.spool import Spool
from tocsin.domain.clock import ManualClock

TEXTS = st.text(max_size=200)
STEPS = st.lists(
    st.one_of(
        st.tuples(st.just("put"), TEXTS),
        st.tuples(st.just("settle"), st.integers(0, 4)),
        st.tuples(st.just("reopen"), st.none()),
    ),
    max_size=40,
)


@settings(max_examples=40)
@given(steps=STEPS, bound=st.integers(20, 2_000))
def test_the_spool_is_a_bounded_list(steps: list[tuple[str, object]], bound: int) -> None:
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "spool.db")
        spool = Spool(path, bound, ManualClock(0))
        model: list[str] = []
        for step, argument in steps:
            if step == "put":
                assert isinstance(argument, str)
                model.append(argument)
                excess = 0
                while sum(map(packed, model)) > bound:
                    model.pop(0)
                    excess += 1
                assert spool.put(argument, 1).batches == excess
            elif step == "settle":
                assert isinstance(argument, int)
                spool.settle(spool.peek(1 << 30)[:argument])
                del model[:argument]
            else:
                spool.close()
                spool = Spool(path, bound, ManualClock(0))
            assert [batch.text for batch in spool.peek(1 << 30)] == model
            assert (spool.batches, spool.size) == (len(model), sum(map(packed, model)))
        spool.close()


def packed(text: str) -> int:
    return len(zlib.compress(text.encode(), 1))
