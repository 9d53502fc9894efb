"""Measurements: what the kernels cost, counted without a card and timed with one. Not installed."""
