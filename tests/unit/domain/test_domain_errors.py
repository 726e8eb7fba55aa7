"""Errors cross processes: what a model finds wrong is said by the service, in the same words."""

from __future__ import annotations

import pickle
from pathlib import Path

import pytest

from tocsin.domain.errors import Conflict, InputError, TocsinError, Unavailable
from tocsin.forecaster.hazard.scorer import NotEnoughData
from tocsin.store.port import StoreRejected, StoreUnavailable


@pytest.mark.parametrize("kind", [Conflict, Unavailable, NotEnoughData, StoreUnavailable, StoreRejected])
def test_an_error_comes_back_whole(kind: type[TocsinError]) -> None:
    back = pickle.loads(pickle.dumps(kind("the disk is full")))
    assert (type(back), str(back)) == (kind, "the disk is full")


def test_bad_input_comes_back_whole() -> None:
    error = InputError("model", Path("/models/v1"), "damaged", "train it anew")
    back = pickle.loads(pickle.dumps(error))
    assert (type(back), str(back), back.field, back.value) == (InputError, str(error), "model", Path("/models/v1"))
