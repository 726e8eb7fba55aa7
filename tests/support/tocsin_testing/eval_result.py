"""A small result of a backtest with everything that a report can show."""

from __future__ import annotations

from tocsin.forecaster.evaluation.leak import HONEST, LEAK, NOTE
from tocsin.forecaster.evaluation.result import Curve, Figure, ReportSection, ReportTable, Request, Result

RESULT = Result(
    dataset="made",
    protocol="Made up: ten drives, judged within 48 h.",
    source="nowhere, public domain",
    seconds=12.34,
    sections=[
        ReportSection(
            title="Time-disjoint",
            population={"windows": 12345.0, "rows": 120, "base_rate": 0.000412},
            models={
                "hazard": {
                    "roc_auc": Figure(0.9123456, 0.88, 0.94, bar=0.89),
                    "auprc_x_base": Figure(301.5, 250.0, 360.25, bar=330.0),
                    "calibration_error": Figure(0.0213, bar=0.03, least=False),
                    "recall_at_1pct": Figure(1.0, 1.0, 1.0),
                },
                "always healthy": {"roc_auc": Figure(0.5, 0.5, 0.5), "recall_at_1pct": Figure(0.01)},
            },
            tables=[
                ReportTable("Folds", ("from", "rows", "lead"), [("2016-01-01", 60, 12.5), ("2016-07-01", 60, None)])
            ],
            curves=[Curve("Reliability", "stated", "observed", {"hazard": ([0.1, 0.5], [0.2, 0.4])}, diagonal=True)],
            notes=["Half of the drives fail without a sign."],
        ),
        ReportSection(
            title="What a row-random split would have claimed (a leak, not a result)",
            models={
                HONEST: {"roc_auc": Figure(0.56, 0.5, 0.6)},
                LEAK: {"roc_auc": Figure(0.95, 0.9, 0.98), "leak_factor": Figure(float("inf"))},
            },
            notes=[NOTE],
        ),
    ],
    notes=["Ten drives | no fleet."],
)


def run(request: Request) -> Result:
    """As a benchmark module has it; the seed shows in the protocol."""
    return Result(**{**{name: getattr(RESULT, name) for name in RESULT.__slots__}, "protocol": f"Seed {request.seed}."})
