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


def pytest_itemcollected(item: pytest.Item) -> None:
    """Under `--dist loadgroup` the tests of one module stay on one worker, so that what they share is set up once."""
    if item.get_closest_marker("xdist_group") is None:
        item.add_marker(pytest.mark.xdist_group(item.path.stem))
