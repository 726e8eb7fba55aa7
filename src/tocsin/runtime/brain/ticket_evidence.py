"""The evidence bundles that go with tickets: channels are built before the brain that has what is in them."""

from __future__ import annotations

from tocsin.domain.errors import Unavailable
from tocsin.queries.service import BrainService
from tocsin.runtime.brain.brain import Brain


class TicketEvidence:
    """Makes the evidence bundle of a GPU, once there is a brain to ask."""

    def __init__(self) -> None:
        self._service: BrainService | None = None
        self._brain: Brain | None = None

    def serve(self, brain: Brain) -> None:
        """Ask `brain` from now on."""
        self._brain, self._service = brain, BrainService(brain)

    def __call__(self, uuid: str, span_ms: int, with_owners: bool) -> bytes:
        """The sealed archive over the last `span_ms`. Raises TocsinError where it cannot be made."""
        if self._brain is None or self._service is None:
            raise Unavailable("the brain has not started yet")
        # What was written down at this very instant is in it too: the end of a span is not.
        end_ms = self._brain.clock.now_ms() + 1
        return b"".join(self._service.evidence(uuid, end_ms - span_ms, end_ms, with_owners))
