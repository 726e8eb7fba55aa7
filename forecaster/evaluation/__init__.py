"""How predictions are judged: splits that are refused, figures with intervals, and what trivial predictors reach."""
