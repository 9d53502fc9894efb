"""Measurements: of one layer, of kernels, of training."""
