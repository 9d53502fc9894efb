"""Checks of compiled kernels on any machine. Nothing here is timed."""
