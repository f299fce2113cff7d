"""Simple loops on the CPU, compiled by Numba."""

from pydlbench.backends.capabilities import Capabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="numba",
    rank=4,
    title="loops of an afternoon: the hand-written baseline",
    distributions=("numba",),
    install="pip install 'pydlbench[numba]'",
    requires="numba",
    tested="0.68",
    modes={"cpu": (None,)},
    precisions={"cpu": ("fp32",)},
    start_s=(2.0, 25.0),
    fresh_results=True,
    settings=("NUMBA_",),
    # Paths of the GPU's driver, which do not affect results.
    kept_settings=("NUMBA_CUDA_",),
    code_folder="NUMBA_CACHE_DIR",
)
