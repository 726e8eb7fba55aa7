"""Readers of public data sets and the protocol by which each judges the forecaster; no part of the product."""
