"""Models of failure: one module per family, all behind `tocsin.forecaster.hazard.scorer.Scorer`."""
