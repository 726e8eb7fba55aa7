"""What a test needs from outside. Missing: a failure in CI, elsewhere a skip with the reason."""

from __future__ import annotations

import os
import shutil
from pathlib import Path
from typing import NoReturn

import pytest


def lack(reason: str) -> NoReturn:
    if os.environ.get("CI") == "true":
        pytest.fail(f"{reason} (in CI a missing server or data folder is a failure)")
    pytest.skip(reason)


def program(name: str, package: str) -> str:
    """Path of an installed program."""
    found = shutil.which(name)
    if found is None:
        lack(f"{name} is not installed; `make setup-servers` installs Debian package {package}")
    return found


def data(*parts: str) -> Path:
    """Path below the folder that TOCSIN_DATA_DIR names."""
    root = os.environ.get("TOCSIN_DATA_DIR")
    if not root:
        lack("TOCSIN_DATA_DIR names no data folder")
    path = Path(root, *parts)
    if not path.exists():
        lack(f"{path} does not exist; check TOCSIN_DATA_DIR")
    return path
