"""A brain that does not hold the lease, or is paused, leaves its orders where they are."""

from __future__ import annotations

from pathlib import Path

import pytest

from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin_testing.builders import T0


class Held:
    """A lease that a test gives and takes."""

    epoch = 0

    def __init__(self) -> None:
        self.mine = False

    def tick(self) -> None:
        """Nothing to renew."""

    def held(self) -> bool:
        return self.mine

    def holder(self) -> str:
        return "me" if self.mine else "other"

    def release(self) -> None:
        self.mine = False


@pytest.fixture
def running(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunningBrain:
    settings = Settings.model_validate(
        {
            "store": {"path": tmp_path / "store.db"},
            "journal": {"path": tmp_path / "journal.db"},
            "forecast": {"worker": False, "models": tmp_path / "models"},
        }
    )
    monkeypatch.setattr(assembly, "open_lease", lambda *_: Held())
    return open_brain(settings, ManualClock(T0))


def test_orders_rest_without_the_lease_and_while_paused(running: RunningBrain, monkeypatch: pytest.MonkeyPatch) -> None:
    brain, lease = running.brain, running.brain.lease
    assert isinstance(lease, Held)
    halted: list[bool] = []
    renewed: list[int] = []
    monkeypatch.setattr(brain.orders, "halt", halted.append)
    monkeypatch.setattr(brain.orders, "renew_epoch", lambda: renewed.append(1))
    brain.tick()
    lease.mine = True
    brain.tick()
    brain.tick()
    brain.actions.operator.pause("ann")
    brain.tick()
    assert (halted, renewed) == ([True, False, False, True], [1])
    assert brain.metrics.value("tocsin_brain_active") == 1
    running.stop()
    assert not lease.mine
