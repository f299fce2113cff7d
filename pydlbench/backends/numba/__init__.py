"""Numba: what a competent person writes by hand in an afternoon, on the CPU and on the GPU."""
