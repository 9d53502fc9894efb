"""Measurements: the pytest benchmarks, the checks of compiled kernels, and the report."""

from lightcake_fast.process import set_environment

set_environment()  # as in training; it must run before anything imports PyTorch
