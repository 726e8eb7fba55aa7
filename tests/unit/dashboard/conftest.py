"""What the tests of the dashboard's pages share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from streamlit.components.v2 import manifest_scanner
from streamlit.testing.v1 import app_test


@pytest.fixture(scope="module", autouse=True)
def started_once() -> Iterator[None]:
    """Each test of a page starts Streamlit, which then reads the metadata of every installed package and compiles the
    pages: here it does so once."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(app_test, "ScriptCache", cache(app_test.ScriptCache))
        found = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", found)
        yield
