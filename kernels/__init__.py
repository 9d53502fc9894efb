"""Fused back ends of the context layer, on arrays alone: imports torch, triton, numba, numpy and itself."""
