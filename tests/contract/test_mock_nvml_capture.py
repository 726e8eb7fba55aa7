"""The tool that records a real GPU, on the mock: it must work when somebody at last has a card."""

from __future__ import annotations

import json
from pathlib import Path

from tocsin_testing import capture_gpu
from tocsin_testing.mock_gpus import h100, split, t4
from tocsin_testing.mock_nvml import MockFleet


def test_a_capture_has_readings_fields_calls_and_no_identity(tmp_path: Path) -> None:
    fleet = MockFleet(tmp_path, [h100(0), t4(1), split(h100(2), "1g.10gb")])
    out = tmp_path / "capture.json"
    with fleet.loaded():
        capture_gpu.main([str(out), "--pause", "0"])
        assert fleet.opens == fleet.closes == 2
    text = out.read_text()
    for gpu in fleet.gpus.values():
        assert gpu.uuid not in text
    assert fleet.gpus[2].migs[0].answers["nvmlDeviceGetUUID",] not in text
    assert f'pid=\\"{40000}\\"' not in text
    found = json.loads(text)
    assert found["driver"] == "580.105.08"
    assert [gpu["model"] for gpu in found["gpus"]] == ["NVIDIA H100 80GB HBM3", "Tesla T4", "NVIDIA H100 80GB HBM3"]
    first = found["gpus"][0]
    assert first["fields"]["193/0"] == {"code": 0, "us": 3, "type": 5, "value": -8}
    assert first["fields"]["9/0"]["code"] == 3
    assert first["link_fields"]["161/17"]["code"] == 0
    assert first["calls"]["nvmlDeviceGetPowerManagementLimit"]["value"] == 700_000
    assert first["calls"]["nvmlDeviceGetFanSpeed"]["code"] == 3
    assert first["calls"]["nvmlDeviceGetMemoryInfo(33554472,)"]["us"] > 0
    assert first["gpm"]["2"]["code"] == 0
    assert found["gpus"][1]["gpm"] == {"code": 3}
    assert [len(rows) for rows in found["readings"]] == [4, 4]
