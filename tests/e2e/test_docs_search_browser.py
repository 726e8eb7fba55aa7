"""The search of the built documentation site, asked in a browser as an operator asks it: what answers is first."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread
from urllib.parse import quote_plus, urlsplit

import pytest
from playwright.sync_api import Browser

from tocsin_testing.browsing import opened

pytestmark = pytest.mark.browser

ROOT = Path(__file__).parents[2]
QUERIES = {
    "drain a node": "howto/drain-a-node",
    "approve an action": "howto/approve-or-silence",
    "silence a card": "howto/approve-or-silence",
    "xid 79": "xid",
    "backup": "howto/backup",
    "restore": "howto/backup",
    "upgrade": "upgrade",
    "roll back": "upgrade",
    "write a rule": "howto/write-a-rule",
    "install": "install",
    "slurm": "slurm",
    "notifications": "notifications",
    "limits": "limits",
    "single gpus": "dra",
    "turn on a rule": "howto/turn-on-a-rule",
    "helm": "helm",
    "glossary": "glossary",
}
"""What is typed, and the address of the page that has to stand first."""


class Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        """Nothing: what a browser asks for is not what is tested."""


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--quiet", "--site-dir", str(folder)]
    told = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    subprocess.run(command, cwd=ROOT, env=told, check=True, timeout=300)
    server = ThreadingHTTPServer(("127.0.0.1", 0), partial(Quiet, directory=str(folder)))
    Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_port}"
    server.shutdown()
    server.server_close()


@pytest.mark.parametrize(("query", "page"), QUERIES.items(), ids=list(QUERIES))
def test_the_page_that_answers_is_first(browser: Browser, site: str, query: str, page: str) -> None:
    with opened(browser, f"{site}/?q={quote_plus(query)}") as shown:
        first = shown.locator(".md-search-result__link").first
        first.wait_for(state="attached")
        assert urlsplit(str(first.get_attribute("href"))).path == f"/{page}/"
