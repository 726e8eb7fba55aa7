"""Where torch computes, and that nobody else notices: its global state is set for a block and put back after it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch

from tocsin.domain.errors import InputError, Unavailable

DEVICES = ("auto", "cpu", "cuda")


def pick(device: str) -> torch.device:
    """The device of a setting; ``auto`` takes CUDA where there is one. Raises InputError, Unavailable without CUDA."""
    if device not in DEVICES:
        raise InputError("device", device, "no such device", f"use one of {', '.join(DEVICES)}")
    there = torch.cuda.is_available()
    if device == "cuda" and not there:
        raise Unavailable("device cuda: torch sees no CUDA device; use device auto or cpu")
    return torch.device("cuda" if there and device != "cpu" else "cpu")


@contextmanager
def settled(device: torch.device, threads: int, seed: int = 0) -> Iterator[None]:
    """Threads, seed, float32 and deterministic algorithms for the block; after it all is as it was before.

    On CUDA the LSTM kernels are asked to be deterministic and to leave out TF32; sums may still differ from the CPU's
    in the last digits.
    """
    before = (
        torch.get_num_threads(),
        torch.get_default_dtype(),
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
    )
    cuda = device.type == "cuda"
    with (
        torch.random.fork_rng(devices=[torch.cuda.current_device()] if cuda else []),
        torch.backends.cudnn.flags(enabled=True, benchmark=False, deterministic=True, allow_tf32=False),
    ):
        try:
            torch.set_num_threads(threads)
            torch.set_default_dtype(torch.float32)
            torch.use_deterministic_algorithms(not cuda)
            torch.manual_seed(seed)
            yield
        finally:
            torch.set_num_threads(before[0])
            torch.set_default_dtype(before[1])
            torch.use_deterministic_algorithms(before[2], warn_only=before[3])
