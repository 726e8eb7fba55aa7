"""What `tocsin scoreboard --report` says of each kind of statement."""

from __future__ import annotations

import pytest
from click.testing import CliRunner

from tocsin.cli.main import cli
from tocsin.client.models_pager import PagerReport, StatedBin, StatementScore
from tocsin_testing.fake_service import FakeService, serving

LOW = StatedBin(low=0.0, high=0.2, cases=12, stated=0.1, observed=0.16)


class Reported(FakeService):
    """A service whose report has one kind of statement."""

    def __init__(self, score: StatementScore) -> None:
        super().__init__()
        self._score = score

    def pager_report(self) -> PagerReport:
        return PagerReport(simulated=True, days=1.0, gpus=64, statements=[self._score])


@pytest.mark.parametrize(
    ("score", "said"),
    [
        # What claims nothing states a probability as well, and has an observed share without any claim.
        (
            StatementScore(kind="hot", pending=2, stated=0.1, observed=0.16, bins=[LOW]),
            "  hot: no claim is over, 2 not over, 12 probabilities stated: mean 10 %, observed 16 %, "
            "muted - of the time",
        ),
        (StatementScore(kind="hot", settled=3, right=2), "  hot: 2 of 3 claims right, 0 not over, muted - of the time"),
    ],
)
def test_claims_are_told_apart_from_probabilities_that_claim_nothing(score: StatementScore, said: str) -> None:
    with serving(Reported(score)) as url:
        told = CliRunner().invoke(cli, ["scoreboard", "--report", "--api-url", url], catch_exceptions=False).output
    assert said in told.splitlines()
