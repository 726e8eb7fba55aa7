"""Goals in words: what was measured beside what was wanted."""

from __future__ import annotations

import pytest

from tocsin.actions.model.goals import NEW_ERRORS, in_words
from tocsin.domain.decision import ActionGoal, GoalSense
from tocsin.domain.phrase import in_chinese


@pytest.mark.parametrize(
    ("value", "said", "chinese"),
    [
        (0.0, "no new errors (goal: none)", "没有新错误（目标：无）"),
        (1.0, "1 new error (goal: none)", "1 个新错误（目标：无）"),
        (3.0, "3 new errors (goal: none)", "3 个新错误（目标：无）"),
        (None, "nothing shows whether there are new errors (goal: none)", "无从得知是否有新错误（目标：无）"),
    ],
)
def test_errors_that_are_to_be_none_are_told_plainly(value: float | None, said: str, chinese: str) -> None:
    made = in_words(ActionGoal(NEW_ERRORS, GoalSense.AT_MOST, 0.0, "errors"), value)
    assert (str(made), in_chinese(made)) == (said, chinese)


def test_a_figure_stands_beside_its_bound() -> None:
    goal = ActionGoal("gpu_temperature_celsius", GoalSense.AT_MOST, 85.0, "celsius")
    assert str(in_words(goal, 79.52)) == "gpu temperature 79.52 °C, goal at most 85.00 °C"
