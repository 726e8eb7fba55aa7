"""What the attacks share."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tocsin_testing.attacked import Victim, attacked


@pytest.fixture(scope="module")
def victim(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Victim]:
    with attacked(str(tmp_path_factory.mktemp("attack"))) as made:
        yield made
