"""The LSTM trained on CUDA says the same as the one trained on the processor, within tolerance."""

from __future__ import annotations

import time
from collections.abc import Callable

import numpy as np
import pytest
import torch
from sklearn.metrics import roc_auc_score

from tocsin.domain.clock import HOUR
from tocsin.forecaster.deep.scorer_lstm import LstmScorer, build
from tocsin_testing import needs
from tocsin_testing.failing_devices import failing_devices

pytestmark = pytest.mark.gpu

TOLERANCE = 0.03


def timed(device: str) -> tuple[LstmScorer, float]:
    scorer = build(hidden=64, epochs=12, dropout=0.0, device=device)
    begun = time.perf_counter()
    scorer.fit(failing_devices(devices=600, steps=96, seed=0))
    return scorer, time.perf_counter() - begun


def test_cuda_gives_the_same_report_within_tolerance(record_property: Callable[[str, object], None]) -> None:
    if not torch.cuda.is_available():
        needs.lack("torch sees no CUDA device")
    timed("cuda")
    (on_cuda, cuda_s), (on_cpu, cpu_s) = timed("cuda"), timed("cpu")
    record_property("cuda_seconds", round(cuda_s, 2))
    record_property("cpu_seconds", round(cpu_s, 2))
    print(f"training: {cuda_s:.1f} s on {torch.cuda.get_device_name()}, {cpu_s:.1f} s on the processor")
    unseen = failing_devices(devices=300, steps=96, seed=1)
    happened = unseen.label(48 * HOUR)[0]
    cuda, cpu = on_cuda.score(unseen)[:, -1], on_cpu.score(unseen)[:, -1]
    assert roc_auc_score(happened, cuda) == pytest.approx(roc_auc_score(happened, cpu), abs=TOLERANCE)
    assert cuda.mean() == pytest.approx(cpu.mean(), rel=0.1)
    assert np.mean((cuda - happened) ** 2) == pytest.approx(np.mean((cpu - happened) ** 2), abs=TOLERANCE)


def test_weights_from_cuda_score_alike_on_the_processor() -> None:
    if not torch.cuda.is_available():
        needs.lack("torch sees no CUDA device")
    on_cuda, _ = timed("cuda")
    moved = build(hidden=64, device="cpu")
    moved.restore(on_cuda.state())
    unseen = failing_devices(steps=96, seed=1)
    assert moved.score(unseen) == pytest.approx(on_cuda.score(unseen), abs=1e-4)
