"""Limits are written so that they can always be given back."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tocsin.actions.node.markers import Marker, MarkerFolder
from tocsin.domain.errors import InputError
from tocsin.domain.power import LimitFailure, Obstacle
from tocsin_testing.node_world import FakePower, Node


@pytest.fixture
def node(tmp_path: Path) -> Node:
    return Node(tmp_path / "limits")


def marker(node: Node) -> dict[str, object]:
    (path,) = node.folder.glob("*.limit.json")
    found: dict[str, object] = json.loads(path.read_text())
    return found


def test_the_marker_is_there_before_the_limit_is_changed(node: Node) -> None:
    class Watching(FakePower):
        def set_limit(self, gpu: str, milliwatts: int) -> None:
            seen.append(marker(node))
            super().set_limit(gpu, milliwatts)

    seen: list[dict[str, object]] = []
    node.power = Watching()
    node.restart()
    node.keeper.hold(node.order(), 500_000)
    assert seen[0]["prior_mw"] == 700_000
    assert seen[0]["ours_mw"] == [700_000, 500_000]
    assert seen[0]["boot"] == "boot-1"
    assert marker(node)["ours_mw"] == [500_000]


def test_what_is_asked_is_clamped_and_never_above_what_was_found(node: Node) -> None:
    node.power.limit_mw["GPU-a"] = 600_000
    assert node.keeper.hold(node.order(), 50_000).after.current_mw == 200_000  # type: ignore[union-attr]
    assert node.keeper.hold(node.order(), 690_000).after.current_mw == 600_000  # type: ignore[union-attr]


def test_it_is_given_back_exactly_and_the_marker_goes(node: Node) -> None:
    node.power.limit_mw["GPU-a"] = 650_400
    node.keeper.hold(node.order(), 500_000)
    node.keeper.hold(node.order(), 650_000)
    write = node.keeper.restore("GPU-a")
    assert write is not None
    assert write.outcome == "restored"
    assert node.power.limit_mw["GPU-a"] == 650_400
    assert node.markers == []
    assert node.keeper.restore("GPU-a") is None


def test_a_setter_that_does_nothing_is_found_out(node: Node) -> None:
    node.power.ignores = True
    with pytest.raises(LimitFailure, match="without an error, but 700 W is in force") as failure:
        node.keeper.hold(node.order(), 500_000)
    assert failure.value.obstacle is Obstacle.REFUSED
    assert node.markers == []


def test_a_setter_that_does_something_else_is_undone(node: Node) -> None:
    node.power.instead_mw = 300_000
    with pytest.raises(LimitFailure, match="300 W"):
        node.keeper.hold(node.order(), 500_000)
    assert node.markers != [], "it could not be given back either"
    node.power.instead_mw = None
    assert node.keeper.restore_all() == ()
    assert node.power.limit_mw["GPU-a"] == 700_000


@pytest.mark.parametrize("obstacle", [Obstacle.PERMISSION, Obstacle.UNSUPPORTED, Obstacle.LOST])
def test_a_write_that_fails_leaves_everything_as_it_was(node: Node, obstacle: Obstacle) -> None:
    node.power.fail("set_limit", obstacle)
    with pytest.raises(LimitFailure) as failure:
        node.keeper.hold(node.order(), 500_000)
    assert failure.value.obstacle is obstacle
    assert node.markers == []
    assert [write.outcome for write in node.writes] == [obstacle.value]


def test_somebody_elses_limit_stays(node: Node) -> None:
    node.keeper.hold(node.order(), 500_000)
    node.power.limit_mw["GPU-a"] = 350_000
    with pytest.raises(LimitFailure, match="someone else set its power limit to 350 W"):
        node.keeper.hold(node.order(), 450_000)
    assert node.power.limit_mw["GPU-a"] == 350_000
    assert node.markers == []


def test_a_restore_leaves_somebody_elses_limit(node: Node) -> None:
    node.keeper.hold(node.order(), 500_000)
    node.power.limit_mw["GPU-a"] = 350_000
    write = node.keeper.restore("GPU-a")
    assert write is not None
    assert (write.outcome, node.power.limit_mw["GPU-a"]) == ("overruled", 350_000)


def test_a_lost_gpu_keeps_its_marker_until_it_is_back(node: Node) -> None:
    node.keeper.hold(node.order(), 500_000)
    node.power.fail("limits", Obstacle.LOST)
    assert node.keeper.restore_all() == ("GPU-a",)
    assert node.markers == ["GPU-a.limit.json"]
    node.power.trouble.clear()
    assert node.keeper.restore_all() == ()
    assert node.power.limit_mw["GPU-a"] == 700_000


def test_a_new_process_gives_back_what_the_old_one_left(node: Node) -> None:
    node.keeper.hold(node.order(), 500_000)
    node.restart()
    assert node.watts == 700
    assert node.markers == []


def test_after_a_reboot_the_marker_only_goes(node: Node) -> None:
    node.keeper.hold(node.order(), 500_000)
    node.boot = "boot-2"
    node.power.limit_mw["GPU-a"] = 680_000
    node.restart()
    assert node.markers == []
    assert node.writes[-1].outcome == "rebooted"
    assert node.watts == 680


def test_a_limit_that_outlived_the_boot_is_given_back_all_the_same(node: Node) -> None:
    node.keeper.hold(node.order(), 500_000)
    node.boot = "boot-2"
    node.restart()
    assert (node.watts, node.markers) == (700, [])


def test_locked_clocks_are_unlocked_again(node: Node) -> None:
    node.keeper.lock(node.order(sm_clock_max_mhz="1200"), 1200)
    assert node.power.locked == {"GPU-a": (210, 1200)}
    node.restart()
    assert node.power.locked == {}


def test_clocks_that_somebody_holds_are_left(node: Node) -> None:
    node.power.clocks_held = True
    with pytest.raises(LimitFailure, match="locked by another setting"):
        node.keeper.lock(node.order(), 1200)
    assert node.markers == []


def test_a_folder_that_takes_no_marker_takes_no_limit(node: Node, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(_self: MarkerFolder, _marker: Marker) -> None:
        raise InputError("node.marker_folder", "limits", "cannot be written (No space left)", "make room")

    monkeypatch.setattr(MarkerFolder, "put", full)
    with pytest.raises(LimitFailure, match="No space left"):
        node.keeper.hold(node.order(), 500_000)
    assert node.watts == 700


def test_a_marker_that_cannot_be_removed_is_counted_and_hides_no_other_failure(
    node: Node, monkeypatch: pytest.MonkeyPatch
) -> None:
    def read_only(_self: MarkerFolder, _gpu: str) -> None:
        raise OSError(30, "Read-only file system")

    monkeypatch.setattr(MarkerFolder, "take_away", read_only)
    node.power.fail("set_limit", Obstacle.PERMISSION)
    with pytest.raises(LimitFailure, match="set_limit"):
        node.keeper.hold(node.order(), 500_000)
    node.power.trouble.clear()
    node.keeper.hold(node.order(), 500_000)
    node.power.limit_mw["GPU-a"] = 350_000
    with pytest.raises(LimitFailure, match="someone else"):
        node.keeper.hold(node.order(), 450_000)
    with pytest.raises(LimitFailure, match="cannot be removed"):
        node.keeper.restore("GPU-a")
    assert node.keeper.held == ("GPU-a",)
    assert [write.outcome for write in node.writes] == [
        "refused",
        "permission",
        "written",
        "refused",
        "overruled",
        "refused",
    ]


def test_a_marker_that_cannot_be_read_is_set_aside(node: Node) -> None:
    (node.folder / "GPU-a.limit.json").write_text('{"gpu": "GPU-a"}')
    node.restart()
    assert node.markers == []
    assert [path.name for path in node.folder.glob("*.unreadable")] == ["GPU-a.limit.unreadable"]


def test_a_name_that_is_no_uuid_never_becomes_a_path(node: Node) -> None:
    with pytest.raises(InputError, match="no UUID"):
        MarkerFolder(node.folder).take_away("../../etc/passwd")


def test_a_folder_that_cannot_be_made_says_so(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(InputError, match=r"node\.marker_folder"):
        MarkerFolder(tmp_path / "file" / "limits")
