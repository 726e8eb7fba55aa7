"""Scorer family ``acme_hazard``: Tocsin's hazard model under the site's own name."""

from __future__ import annotations

from tocsin.forecaster.hazard import scorer_hazard


class AcmeHazard(scorer_hazard.HazardScorer):
    """The same mathematics; a place for the site's own."""

    name = "acme_hazard"


def build(**settings: object) -> AcmeHazard:
    """What the entry point names."""
    return AcmeHazard(scorer_hazard.build(**settings).settings)
