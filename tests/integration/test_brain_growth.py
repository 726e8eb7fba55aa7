"""Growth over weeks in a running brain: a restart neither forgets what was usual nor tells again what it knew."""

from __future__ import annotations

from pathlib import Path

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import HOUR, MINUTE, SECOND, ManualClock
from tocsin.domain.entry import EntryKind
from tocsin.domain.reading import Reading
from tocsin.journal.files import read_entries
from tocsin.rules.past import SLOT_MS
from tocsin.runtime.brain.assembly import open_brain
from tocsin_testing.builders import T0, gpu

METRIC = "gpu_ecc_corrected_volatile_total"
RULES = f"""
[[rules]]
name = "grows"
severity = "warning"
category = "hardware"
action = "notify"
alert = "{{where}}: {{value}}"
all = [{{ kind = "growth", metrics = ["{METRIC}"], times = 6 }}]
"""
RISES = f"""
[[rules]]
name = "rises"
severity = "warning"
category = "hardware"
action = "notify"
alert = "{{where}}: {{value}}"
all = [{{ kind = "rate", metric = "{METRIC}", over = "24h", above = 0.5 }}]
"""
FLEET = tuple(gpu(index) for index in range(4))
ONE = FLEET[0]
STEP_MS = 30 * MINUTE


class Site:
    """A brain over four GPUs, of which the first may count errors faster.

    Each half hour it is told of the last minutes, some seconds later or earlier than before.
    """

    def __init__(self, folder: Path, rules: str = RULES) -> None:
        (folder / "rules.toml").write_text(rules)
        self.settings = Settings.model_validate(
            {
                "store": {"path": folder / "store.db"},
                "journal": {"path": folder / "journal.db"},
                "rules": {"path": folder / "rules.toml"},
                "forecast": {"worker": False, "models": folder / "models"},
                "actions": {"boot_grace_seconds": 0},
            }
        )
        self.clock = ManualClock(T0 - T0 % SLOT_MS + 70 * SECOND)
        self.total, self.sent, self.others = dict.fromkeys(FLEET, 0.0), 0, 1.0
        self.running = open_brain(self.settings, self.clock)

    def live(self, hours: float, per_hour: float) -> None:
        brain = self.running.brain
        for _ in range(round(hours * HOUR / STEP_MS)):
            self.clock.advance(STEP_MS)
            now = self.clock.now_ms()
            for one in FLEET:
                self.total[one] += (per_hour if one is ONE else self.others) * STEP_MS / HOUR
            late_ms = self.sent * 17 * SECOND % (50 * SECOND)
            self.sent += 1
            for at_ms in (now - 2 * MINUTE + late_ms, now - MINUTE + late_ms):
                brain.accept(Batch(readings=[Reading(one, at_ms, {METRIC: self.total[one]}) for one in FLEET]))
            brain.tick()

    def restart(self, *, read_past: bool = True) -> None:
        """As after an upgrade: the past is read after the start, while rules are evaluated."""
        self.running.stop()
        self.running = open_brain(self.settings, self.clock)
        (past,) = (thread for thread in self.running.threads if thread.name == "past")
        for _ in range(100 if read_past else 1):
            self.clock.advance(SECOND)
            self.running.brain.tick()
            if read_past:
                past.once()

    def told(self) -> list[str]:
        """Kinds of the entries about findings, oldest first."""
        kinds = [EntryKind.FINDING_OPENED, EntryKind.FINDING_CLEARED]
        return [entry.kind for entry in read_entries(self.settings.journal.path, kinds=kinds)]


def test_what_grew_before_a_restart_is_the_same_finding_after_it(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.live(72, per_hour=1.0)
    site.live(30, per_hour=12.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    (before,) = site.running.brain.active
    site.restart()
    site.live(6, per_hour=12.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    (after,) = site.running.brain.active
    assert after.last_ms > site.running.brain.started_ms
    assert (after.id, after.subject) == (before.id, before.subject)
    site.running.stop()


def test_what_grows_over_a_restart_is_told(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.live(72, per_hour=1.0)
    site.live(16, per_hour=12.0)
    site.restart()
    site.live(12, per_hour=12.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    site.running.stop()


def test_what_a_brain_without_the_past_says_is_nothing(tmp_path: Path) -> None:
    """The two above would pass without it where a day of warming up were enough."""
    site = Site(tmp_path)
    site.live(72, per_hour=1.0)
    site.live(16, per_hour=12.0)
    site.restart(read_past=False)
    site.live(12, per_hour=12.0)
    assert site.told() == []
    site.running.stop()


def test_a_start_just_before_a_slot_ends_knows_all_of_the_past(tmp_path: Path) -> None:
    """Samples one slot apart from then on would lie on either side of its end as readings come early or late."""
    site = Site(tmp_path)
    site.live(72, per_hour=1.0)
    site.live(30, per_hour=12.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    site.clock.advance(SLOT_MS - site.clock.now_ms() % SLOT_MS - 30 * SECOND)
    site.restart()
    site.live(0.5, per_hour=12.0)
    (after,) = site.running.brain.active
    assert site.told() == [EntryKind.FINDING_OPENED]
    assert after.last_ms > site.running.brain.started_ms
    site.running.stop()


def test_a_finding_goes_on_until_the_past_is_known_and_ends_when_it_is_over(tmp_path: Path) -> None:
    site = Site(tmp_path)
    site.live(72, per_hour=1.0)
    site.live(30, per_hour=12.0)
    (before,) = site.running.brain.active
    site.restart(read_past=False)
    site.live(4, per_hour=1.0)
    assert [one.id for one in site.running.brain.active] == [before.id], "nothing is known that speaks against it"
    site.restart()
    site.live(30, per_hour=1.0)
    assert site.told() == [EntryKind.FINDING_OPENED, EntryKind.FINDING_CLEARED]
    site.running.stop()


def test_a_finding_that_is_clearing_keeps_its_time_over_a_restart(tmp_path: Path) -> None:
    site = Site(tmp_path, RULES.replace('action = "notify"', 'action = "notify"\nclear_for = "24h"'))
    site.live(72, per_hour=1.0)
    site.live(30, per_hour=12.0)
    site.live(26, per_hour=1.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    site.restart()
    site.live(20, per_hour=1.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    site.live(8, per_hour=1.0)
    assert site.told() == [EntryKind.FINDING_OPENED, EntryKind.FINDING_CLEARED]
    site.running.stop()


def test_what_rose_within_the_last_day_rose_after_a_restart_too(tmp_path: Path) -> None:
    site = Site(tmp_path, RISES)
    site.others = 0.0
    site.live(1.5, per_hour=0.0)
    site.live(1, per_hour=2.0)
    site.live(22.5, per_hour=0.0)
    assert site.told() == [EntryKind.FINDING_OPENED]
    # A day ago was a reading then.
    site.clock.advance(28 * MINUTE)
    site.restart()
    assert [one.value for one in site.running.brain.active] == [2.0]
    assert site.told() == [EntryKind.FINDING_OPENED]
    site.live(2, per_hour=0.0)
    assert site.told() == [EntryKind.FINDING_OPENED, EntryKind.FINDING_CLEARED]
    site.running.stop()
