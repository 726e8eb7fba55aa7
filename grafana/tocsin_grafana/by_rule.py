"""Alerts that follow a shipped rule, on the series of one exporter about one GPU."""

from __future__ import annotations

from collections.abc import Container, Mapping
from dataclasses import dataclass

from tocsin_grafana.alert import RULE, Alert, Case, Severity, Tier, matching, only_metric
from tocsin_grafana.rulebook import held

Series = str | Mapping[str, str]
"""Values of the one metric that the expression names, or of several by name; labels of its own stand behind a bar."""


@dataclass(frozen=True, slots=True)
class Exporter:
    """Whose series they are: their names, how its alerts name a GPU, and the labels of the GPU in their tests."""

    metrics: Container[str]
    where: str
    gpu: Mapping[str, str]

    def alert(
        self,
        name: str,
        rule: str,
        severity: Severity,
        tier: Tier,
        *,
        expr: str,
        summary: str,
        says: str,
        remedy: str,
        fires: Series,
        rests: Series,
        shown: str = "",
        wait: str = "",
        at: str = "30m",
        more: Mapping[str, str] | None = None,
        source: str = "",
        note: str = "",
    ) -> Alert:
        """An alert that waits as long as `rule` and has its level, unless `wait` or `source` says otherwise.

        `more` are labels that it has beside those of the GPU; `note` is said behind the name of the rule.
        """
        return Alert(
            name,
            expr,
            wait or held(rule),
            severity,
            tier,
            summary,
            f"{self.where}: {says}",
            remedy,
            source or f"{RULE.format(rule)} {note}".strip(),
            Case(self._series(expr, fires), at, {**self.gpu, **(more or {})}, shown),
            Case(self._series(expr, rests), at),
        )

    def _series(self, expr: str, values: Series) -> dict[str, str]:
        if isinstance(values, str):
            values = {only_metric(expr, self.metrics): values}
        found = {}
        for key, text in values.items():
            metric, _, own = key.partition("|")
            assert metric in self.metrics, metric
            found[f"{metric}{{{matching(self.gpu)}{',' + own if own else ''}}}"] = text
        return found
