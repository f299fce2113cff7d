"""The suite's own kernels and libraries: oneDNN on CPUs, cuDNN and cuBLASLt on GPUs."""

from pydlbench.backends.capabilities import Capabilities
from pydlbench.words import CPU_LAYER_PRECISIONS, GPU_LAYER_PRECISIONS

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="native",
    rank=0,
    title="oneDNN on CPUs; cuDNN, cuBLASLt and own kernels on GPUs",
    distributions=("pydlbench",),
    install="pip install . (PYDLBENCH_CUDA=1 pip install '.[cuda]' for GPUs)",
    requires=None,
    modes={"cpu": (None,), "cuda": (None,)},
    precisions={"cpu": CPU_LAYER_PRECISIONS, "cuda": GPU_LAYER_PRECISIONS},
    start_s=(1.0, 8.0),
    settings=("DNNL_", "ONEDNN_", "NVIDIA_TF32_"),
    recorded=("PYDLBENCH_GATE", "PYDLBENCH_ONEDNN", "PYDLBENCH_PLAN"),
)
