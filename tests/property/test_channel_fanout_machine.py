"""Whatever order faults, ends, failures, restarts and pauses of receivers come in, each channel hears of each once."""

from __future__ import annotations

from collections import Counter

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule

from tocsin.actions.notifications.channel import Delivery, Phase
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.finding import ActionKind
from tocsin_testing.action_world import World
from tocsin_testing.action_world import settings as action_settings
from tocsin_testing.notify_world import FakeChannel, NotifyWorld

TAKEN = Delivery(True, "taken", 1)
ANSWERS = st.sampled_from(
    [TAKEN, TAKEN, Delivery(False, "away", 1, certain=False), Delivery(False, "busy", 1, rest_seconds=90.0)]
)
GPUS = [f"GPU-{host}-{index}" for host in range(4) for index in range(2)]


class Channels(RuleBasedStateMachine):
    """A pager that hears of ends, a room in a storm, and a receiver that forgets."""

    def __init__(self) -> None:
        super().__init__()
        pager = FakeChannel("pager", keyed=True)
        room = FakeChannel("room")
        alerts = FakeChannel("alerts", batch=3, keyed=True, refresh_seconds=60.0)
        more = {"pager": {"per_minute": 2}, "room": {"per_minute": 2, "resolved": True}, "alerts": {"per_minute": 2}}
        self.rig = NotifyWorld(pager, room, alerts, **more)
        # No time box ends within a run: what is given up is not told.
        self.rig.world = World(action_settings(mode="observe", time_box_seconds=1_000_000.0))
        self.rig.restart()

    @rule(uuid=st.sampled_from(GPUS))
    def fault(self, uuid: str) -> None:
        self.rig.world.break_gpu(uuid)

    @rule(uuid=st.sampled_from(GPUS))
    def end(self, uuid: str) -> None:
        self.rig.world.faults.pop(f"hot|{uuid}", None)

    @rule(which=st.integers(0, 2), answer=ANSWERS)
    def answer(self, which: int, answer: Delivery) -> None:
        self.rig.channels[which].delivery = answer

    @rule()
    def restart(self) -> None:
        self.rig.restart()

    @rule(seconds=st.sampled_from([1, 15, 61, 200]))
    def step(self, seconds: int) -> None:
        self.rig.world.step(advance=seconds * SECOND)

    @invariant()
    def nothing_is_told_twice_or_out_of_order(self) -> None:
        for channel in self.rig.channels:
            fired: set[str] = set()
            ended: set[str] = set()
            for message in channel.taken:
                for decision in message.decisions:
                    if message.resolved:
                        assert decision.key in fired
                        assert decision.key not in ended
                        ended.add(decision.key)
                    else:
                        assert decision.key not in ended
                        assert channel.refresh_seconds is not None or decision.key not in fired
                        fired.add(decision.key)

    def teardown(self) -> None:
        """With all receivers back, in the end everything was told, and its end as well."""
        for channel in self.rig.channels:
            channel.delivery = TAKEN
        self.rig.world.step(advance=3 * MINUTE)
        self.rig.world.faults.clear()
        for _ in range(40):
            self.rig.world.step(advance=HOUR // 4)
        notices = {s.decision.key for s in self.rig.world.loop.statuses() if s.decision.action is ActionKind.NOTIFY}
        for channel in self.rig.channels:
            assert Counter(channel.told(Phase.RESOLVED)) == Counter(set(channel.told()))
            assert set(channel.told()) == notices


TestChannels = Channels.TestCase
TestChannels.settings = settings(max_examples=40, stateful_step_count=25)
