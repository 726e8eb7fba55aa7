"""The commands of docs/access.md make certificates that work."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import httpx2
import pytest

from tocsin.config.access import ApiSettings
from tocsin.http_client import client_context
from tocsin_testing import needs
from tocsin_testing.fake_service import FakeService, serving

pytestmark = pytest.mark.server

DOCS = Path(__file__).parents[2] / "docs" / "access.md"


def test_the_recipe_for_certificates(tmp_path: Path) -> None:
    needs.program("openssl", "openssl")
    (recipe,) = re.findall(r"^```sh\n(.*?)^```", DOCS.read_text(), re.MULTILINE | re.DOTALL)
    subprocess.run(["bash", "-e", "-c", recipe], cwd=tmp_path, check=True, capture_output=True, timeout=60)
    ca = tmp_path / "ca.pem"
    settings = ApiSettings(tls_certificate=tmp_path / "brain.pem", tls_key=tmp_path / "brain.key", client_ca=ca)
    agent = client_context(ca, tmp_path / "node-1.pem", tmp_path / "node-1.key")
    with serving(FakeService(), settings) as url:
        told = httpx2.get(f"{url}/v1/me", verify=agent).text
        refused = httpx2.get(f"{url}/v1/fleet", verify=client_context(ca)).text
    assert told in DOCS.read_text()
    assert refused in DOCS.read_text()
    assert {oct(path.stat().st_mode & 0o077) for path in tmp_path.glob("*.key")} == {"0o0"}
