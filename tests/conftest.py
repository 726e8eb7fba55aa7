"""What holds for every test."""

from __future__ import annotations

import gc
import sys
from collections.abc import Iterator
from fnmatch import fnmatch
from functools import cache

import httpcore2
import pytest
import structlog
from hypothesis import settings
from xdist.remote import Producer
from xdist.scheduler import LoadScopeScheduling

settings.register_profile("tocsin", deadline=None)
settings.load_profile("tocsin")
TOGETHER = (
    "tests/attack/*.py",
    "tests/chaos/*.py",
    "tests/contract/test_slurm_*.py",
    "tests/e2e/*_browser.py",
)
"""Modules that share a server or a browser, or that load the machine so much that two at once would judge each other:
those of one pattern run on one worker."""


class ModuleScheduling(LoadScopeScheduling):
    """The tests of one module on one worker, so that what they share is set up once.

    Not xdist's own `loadgroup`: version 3.8 puts the group where pytest 9.2 does not look for it, and spreads a module
    over all workers without a word.
    """

    def _split_scope(self, nodeid: str) -> str:
        path = nodeid.partition("::")[0]
        return next((pattern for pattern in TOGETHER if fnmatch(path, pattern)), path)


@pytest.hookimpl(optionalhook=True)
def pytest_xdist_make_scheduler(config: pytest.Config, log: Producer) -> ModuleScheduling:
    """How tests are spread over the workers of `-n`."""
    return ModuleScheduling(config, log)


def pytest_collection_finish() -> None:
    """Eleven thousand tests are a million objects, through which each full collection of garbage would go."""
    gc.collect()
    gc.freeze()


_MAIN = sys.modules["__main__"]


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup() -> None:
    """A page of Streamlit puts a module of its own in the place of the program's, which new processes then look for."""
    sys.modules["__main__"] = _MAIN


@pytest.fixture(scope="session", autouse=True)
def system_cas_read_once() -> Iterator[None]:
    """`httpx2.get` reads the CAs of the system anew each time, which costs more than the request."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(httpcore2, "default_ssl_context", cache(httpcore2.default_ssl_context))
        yield


@pytest.fixture(autouse=True)
def log_as_it_was() -> Iterator[None]:
    """A test that sets up the log leaves it pointing at a stream that ends with the test."""
    yield
    structlog.reset_defaults()
