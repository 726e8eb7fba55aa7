"""What the tests of the dashboard's pages share."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache

import pytest
from streamlit.components.v2 import manifest_scanner


@pytest.fixture(scope="module", autouse=True)
def components_found_once() -> Iterator[None]:
    """Streamlit reads the metadata of every installed package when it starts; each test of a page is such a start."""
    with pytest.MonkeyPatch.context() as patch:
        found = cache(manifest_scanner.scan_component_manifests)
        patch.setattr(manifest_scanner, "scan_component_manifests", found)
        yield
