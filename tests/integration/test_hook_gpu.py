"""The hook over a real CUDA allocator."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tocsin.collector.training_hook.companion import merged, metrics
from tocsin_testing.hook_pair import pair

MIB = 2**20

pytestmark = pytest.mark.gpu


def torch_with_cuda() -> Any:
    """PyTorch with CUDA in use."""
    torch = pytest.importorskip("torch")
    if not torch.cuda.is_available():
        pytest.skip("PyTorch finds no GPU")
    torch.cuda.init()
    return torch


def test_the_figures_are_those_of_pytorch(tmp_path: Path) -> None:
    torch = torch_with_cuda()
    torch.cuda.empty_cache()
    held = [torch.empty(4 * MIB, dtype=torch.uint8, device="cuda") for _ in range(32)]
    del held[::2]
    with pair(tmp_path) as both:
        both.settle()
        both.sample()
        (entry,) = both.server.processes()[0].stats.devices
        stats = torch.cuda.memory_stats()
        assert entry.figures["allocated"] == stats["allocated_bytes.all.current"]
        assert entry.figures["reserved"] == stats["reserved_bytes.all.current"]
        assert entry.figures["free"] == stats["reserved_bytes.all.current"] - stats["active_bytes.all.current"]
        assert entry.figures["inactive_split"] == stats["inactive_split_bytes.all.current"]
        assert str(torch.cuda.get_device_properties(0).uuid) in entry.device.uuid
        ratios = dict(metrics(merged([entry])))
        assert 0 < ratios["gpu_allocator_split_fragmentation_ratio"] < 1
        assert 0 < ratios["gpu_allocator_external_fragmentation_ratio"] < 1
        name = both.server.request(both.server.processes()[0].pid, "empty_cache", both.clock.now_ms() + 60_000)
        both.settle()
        both.step()
        assert [(found.id, found.outcome) for found in both.server.outcomes()] == [(name, "done")]


def test_a_failed_allocation_is_seen(tmp_path: Path) -> None:
    torch = torch_with_cuda()
    with pair(tmp_path) as both:
        both.settle()
        both.sample()
        with pytest.raises(torch.cuda.OutOfMemoryError):
            torch.empty(2**45, dtype=torch.uint8, device="cuda")
        both.settle()
        ((_, _, oom),) = both.server.take_ooms()
        assert oom.requested >= 2**45
        assert oom.free > 0
