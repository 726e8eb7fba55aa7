"""How the signs of a rule that foretells did."""

from __future__ import annotations

from dataclasses import dataclass

from tocsin.domain.clock import DAY
from tocsin.domain.words import counted

KEPT_MS = 30 * DAY
"""For how long a sign that is over counts."""


@dataclass(frozen=True, slots=True)
class SignRecord:
    """How the signs of one rule did within `KEPT_MS`: a failure followed `right` of the `settled` ones, which are over;
    `open` ones are not. `precision` is what it is judged by, None where too few are settled; a `muted` one is
    told as notes. Those of real GPUs, or of `simulated_gpus`."""

    rule: str
    settled: int
    right: int
    open: int
    precision: float | None
    muted: bool
    simulated_gpus: bool = False

    @property
    def kind(self) -> str:
        """What it is called among kinds of statements."""
        return f"rule {self.rule}"

    @property
    def line(self) -> str:
        """One line for people."""
        if not self.settled:
            return f"rule {self.rule}: {counted(self.open, 'sign')}, and whether a failure follows is not known yet"
        state = ", told as notes" if self.muted else ""
        days = KEPT_MS // DAY
        return f"rule {self.rule}: a failure followed {self.right} of {self.settled} signs in {days} days{state}"
