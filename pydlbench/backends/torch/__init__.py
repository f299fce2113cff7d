"""PyTorch's operators."""

from pydlbench.backends.capabilities import Capabilities, StepCapabilities
from pydlbench.words import AS_BUILT, INT8_PRECISIONS

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="torch",
    rank=1,
    title="PyTorch's operators",
    distributions=("torch",),
    install="pip install 'pydlbench[torch]'",
    requires="torch",
    tested="2.13",
    modes={"cpu": ("eager", "compiled", "frozen"), "cuda": ("eager", "compiled")},
    on_request=("frozen",),
    precisions={
        "cpu": ("fp32", "bf16", "fp16", *INT8_PRECISIONS),
        "cuda": ("fp32", "tf32", "fp16-tc", "bf16-tc", "fp8-tc", "fp8-tc-fast"),
    },
    start_s=(2.0, 15.0),
    fresh_results=True,
    settings=(
        "TORCH_ALLOW_TF32_",
        "ATEN_CPU_CAPABILITY",
        # These change the compilers' code, or disable them; the row would still have the name of
        # the compiled mode.
        "TORCH_COMPILE_DISABLE",
        "TORCHDYNAMO_",
        "TORCHINDUCTOR_",
    ),
    # The folder of the compilers' cache depends on the machine's disks.
    kept_settings=("TORCHINDUCTOR_CACHE_DIR",),
    preload=("torch", "pydlbench.backends.torch.backend", "pydlbench.backends.torch.steps.step"),
    recorded=("TORCH_LOGS", "PYTORCH_CUDA_ALLOC_CONF", "PYDLBENCH_PROFILER"),
    steps=StepCapabilities(
        layout_words={"nhwc": "channels_last", "nchw": "nchw"},
        makes_calls=True,
        logged_modes=("eager",),
        pads_evenly=True,
        fuses_optimizers=True,
        sparse_tables=True,
        layout_alternatives={
            ("conv2d", "nhwc"): ("nhwc", "nchw"),
            ("conv2d", "nchw"): ("nchw", "nhwc"),
            ("conv2d", AS_BUILT): ("nchw", "nhwc"),
            ("gemm", ""): ("transposed", "plain"),
        },
    ),
)
