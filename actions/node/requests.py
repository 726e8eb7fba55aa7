"""An order that asks the training processes of a GPU for a favour: to save a checkpoint, or to empty their cache."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field

from tocsin.actions.node.ports import Asked, HookPort
from tocsin.domain.errors import TocsinError
from tocsin.domain.finding import ActionKind
from tocsin.domain.order import Order, OrderState
from tocsin.hook.wire import CHECKPOINT, DONE, EMPTY_CACHE

KINDS = {ActionKind.CHECKPOINT: CHECKPOINT, ActionKind.DEFRAGMENT: EMPTY_CACHE}
"""What a process is asked for, by action."""
GRACE_SECONDS = 30.0
"""How long an answer may take beyond the request's own time: a checkpoint that was begun in time is written out."""


@dataclass
class Request:
    """One such order at its node; begun at `begun_s` seconds on the agent's monotonic scale."""

    order: Order
    begun_s: float
    name: str = ""
    asked: int = 0
    seconds: float = 0.0
    detail: str = ""
    figures: dict[str, float] = field(default_factory=dict)

    def begin(self, hooks: HookPort, seconds: float) -> str:
        """Ask; why nobody could be asked, empty where somebody was."""
        self.seconds = seconds
        kind = KINDS[self.order.action]
        try:
            self.name, self.asked = hooks.request(self.order.gpu, kind, seconds)
        except TocsinError as error:
            return str(error)
        self.detail = f"asked {self.asked} process{'es' if self.asked != 1 else ''} for {kind}"
        return ""

    def rehearse(self, hooks: HookPort) -> tuple[OrderState, str]:
        """What `begin` would do, and how that would stand."""
        kind = KINDS[self.order.action]
        try:
            count = hooks.processes(self.order.gpu)
        except TocsinError as error:
            return OrderState.REFUSED, str(error)
        return OrderState.APPLIED, f"dry run: would ask {count} process{'es' if count != 1 else ''} for {kind}"

    def look(self, hooks: HookPort, now_s: float) -> tuple[OrderState, str] | None:
        """How it ended; None while answers are out."""
        answers = hooks.answers(self.name)
        over = now_s - self.begun_s >= self.seconds + GRACE_SECONDS
        if len(answers) < self.asked and not over:
            return None
        done = [answer for answer in answers if answer.outcome == DONE]
        self.figures = {"processes_asked": float(self.asked), "processes_done": float(len(done))}
        if done:
            self.figures["slowest_seconds"] = max(answer.seconds for answer in done)
        state = OrderState.APPLIED if len(done) == self.asked else OrderState.FAILED
        return state, _told(self.asked, answers)


def _told(asked: int, answers: Sequence[Asked]) -> str:
    counts = Counter(answer.outcome for answer in answers)
    counts["without an answer"] = asked - len(answers)
    text = ", ".join(f"{count} {outcome}" for outcome, count in sorted(counts.items()) if count)
    said = next((answer.detail for answer in answers if answer.outcome != DONE and answer.detail), "")
    return f"{asked} asked: {text}" + (f" ({said})" if said else "")
