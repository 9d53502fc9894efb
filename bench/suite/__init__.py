"""The benchmarks: `pytest bench/ --benchmark-only`."""
