"""Measurements: the benchmarks that pytest runs, the gauge of compiled kernels, the report."""
