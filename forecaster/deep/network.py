"""The network: patches of steps with their gaps, an LSTM over them, pooling, fusion with what does not change.

Also how it is stored, and where torch computes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple, cast

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn
from torch.nn import functional

from tocsin.domain.errors import InputError, Unavailable
from tocsin.forecaster.deep.inputs import Encoder
from tocsin.forecaster.hazard.rows import from_arrays
from tocsin.forecaster.hazard.scorer import Json, State


@dataclass(frozen=True, slots=True)
class Shape:
    """Sizes of a network: `steps` of `channels` in patches of `patch` steps (0 steps: no sequence at all), `static`
    columns, `outputs` numbers. `hidden` is the width of the LSTM, `layers` its depth. `alike`: the outputs are stages
    of one risk and share a part."""

    steps: int
    channels: int
    static: int
    outputs: int
    hidden: int = 64
    layers: int = 1
    patch: int = 1
    dropout: float = 0.1
    alike: bool = True

    @property
    def padded(self) -> int:
        return -(-self.steps // self.patch) * self.patch


class PastWindows(NamedTuple):
    """A batch of sequences as numbers without NaN: `value` [n, steps, channels], 0 where missing; of each patch
    `seen`, the share of steps that have a value, and `since`, how long ago the last one was: both
    [n, patches, channels], from 0 to 1."""

    value: Tensor
    seen: Tensor
    since: Tensor


def past_of(z: Tensor, patch: int) -> PastWindows:
    """`z` float32[n, steps, channels] with NaN where missing; steps a multiple of `patch`, the newest last.

    `since` is log(1 + d) / log(1 + patches) for d patches without a value, and 1 where there never was one; time since
    the last value tells a recurrent network how stale its memory is (Che et al. 2018, GRU-D).
    """
    n, steps, channels = z.shape
    patches = steps // patch
    there = ~torch.isnan(z)
    value = torch.nan_to_num(z, nan=0.0)
    seen = there.view(n, patches, patch, channels).float().mean(dim=2)
    place = torch.arange(patches, device=z.device, dtype=torch.float32).view(1, patches, 1)
    last = torch.where(seen > 0, place, torch.full_like(place, -1.0)).cummax(dim=1).values
    scale = torch.log1p(torch.tensor(float(patches), device=z.device))
    since = torch.where(last < 0, torch.ones_like(last), torch.log1p(place - last) / scale)
    return PastWindows(value, seen, since)


class Network(nn.Module):
    """From a batch of pasts and static columns to `outputs` numbers each.

    `shared` is one number for all outputs and `own` what each adds to it, so that outputs with few examples lean on
    the others; `base` is what they start from, fixed; `wide` lets static columns act directly (wide and deep, Cheng et
    al. 2016).
    """

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.shape = shape
        width, fused = shape.hidden, 0
        if shape.steps:
            self.front = nn.Linear((shape.patch + 2) * shape.channels, width)
            self.lstm = nn.LSTM(width, width, shape.layers, batch_first=True)
            self.attention = nn.Linear(width, 1)
            fused += 2 * width
        if shape.static:
            self.deep = nn.Linear(shape.static, width)
            self.wide = nn.Linear(shape.static, 1 if shape.alike else shape.outputs, bias=False)
            nn.init.zeros_(self.wide.weight)
            fused += width
        self.drop = nn.Dropout(shape.dropout)
        self.fuse = nn.Linear(fused, width)
        if shape.alike:
            self.shared = nn.Linear(width, 1, bias=False)
        self.own = nn.Linear(width, shape.outputs)
        nn.init.zeros_(self.own.weight)
        nn.init.zeros_(self.own.bias)
        self.base: Tensor
        self.register_buffer("base", torch.zeros(shape.outputs))

    def forward(self, past: PastWindows | None, static: Tensor | None) -> Tensor:
        """float32[n, outputs]; `past` is left out by a network of 0 steps, `static` by one of 0 static columns."""
        parts = [] if past is None else [self._pooled(past)]
        if static is not None:
            parts.append(functional.silu(self.deep(static)))
        middle = self.drop(functional.silu(self.fuse(self.drop(torch.cat(parts, dim=1)))))
        out: Tensor = self.base + self.own(middle)
        if self.shape.alike:
            out = out + self.shared(middle)
        return out if static is None else out + self.wide(static)

    def _pooled(self, past: PastWindows) -> Tensor:
        """The last state beside the mean of all states, weighted by attention."""
        n, patches = past.seen.shape[:2]
        flat = past.value.reshape(n, patches, self.shape.patch * self.shape.channels)
        steps = functional.silu(self.front(torch.cat([flat, past.seen, past.since], dim=2)))
        states = self.lstm(steps)[0]
        weight = torch.softmax(self.attention(states), dim=1)
        return torch.cat([states[:, -1], (weight * states).sum(dim=1)], dim=1)


# Networks and encoders as plain data and arrays, for safetensors.

Arrays = dict[str, npt.NDArray[np.generic]]


def encoder_parts(encoder: Encoder) -> tuple[Json, Arrays]:
    """The encoder as JSON and arrays."""
    arrays: Arrays = {}
    for part, how in (("past", encoder.past), ("static", encoder.static)):
        if how is not None:
            arrays |= {f"{part}.{name}": value for name, value in how.arrays().items()}
    about: Json = {
        "channels": list(encoder.channels),
        "steps": encoder.steps,
        "padded": encoder.padded,
        "features": list(encoder.features),
    }
    return about, arrays


def encoder_from(state: State) -> Encoder:
    """The reverse of `encoder_parts`."""
    about = cast("Mapping[str, Any]", state.settings["encoder"])
    parts = {part: _below(state.arrays, f"{part}.") for part in ("past", "static")}
    past, static = (from_arrays(part) if part else None for part in parts.values())
    channels, features = tuple(about["channels"]), tuple(about["features"])
    return Encoder(channels, int(about["steps"]), int(about["padded"]), past, features, static)


def network_parts(networks: Sequence[Network]) -> Arrays:
    """All weights, by network and name."""
    return {
        f"network{i}.{name}": value.detach().cpu().numpy().copy()
        for i, network in enumerate(networks)
        for name, value in network.state_dict().items()
    }


def network_from(state: State) -> tuple[Network, ...]:
    """The networks of a state, ready to score. Raises InputError where weights are missing or do not fit."""
    shape = Shape(**cast("dict[str, Any]", state.settings["shape"]))
    networks = []
    for i in range(int(cast("int", state.settings["members"]))):
        with torch.random.fork_rng(devices=[]):
            network = Network(shape)
        weights = {name: torch.from_numpy(np.array(v)) for name, v in _below(state.arrays, f"network{i}.").items()}
        try:
            network.load_state_dict(weights)
        except RuntimeError as error:
            problem = "the weights are not those of this network"
            raise InputError("state", f"network {i}", problem, "use the state of a fitted scorer") from error
        networks.append(network.eval())
    return tuple(networks)


def _below(arrays: Mapping[str, npt.NDArray[np.generic]], prefix: str) -> Arrays:
    return {name.removeprefix(prefix): value for name, value in arrays.items() if name.startswith(prefix)}


# Where torch computes, and that nobody else notices: its global state is set for a block and put back after it.

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
