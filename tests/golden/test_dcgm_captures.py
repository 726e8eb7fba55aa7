"""Parsed forms of dcgm-exporter pages and dcgmi texts; `tests/data/dcgm/README.md` says which are captures.

After a wanted change: `python tests/golden/test_dcgm_captures.py` writes the forms anew, to be read before a commit.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tocsin.collector.dcgm.dcgmi import discovered, dmon_row, instances, is_heading, listed_fields
from tocsin.collector.dcgm.exporter import read_page
from tocsin.collector.dcgm.exposition import Heads
from tocsin.collector.source import NodeIdentity
from tocsin.domain.reading import Missing

DATA = Path(__file__).parents[1] / "data" / "dcgm"
GOLDEN = Path(__file__).parent / "dcgm"
AT_MS = 1_795_000_000_000


def exporter_form(path: Path) -> dict[str, Any]:
    text = path.read_text()
    # A page that names no host takes the agent's.
    host = "" if "hostname=" in text.lower() else "here"
    page = read_page(text, Heads(NodeIdentity(host)))
    readings = []
    for row in page.rows.values():
        reading, gpu = row.reading(AT_MS, {}), row.gpu
        known = {
            "uuid": gpu.uuid,
            "host": gpu.host,
            "index": gpu.index,
            "model": gpu.model,
            "pci_bus_id": gpu.pci_bus_id,
            "parent": gpu.parent,
            "mig_profile": gpu.mig_profile,
            "labels": dict(gpu.labels),
        }
        missing = {name: reason.label for name, reason in reading.missing.items()}
        owners = [owner.as_json() for owner in reading.owners]
        readings.append({"gpu": known, "values": dict(reading.values), "missing": missing, "owners": owners})
    counts = {uuid: {str(c): [n.count, n.window_ms] for c, n in of.items()} for uuid, of in page.counts.items()}
    lines = dict(sorted(page.lines.items()))
    return {"readings": readings, "xid_counts": counts, "switches": page.switches, "lines": lines}


def dmon_form(path: Path) -> dict[str, Any]:
    lines = path.read_text().splitlines()
    asked = next((line.split("-e ")[1].split()[0].count(",") + 1 for line in lines if " -e " in line), 3)
    rows, others = [], []
    for line in lines:
        row = dmon_row(line, asked)
        if row is not None:
            cells = [cell.label if isinstance(cell, Missing) else cell for cell in row.values]
            rows.append([row.entity, row.number, row.link, cells])
        elif not is_heading(line):
            others.append(line.strip())
    return {"columns": asked, "rows": rows, "not rows": others}


def discovery_form(path: Path) -> dict[str, Any]:
    text = path.read_text()
    return {
        "gpus": [[one.number, one.model, one.pci_bus_id, one.uuid] for one in discovered(text)],
        "instances": {str(entity): list(place) for entity, place in instances(text).items()},
    }


def form(path: Path) -> dict[str, Any]:
    if path.suffix == ".prom":
        return exporter_form(path)
    if path.name == "dmon_list.txt":
        return {"fields": sorted(listed_fields(path.read_text()))}
    found = dmon_form(path) if path.name.startswith("dmon_") else discovery_form(path)
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


FILES = sorted(path for path in DATA.iterdir() if path.name != "README.md")


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.name)
def test_parsed_form(path: Path) -> None:
    golden = json.loads((GOLDEN / f"{path.name}.json").read_text())
    assert json.loads(json.dumps(form(path))) == golden


def test_every_golden_has_its_text_and_every_text_is_named() -> None:
    assert {path.name for path in GOLDEN.iterdir()} == {f"{path.name}.json" for path in FILES}
    readme = (DATA / "README.md").read_text()
    assert all(path.name in readme or path.name.startswith("dmon_") for path in FILES)


if __name__ == "__main__":
    for one in FILES:
        (GOLDEN / f"{one.name}.json").write_text(json.dumps(form(one), indent=1) + "\n")
