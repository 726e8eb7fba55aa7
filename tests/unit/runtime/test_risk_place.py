"""What the settings say of when the risk model warns reaches it."""

from __future__ import annotations

from tocsin.config.settings import Settings
from tocsin.runtime.brain.assembly import risk_place


def test_the_model_is_given_what_bounds_its_warnings() -> None:
    place = risk_place(Settings.model_validate({"forecast": {"alarm_share": 0.02, "least_precision": 0.7}}))
    assert place is not None
    assert (place.alarm_share, place.least) == (0.02, 0.7)
