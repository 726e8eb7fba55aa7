"""Commands that run beside no service: replay, backtest, training, rehearsal, scan, sizing."""
