"""What travels from sources to stores in one step."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tocsin.domain.event import Event
from tocsin.domain.finding import Finding
from tocsin.domain.prediction import Prediction
from tocsin.domain.reading import Reading


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings and events as read, findings and predictions as made of them; any part may be empty."""

    readings: Sequence[Reading] = ()
    events: Sequence[Event] = ()
    findings: Sequence[Finding] = ()
    predictions: Sequence[Prediction] = ()

    def __len__(self) -> int:
        return len(self.readings) + len(self.events) + len(self.findings) + len(self.predictions)
