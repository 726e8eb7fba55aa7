"""Networks and encoders as plain data and arrays, for safetensors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, cast

import numpy as np
import numpy.typing as npt
import torch

from tocsin.domain.errors import InputError
from tocsin.forecaster.deep.inputs import Encoder
from tocsin.forecaster.deep.network import Network, Shape
from tocsin.forecaster.hazard.prepare import from_arrays
from tocsin.forecaster.hazard.scorer import Json, State

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
