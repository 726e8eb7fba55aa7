"""What holds for every test."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import structlog


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """A test that sets up the log leaves it pointing at a stream that ends with the test."""
    yield
    structlog.reset_defaults()
