"""The documentation site builds without a warning, and nothing in it is fetched from elsewhere."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, env=told, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr
    return folder


def test_every_page_is_built_and_reachable(site: Path) -> None:
    written = {path.relative_to(ROOT / "docs") for path in (ROOT / "docs").rglob("*.md")}
    home = (site / "index.html").read_text()
    for page in written:
        place = page.parent if page.name in ("index.md", "README.md") else page.with_suffix("")
        built = site / place / "index.html"
        assert built.is_file(), page
        if page.name != "index.md":
            assert f'href="{place.as_posix()}/"' in home, f"{page} is not in the navigation"


def test_nothing_is_fetched_from_another_host(site: Path) -> None:
    loaded = re.compile(r"<(?:script|link|img)\b[^>]*?\b(?:src|href)=\"(https?:[^\"]+)\"")
    pages = [path.read_text() for path in site.rglob("*.html") if path.name != "404.html"]
    assert pages
    assert {url for page in pages for url in loaded.findall(page)} == set()


def test_the_reference_of_plug_ins_is_made_from_the_code(site: Path) -> None:
    page = (site / "reference" / "plugins" / "index.html").read_text()
    for name in (
        "tocsin.collector.source.Source",
        "tocsin.actions.model.executor.Executor",
        "tocsin.store.port.Store",
    ):
        assert f'id="{name}"' in page
    assert "One reading of each GPU" in page
