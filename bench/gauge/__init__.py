"""What compiled kernels are like, on any machine: nothing here is timed."""
