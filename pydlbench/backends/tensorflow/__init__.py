"""TensorFlow's operators, one at a time in a ``tf.function``."""

from pydlbench.backends.capabilities import Capabilities, StepCapabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="tensorflow",
    rank=2,
    title="TensorFlow's operators",
    distributions=("tensorflow", "tensorflow-cpu", "tensorflow-intel", "tensorflow-macos"),
    install="pip install 'pydlbench[tensorflow]'",
    requires="tensorflow",
    tested="2.21",
    modes={"cpu": ("graph", "xla"), "cuda": ("graph", "xla")},
    precisions={
        "cpu": ("fp32", "bf16", "fp16"),
        "cuda": ("fp32", "tf32", "fp16-tc", "bf16-tc"),
    },
    start_s=(4.0, 25.0),
    fresh_results=True,
    # Its oneDNN logs executions and creations only if this is set when it is loaded.
    log_environment={"ONEDNN_VERBOSE": "2"},
    settings=(
        "TF_ENABLE_ONEDNN_",
        "TF_NUM_INTEROP_THREADS",
        "TF_NUM_INTRAOP_THREADS",
        "TF_XLA_FLAGS",
        "XLA_FLAGS",
    ),
    preload=(
        "tensorflow",
        "pydlbench.backends.tensorflow.backend",
        "pydlbench.backends.tensorflow.steps.step",
    ),
    # Its convolutions have one layout on CPUs.
    steps=StepCapabilities(
        layouts=("nhwc",),
        logged_modes=("graph",),
        layout_alternatives={("gemm", ""): ("plain", "transposed")},
        limitation="a model of your own has no graph: its loss and its copies are not examined; "
        "TensorFlow has neither another layout nor a fused optimizer",
    ),
)
