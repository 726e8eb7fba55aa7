"""Whatever order faults, crashes, lost answers and people come in, a fault has one ticket, resolved at its end."""

from __future__ import annotations

from collections import Counter
from typing import Any

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, rule
from werkzeug.test import EnvironBuilder
from werkzeug.wrappers import Request

from tocsin.actions.notifications.channel import ChannelDependencies, Delivery, build_channel
from tocsin.actions.notifications.delivery import HttpAnswer, HttpRequest
from tocsin.actions.notifications.fanout import ChannelQueue, FanOut
from tocsin.actions.notifications.ticket import TicketChannel
from tocsin.domain.clock import HOUR, MINUTE, SECOND
from tocsin.domain.finding import Category
from tocsin_testing.action_world import World
from tocsin_testing.action_world import settings as action_settings
from tocsin_testing.notify_world import LINKS, channel_settings
from tocsin_testing.ticket_doubles import DOUBLES, TicketDouble

GPUS = [f"GPU-{host}-{index}" for host in range(3) for index in range(2)]
TROUBLES = st.sampled_from(["away", "lost", "crash", "busy"])


class CrashError(BaseException):
    """The brain dies, after the ticket system has taken what was sent and before anything is written down."""


class Wire:
    """The receiver of a channel without a network: what is sent arrives, and trouble befalls the answer."""

    def __init__(self, double: TicketDouble, troubles: list[str]) -> None:
        self.double, self.troubles = double, troubles

    def ask(self, request: HttpRequest) -> HttpAnswer | Delivery:
        trouble = self.troubles.pop(0) if self.troubles else ""
        if trouble == "away":
            return Delivery(False, "cannot connect", 1)
        if trouble == "busy":
            return HttpAnswer(429, "", "60")
        environ = EnvironBuilder(
            path=request.path, method=request.method, query_string=dict(request.query), data=request.body,
            headers=dict(request.headers),
        ).get_environ()  # fmt: skip
        with Request(environ) as asked:
            answer = self.double(asked)
        if trouble == "lost":
            return Delivery(False, "no answer", 1, certain=False)
        if trouble == "crash":
            raise CrashError
        return HttpAnswer(answer.status_code, answer.get_data(as_text=True))

    def close(self) -> None:
        """Nothing is held."""


class Tickets(RuleBasedStateMachine):
    """A ticket system over which the brain may die at any request."""

    kind = "jira_cloud"

    def __init__(self) -> None:
        super().__init__()
        self.double = DOUBLES[self.kind]()
        self.troubles: list[str] = []
        self.by_hand: set[str] = set()
        # No time box ends within a run: what is given up is not told.
        self.world = World(action_settings(mode="observe", time_box_seconds=1_000_000.0))
        self.restart()

    @rule(uuid=st.sampled_from(GPUS))
    def fault(self, uuid: str) -> None:
        self.world.break_gpu(uuid, category=Category.HARDWARE)

    @rule(uuid=st.sampled_from(GPUS))
    def end(self, uuid: str) -> None:
        self.world.faults.pop(f"hot|{uuid}", None)

    @rule(troubles=st.lists(TROUBLES, min_size=1, max_size=4))
    def trouble(self, troubles: list[str]) -> None:
        self.troubles[:] = troubles

    @rule()
    def restart(self) -> None:
        found = channel_settings("ticket", **self.double.channel(), per_minute=3)
        made = build_channel(ChannelDependencies(found, LINKS, self.world.clock, evidence=lambda *_: b"bundle"))
        assert isinstance(made, TicketChannel)
        made._receiver = Wire(self.double, self.troubles)  # type: ignore[assignment]
        fan: Any = FanOut([ChannelQueue(made, self.world.clock, found)], threads=False)
        self.world.notifier = fan
        self.world.restart()

    @rule(seconds=st.sampled_from([1, 15, 61, 200]))
    def step(self, seconds: int) -> None:
        try:
            self.world.step(advance=seconds * SECOND)
        except CrashError:
            self.restart()

    @rule(data=st.data())
    def a_person_resolves(self, data: st.DataObject) -> None:
        open_ones = [one for one in self.double.tickets.values() if one.open]
        if open_ones:
            ticket = data.draw(st.sampled_from(open_ones))
            ticket.open = False
            self.by_hand.add(ticket.name)

    @invariant()
    def no_fault_has_two_open_tickets(self) -> None:
        labels = Counter(one.label for one in self.double.tickets.values() if one.open)
        assert max(labels.values(), default=0) <= 1

    @invariant()
    def no_second_ticket_where_no_person_resolved_the_first(self) -> None:
        untouched = Counter(one.label for one in self.double.tickets.values() if one.name not in self.by_hand)
        assert max(untouched.values(), default=0) <= 1

    def teardown(self) -> None:
        """With all well again, every ticket has its evidence, and is resolved once its fault is over."""
        self.troubles.clear()
        for _ in range(5):
            self.world.step(advance=3 * MINUTE)
        live = {fault.id for fault in self.world.faults.values()}
        for ticket in self.double.tickets.values():
            assert ticket.open == (ticket.label.removeprefix("tocsin-") in live) or ticket.name in self.by_hand
            assert ticket.files or ticket.name in self.by_hand
        self.world.faults.clear()
        for _ in range(5):
            self.world.step(advance=HOUR // 4)
        assert not any(one.open for one in self.double.tickets.values())
        assert self.world.loop.tickets() == {}


class Incidents(Tickets):
    """The same of ServiceNow."""

    kind = "servicenow"


TestJira = Tickets.TestCase
TestJira.settings = settings(max_examples=40, stateful_step_count=25)
TestServiceNow = Incidents.TestCase
TestServiceNow.settings = settings(max_examples=15, stateful_step_count=25)
