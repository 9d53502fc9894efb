"""Measure compiled kernels on any machine, without a GPU. Nothing here is timed."""
