"""Measurements: the benchmarks that pytest runs, the gauge of compiled kernels, the report."""

from lightcake_fast.process import set_environment

set_environment()  # as in training, and before anything imports PyTorch
