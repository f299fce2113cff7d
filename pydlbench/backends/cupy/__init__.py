"""CuPy on GPUs: products by cuBLAS, convolutions lowered to products."""

from pydlbench.backends.capabilities import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="cupy",
    rank=3,
    title="cuBLAS behind im2col: the historical baseline",
    distributions=("cupy-cuda13x", "cupy-cuda12x", "cupy"),
    install="pip install 'pydlbench[cupy]'",
    requires="cupy",
    modes={"cuda": (None,)},
    precisions={"cuda": ("fp32", "tf32", "fp16-tc")},
    start_s=(1.0, 15.0),
)
