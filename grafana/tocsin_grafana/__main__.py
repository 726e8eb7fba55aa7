"""`python -m tocsin_grafana`: write dashboards, alerts, their page of documentation, and tables of docs/rules.md."""

from __future__ import annotations

import argparse
import json
from pathlib import Path

from tocsin_grafana.boards import boards
from tocsin_grafana.page import page
from tocsin_grafana.render import render
from tocsin_grafana.rules_page import rules_page
from tocsin_grafana.rules_yaml import DOCS, files, rules, tests
from tocsin_grafana.spec import Backend

BACKENDS: tuple[Backend, ...] = ("prometheus", "influxdb")
ROOT = Path(__file__).resolve().parents[2]


def contents(docs: str = DOCS) -> dict[str, str]:
    """Every file that is made, by its path below the repository."""
    made = {
        f"grafana/dashboards/{backend}/{board.name}.json": json.dumps(
            render(board, backend), indent=2, ensure_ascii=False
        )
        + "\n"
        for board in boards()
        for backend in BACKENDS
    }
    for name, alerts in files().items():
        made[f"grafana/alerts/{name}.yaml"] = rules(name, alerts, docs)
        made[f"grafana/alerts/tests/{name}.test.yaml"] = tests(name, alerts, docs)
    for name, renewed in (("docs/alerts.md", page), ("docs/rules.md", rules_page)):
        made[name] = renewed((ROOT / name).read_text(encoding="utf-8"))
    return made


def main() -> None:
    """Write them."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--docs", default=DOCS, help="where the documentation can be read; alerts link to it")
    parser.add_argument("--out", type=Path, default=ROOT, help="folder to write below; default: the repository")
    wanted = parser.parse_args()
    for name, text in contents(wanted.docs.rstrip("/")).items():
        path = wanted.out / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
