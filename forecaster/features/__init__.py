"""Features: one builder for training, backtest and service. docs/features.md lists what it gives and how it is used."""
