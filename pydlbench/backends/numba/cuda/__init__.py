"""Kernels for GPUs in Python: a tiled product, direct convolution, pooling."""
