"""CuPy: cuBLAS behind ``cupy.matmul``, and convolution lowered to it as it was done first."""
