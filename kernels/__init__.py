"""Fused back ends of the context layer. They import only torch, triton, numba and numpy."""
