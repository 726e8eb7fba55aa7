"""The newest prediction of each subject, by target."""

from __future__ import annotations

from collections.abc import Sequence

from tocsin.domain.prediction import Prediction
from tocsin.domain.subject import SubjectKind
from tocsin.rules.roster import Roster
from tocsin.rules.table import Table


class Forecasts:
    """Takes in predictions; `fresh[target]` are those newer than any before as (row, prediction).

    A prediction for a part of a GPU (its subject has a detail) is left to other readers.
    """

    def __init__(self, roster: Roster, pools: Table) -> None:
        self.fresh: dict[str, list[tuple[int, Prediction]]] = {}
        self._roster = roster
        self._pools = pools
        self._newest: dict[tuple[str, str], int] = {}

    def accept(self, predictions: Sequence[Prediction]) -> None:
        """Replace `fresh` by what is new in `predictions`; roster and pools must settle afterwards."""
        self.fresh = {}
        newest: dict[tuple[str, str], Prediction] = {}
        for prediction in predictions:
            key = (prediction.target, prediction.subject.key)
            other = newest.get(key)
            if not prediction.subject.detail and (other is None or _rank(prediction) > _rank(other)):
                newest[key] = prediction
        for key, prediction in newest.items():
            if prediction.at_ms > self._newest.get(key, -1):
                self._newest[key] = prediction.at_ms
                self.fresh.setdefault(prediction.target, []).append((self._row(prediction), prediction))

    def _row(self, prediction: Prediction) -> int:
        subject = prediction.subject
        if subject.kind is SubjectKind.POOL:
            return self._pools.row(subject.name)
        if subject.kind is SubjectKind.FLEET:
            return 0
        if subject.kind is SubjectKind.HOST:
            return self._roster.admit_named("", subject.name)
        return self._roster.admit_named(subject.name, subject.host)

    def forget(self, subjects: Sequence[str]) -> None:
        """Drop what is kept of the subjects with these keys."""
        gone = set(subjects)
        self._newest = {key: at for key, at in self._newest.items() if key[1] not in gone}


def _rank(prediction: Prediction) -> tuple[int, str]:
    return prediction.at_ms, prediction.id
