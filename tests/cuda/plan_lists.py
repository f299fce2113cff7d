"""Run by test_conv2d_plans.py in a process of its own: lists and builds plans for a described GPU.

Arguments: main or unbuilt, the device properties, the libraries cuDNN and cuBLASLt, and the file of
results (JSON). A process of its own, because the driver that cuDNN links to may be a stand-in.
"""

import json
import sys
from pathlib import Path
from typing import Any

from pydlbench import _cuda
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer

PASSES = ("forward-inference", "forward-training", "backward-data", "backward-weights")
MODES = ("fp32", "tf32", "fp16", "fp16-tc", "bf16-tc")
LAYERS = {
    "dense": build_layer(
        "conv", batch=4, in_channels=16, in_size=9, out_channels=24, kernel=3, padding=1
    ),
    "odd": build_layer(
        "conv", batch=1, in_channels=5, in_size=(9, 7), out_channels=7, kernel=(3, 1)
    ),
    "grouped": build_layer(
        "conv", batch=4, in_channels=32, in_size=8, out_channels=32, kernel=3, padding=1, groups=4
    ),
    "depthwise": build_layer(
        "conv", batch=2, in_channels=32, in_size=8, out_channels=32, kernel=3, padding=1, groups=32
    ),
    "dilated": build_layer(
        "conv", batch=2, in_channels=8, in_size=12, out_channels=8, kernel=3, padding=2, dilation=2
    ),
    "asymmetric": build_layer(
        "conv",
        batch=2,
        in_channels=16,
        in_size=14,
        out_channels=8,
        kernel=3,
        stride=2,
        padding=(0, 1, 0, 1),
    ),
}


# Of one side and of three, by kind.
SIDES: dict[str, dict[str, Any]] = {
    "conv1d": {
        "batch": 4,
        "in_channels": 16,
        "out_channels": 24,
        "groups": 1,
        "in_size": [9],
        "out_size": [4],
        "kernel": [3],
        "stride": [2],
        "dilation": [1],
        "pad_before": [0],
        "pad_after": [1],
    },
    "conv3d": {
        "batch": 2,
        "in_channels": 16,
        "out_channels": 24,
        "groups": 1,
        "in_size": [4, 6, 5],
        "out_size": [4, 3, 5],
        "kernel": [3, 3, 1],
        "stride": [1, 2, 1],
        "dilation": [1, 1, 1],
        "pad_before": [1, 1, 0],
        "pad_after": [1, 1, 0],
    },
}


NAMES = ("primitive", "algorithm", "library", "variant", "layout", "accumulate", "tensor_cores")
NAMES += ("notes", "runtime_compiled", "workspace_bytes", "tensors")


def unbuilt(properties_file: str, cudnn: str, cublaslt: str, results_file: str) -> None:
    """Write plans whose kernels are compiled when they are built, which needs a driver."""
    _cuda.load_libraries(cudnn, cublaslt)
    properties = Path(properties_file).read_text(encoding="utf-8")
    attention = {"batch": 2, "heads": 16, "queries": 512, "keys": 512, "size": 64, "value_size": 64}
    cases = {
        f"attention {pass_} {heads} {causal}": (
            "attention",
            pass_,
            "bf16-tc",
            attention | {"kv_heads": heads, "causal": causal},
        )
        for pass_ in ("forward-inference", "backward-data")
        for heads in (16, 4)
        for causal in (False, True)
    }
    dense = LAYERS["dense"].problem_fields()
    cases["int8 dense"] = ("conv2d", "forward-inference", "int8", dense)
    found = {
        name: [
            {fact: getattr(plan, fact) for fact in NAMES}
            for plan in _cuda.plans(None, *case, device_properties=properties)
        ]
        for name, case in cases.items()
    }
    Path(results_file).write_text(json.dumps(found), encoding="utf-8")


def facts(plan: Any) -> dict[str, Any]:
    """Build a plan and return what it says of itself."""
    listed = plan.workspace_bytes
    try:
        seconds = plan.build()
    except (UnsupportedError, PrimitiveError) as error:
        built: dict[str, Any] = {"error": str(error)}
    else:
        built = {"seconds": seconds, "error": None}
    return {**{name: getattr(plan, name) for name in NAMES}, "listed_bytes": listed, **built}


def plans(properties: str, layer: str, pass_: str, mode: str, **options: Any) -> Any:
    """Return the facts of all plans, or the sentence that there are none."""
    kind = layer if layer in SIDES else "conv2d"
    fields = SIDES[layer] if layer in SIDES else LAYERS[layer].problem_fields()
    try:
        found = _cuda.plans(
            None, kind, pass_, mode, fields, device_properties=properties, **options
        )
    except UnsupportedError as error:
        return str(error)
    return [facts(plan) for plan in found]


def main(properties_file: str, cudnn: str, cublaslt: str, results_file: str) -> None:
    """Write all lists that the tests look at."""
    _cuda.load_libraries(cudnn, cublaslt)
    properties = Path(properties_file).read_text(encoding="utf-8")
    turing = properties.replace('"deviceVer": 900', '"deviceVer": 750')
    dense = (properties, "dense", "forward-inference")
    results = {
        "lists": [
            {
                "layer": layer,
                "pass": pass_,
                "mode": mode,
                "plans": plans(properties, layer, pass_, mode),
            }
            for layer in LAYERS
            for pass_ in PASSES
            for mode in MODES
        ],
        "sides": {
            f"{kind} {pass_}": plans(properties, kind, pass_, "tf32")
            for kind in SIDES
            for pass_ in PASSES
        },
        "fused": {mode: plans(*dense, mode, fused=True) for mode in MODES},
        "nhwc": plans(*dense, "fp32", layout="nhwc"),
        "listed only": plans(*dense, "fp32", sweep=False),
        "no workspace": plans(*dense, "fp32", workspace_limit=0),
        "fp8": plans(*dense, "fp8-tc"),
        "fused backward": plans(properties, "dense", "backward-data", "fp32", fused=True),
        "bf16 on Turing": plans(turing, "dense", "forward-inference", "bf16-tc"),
        "too little": plans(
            properties, "dense", "backward-data", "tf32", workspace_limit=0, layout="nchw"
        ),
    }
    Path(results_file).write_text(json.dumps(results), encoding="utf-8")


if __name__ == "__main__":
    {"main": main, "unbuilt": unbuilt}[sys.argv[1]](*sys.argv[2:])
