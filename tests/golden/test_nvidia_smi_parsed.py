"""What the parsers make of nvidia-smi's answers, whole. TOCSIN_UPDATE_GOLDEN=1 writes the files anew."""

from __future__ import annotations

import json
import os

import pytest

from tocsin.collector.nvidia_smi.formats import SmiGpu, parse_csv, parse_xml
from tocsin_testing.smi import FOLDER

FILES = sorted(path.name for path in FOLDER.iterdir() if path.suffix == ".csv" or path.name.endswith(".xml"))


def _as_json(gpu: SmiGpu) -> dict[str, object]:
    return {
        "uuid": gpu.uuid,
        "index": gpu.index,
        "model": gpu.model,
        "serial": gpu.serial,
        "pci_bus_id": gpu.pci_bus_id,
        "versions": gpu.versions,
        "lost": gpu.cells.lost,
        "values": gpu.cells.values,
        "missing": {key: reason.label for key, reason in gpu.cells.missing.items()},
        "instances": [{"gpu_instance": mig.gpu_instance, "values": mig.cells.values} for mig in gpu.instances],
    }


@pytest.mark.parametrize("name", [name for name in FILES if name != "h100-truncated.xml"])
def test_parsed_form_is_the_recorded_one(name: str) -> None:
    text = (FOLDER / name).read_text()
    gpus = parse_xml(text) if name.endswith(".xml") else parse_csv(text)
    golden = FOLDER / f"{name.rsplit('.', 1)[0]}.parsed.json"
    parsed = json.dumps([_as_json(gpu) for gpu in gpus], indent=1) + "\n"
    if os.environ.get("TOCSIN_UPDATE_GOLDEN"):
        golden.write_text(parsed)
    assert parsed == golden.read_text()
