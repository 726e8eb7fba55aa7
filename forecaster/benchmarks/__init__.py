"""Recorded data sets and the protocol of each; a module here is a data set that `tocsin backtest` knows."""
