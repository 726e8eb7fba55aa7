"""What a builder is made of, for those who read it."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from tocsin.forecaster.features.arrays import NOT_YET, Arrays
from tocsin.forecaster.features.happenings import Happenings
from tocsin.forecaster.features.intake import Intake
from tocsin.forecaster.features.liveness import Liveness
from tocsin.forecaster.features.peers import Roster
from tocsin.forecaster.features.plan import Plan
from tocsin.forecaster.features.rings import Rings
from tocsin.forecaster.features.thermal import Thermal


@dataclass(frozen=True, slots=True)
class Parts:
    """Each part keeps its arrays in `arrays`; `installed_ms` says when a UUID was put into service, where known."""

    plan: Plan
    arrays: Arrays
    rings: Rings
    intake: Intake
    liveness: Liveness
    thermal: Thermal
    happenings: Happenings
    roster: Roster = field(default_factory=Roster)
    installed_ms: dict[str, int] = field(default_factory=dict)


def parts_of(plan: Plan) -> Parts:
    """The parts of a builder that knows no GPU yet."""
    arrays = Arrays()
    arrays.add("first_ms", (), np.int64, NOT_YET)
    arrays.add("last_ms", (), np.int64, NOT_YET)
    return Parts(
        plan,
        arrays,
        Rings(plan, arrays),
        Intake(plan, arrays),
        Liveness(arrays),
        Thermal(plan.step_ms, arrays),
        Happenings(arrays),
    )
