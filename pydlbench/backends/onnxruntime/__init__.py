"""onnxruntime on the CPU: whole ONNX files, no single layers."""

from pydlbench.backends.capabilities import Capabilities, StepCapabilities

__all__ = ["CAPABILITIES"]

CAPABILITIES = Capabilities(
    name="onnxruntime",
    rank=6,
    title="onnxruntime, of whole ONNX files",
    distributions=("onnxruntime", "onnxruntime-gpu"),
    install="pip install 'pydlbench[onnx]'",
    requires="onnxruntime",
    tested="1.32",
    modes={"cpu": ("optimized", "unoptimized")},
    # The file defines the types of its tensors.
    precisions={"cpu": ("fp32",)},
    start_s=(0.5, 5.0),
    layers=False,
    fresh_results=True,
    settings=("ORT_",),
    steps=StepCapabilities(
        limitation="onnxruntime runs whole files, in their own types: no remedy is tried on a "
        "single node, and no other layout or precision",
    ),
)
