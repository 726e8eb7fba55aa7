"""Kind ``risk``: a model that warns of a hardware fault."""

from __future__ import annotations

from typing import Literal

from pydantic import Field

from tocsin.domain.clock import HOUR, MINUTE
from tocsin.domain.finding import Evidence
from tocsin.domain.prediction import Prediction, PredictionStatus
from tocsin.rules.conditions.base import Condition, Duration, Probe, Report, World
from tocsin.rules.levels import Number
from tocsin.rules.predictions import PredictionProbe, evidence_name
from tocsin.rules.units import show_duration


class Risk(Condition):
    """Holds while the newest prediction of `target` warns: it is above its model's own level, or a crossing of its own
    threshold, and, where `probability` is given, as likely as that within `within`.

    A prediction that is older than `max_age` says nothing more, and one whose time has passed says no.
    """

    words = frozenset({"probability", "said"})
    expects = True
    kind: Literal["risk"]
    target: str = "hardware_fault"
    """What is predicted."""
    within: Duration = 48 * HOUR
    """The horizon whose probability counts; of the horizons of the model the longest within it."""
    probability: Number = Field(default=0.0, ge=0, le=1)
    """Least probability within it, beside the model's own level, which is `forecast.least_precision` or more."""
    max_age: Duration = 30 * MINUTE
    """Age at which a prediction no longer counts."""

    def bind(self, world: World) -> Probe:
        return RiskProbe(self, world)

    def meaning(self) -> str:
        least = f" with a probability of at least {self.probability:.0%}" if self.probability else ""
        return f"a model warns of {self.target}{least} within {show_duration(self.within)}"


class RiskProbe(PredictionProbe):
    """Looks at how likely the newest prediction of each row is within the condition's horizon."""

    def __init__(self, condition: Risk, world: World) -> None:
        super().__init__(world, world.frame.gpus, condition.target, condition.max_age)
        self._condition = condition

    def warns(self, prediction: Prediction) -> bool:
        likely = prediction.status in (PredictionStatus.LIKELY, PredictionStatus.CROSSING)
        return likely and self._chance(prediction) >= self._condition.probability

    def _chance(self, prediction: Prediction) -> float:
        """The model's own word by the longest horizon of the prediction within `within`; 0 where it has none that
        short. What no sign foretells is no reason to warn of this GPU."""
        return max((chance for ahead, chance in prediction.own_curve if ahead <= self._condition.within), default=0.0)

    def report(self, row: int) -> Report:
        prediction = self._said[row]
        chance = self._chance(prediction)
        sure = "unknown" if prediction.probability is None else f"{chance * 100:.0f} %"
        said, said_zh = prediction.sentence, prediction.sentence_zh
        own = Evidence(evidence_name(prediction), said, prediction.at_ms, chance, said_zh)
        value = prediction.value if prediction.probability is None else chance
        words = {"probability": sure, "said": said, "said_zh": said_zh}
        return Report(prediction.metric, value, prediction.threshold, (own, *prediction.evidence), words)
