"""PyTorch's side of a comparison: one layer, one pass, one memory format, in its own process.

Started by :class:`torch_rows.TorchPeer`. Times are taken with ``torch.utils.benchmark.Timer``, in
the environment that pydlbench's workers get. Requests and replies are JSON lines; an error is a
reply too.
"""

from __future__ import annotations

import json
import os
import sys
import time

import torch
from torch.utils.benchmark import Timer

TYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}
FORMATS = {"nchw": torch.contiguous_format, "nhwc": torch.channels_last}


def conv2d(layer: dict, pass_: str, dtype: torch.dtype, memory_format: str) -> dict:
    """Return operands and statement of a convolution; asymmetric padding is not timed."""
    like = FORMATS[memory_format]
    groups = layer["groups"]
    source = torch.rand(layer["batch"], layer["in_channels"], *layer["in_size"])
    weights = torch.rand(
        layer["out_channels"],
        layer["in_channels"] // groups,
        *layer["kernel"],
    )
    padding = layer["pad_before"]
    if padding != layer["pad_after"]:
        # PyTorch has no asymmetric padding in the operator: the padded input is prepared, untimed.
        (top, left), (bottom, right) = padding, layer["pad_after"]
        sides = (left, right, top, bottom)
        source = torch.nn.functional.pad(source, sides)
        padding = [0, 0]
    x = (source * 2 - 1).to(dtype).contiguous(memory_format=like)
    w = (weights * 2 - 1).to(dtype).contiguous(memory_format=like)
    stride, dilation = layer["stride"], layer["dilation"]
    settings = (None, stride, padding, dilation, groups)
    if pass_ == "forward":
        return {"stmt": "f(x, w, *s)", "f": torch.conv2d, "x": x, "w": w, "s": settings}
    y = torch.conv2d(x, w, *settings)
    g = torch.rand_like(y)
    mask = [pass_ == "backward-data", pass_ == "backward-weights", False]
    rest = ([0], stride, padding, dilation, False, [0, 0], groups, mask)
    f = torch.ops.aten.convolution_backward
    return {"stmt": "f(g, x, w, *s)", "f": f, "g": g, "x": x, "w": w, "s": rest}


def gemm(layer: dict, pass_: str, dtype: torch.dtype, memory_format: str) -> dict:
    """Return operands and statement of a product; the format is the layout of its weights."""
    x = (torch.rand(layer["m"], layer["k"]) * 2 - 1).to(dtype)
    g = (torch.rand(layer["m"], layer["n"]) * 2 - 1).to(dtype)
    w = (torch.rand(layer["k"], layer["n"]) * 2 - 1).to(dtype)
    if memory_format == "nchw":  # as torch.nn.Linear keeps them: (out, in)
        w = w.t().contiguous().t()
    operands = {
        "forward": (x, w),
        "backward-data": (g, w.t()),
        "backward-weights": (g.t(), x) if memory_format == "nchw" else (x.t(), g),
    }[pass_]
    return {"stmt": "f(a, b)", "f": torch.mm, "a": operands[0], "b": operands[1]}


def pool2d(layer: dict, pass_: str, dtype: torch.dtype, memory_format: str) -> dict:
    """Return operands and statement of a pooling."""
    like = FORMATS[memory_format]
    x = torch.rand(layer["batch"], layer["channels"], *layer["in_size"])
    x = (x * 2 - 1).to(dtype).contiguous(memory_format=like)
    window, stride, padding = layer["kernel"], layer["stride"], layer["pad_before"]
    aten = torch.ops.aten
    if layer["mode"] == "max":
        settings = (window, stride, padding, [1, 1], False)
        if pass_ == "forward":
            return {"stmt": "f(x, *s)", "f": torch.max_pool2d, "x": x, "s": settings}
        y, indices = aten.max_pool2d_with_indices(x, *settings)
        rest = (*settings, indices)
        f = aten.max_pool2d_with_indices_backward
    else:
        settings = (window, stride, padding, False, layer["count_include_pad"])
        if pass_ == "forward":
            return {"stmt": "f(x, *s)", "f": aten.avg_pool2d, "x": x, "s": settings}
        y = aten.avg_pool2d(x, *settings)
        rest = (*settings, None)
        f = aten.avg_pool2d_backward
    return {"stmt": "f(g, x, *s)", "f": f, "g": torch.rand_like(y), "x": x, "s": rest}


BUILD = {"conv2d": conv2d, "gemm": gemm, "pool2d": pool2d}


class Operator:
    """A call that is timed by PyTorch's own timer.

    Args:
        names: its statement under ``stmt``, and what stands in it.
    """

    def __init__(self, names: dict) -> None:
        statement = names.pop("stmt")
        self._timer = Timer(statement, globals=names, num_threads=torch.get_num_threads())

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Return samples, each the mean of ``inner`` calls, after untimed ones."""
        if untimed:
            self._timer.timeit(untimed)
        return [self._timer.timeit(inner).raw_times[0] / inner for _ in range(samples)]


def prepare(ask: dict) -> Operator:
    """Build the operator that a request describes."""
    layer = ask["layer"]
    return Operator(
        BUILD[layer["kind"]](layer, ask["pass"], TYPES[ask["precision"]], ask["format"])
    )


def answer(ask: dict, operators: dict[int, Operator]) -> dict:
    """Return the reply to a request."""
    if ask["op"] == "prepare":
        operators[ask["id"]] = prepare(ask)
    elif ask["op"] == "sample":
        start = time.monotonic()
        seconds = operators[ask["id"]].seconds(ask["samples"], ask["inner"], ask["untimed"])
        return {"seconds": seconds, "wall_s": time.monotonic() - start}
    elif ask["op"] == "release":
        operators.clear()
    elif ask["op"] == "describe":
        return {"torch": torch.__version__, "config": torch.__config__.show()}
    return {}


def main() -> None:
    """Answer requests on the standard streams."""
    cpus = json.loads(sys.argv[1])
    torch.manual_seed(0)
    os.sched_setaffinity(0, cpus)
    torch.set_num_threads(len(cpus))
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    operators: dict[int, Operator] = {}
    with torch.inference_mode():
        for line in sys.stdin:
            try:
                reply = answer(json.loads(line), operators)
            except Exception as error:  # noqa: BLE001 - whatever it is costs one row
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
