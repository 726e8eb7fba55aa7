"""How many GPUs a pod asks for, however its manifest writes the number."""

from __future__ import annotations

import pytest

from tocsin.actions.kubernetes.api import Pod, whole


@pytest.mark.parametrize(
    ("text", "number"),
    [
        ("2", 2), (3, 3), ("0", 0), ("3k", 3000), ("500m", 1), ("1500m", 2), ("1Ki", 1024), ("2e1", 20), ("1E", 10**18),
        ("0.5", 1), (".5", 1), ("1.", 1), ("1e-2", 1),
        ("", 1), ("many", 1), ("-1", 1), ("1e999999999", 1), ("9" * 400, 1), (None, 1), ("1 k", 1),
    ],
)  # fmt: skip
def test_every_quantity_is_a_whole_number(text: object, number: int) -> None:
    assert whole(text) == number


def test_only_gpus_their_shares_and_mig_instances_count() -> None:
    asked = {
        "nvidia.com/gpu": "2",
        "nvidia.com/gpu.shared": "1",
        "nvidia.com/mig-1g.10gb": "3",
        "nvidia.com/gpumem": "3k",
        "nvidia.com/gpucores": "500m",
        "cpu": "500m",
    }
    assert Pod({"spec": {"containers": [{"resources": {"limits": asked}}]}}).gpus == 6
