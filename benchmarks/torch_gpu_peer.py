"""PyTorch's side of a comparison on a GPU: one operator in a CUDA graph, in its own process.

``torch.backends.cudnn.benchmark`` is on, TF32 is allowed in the mode ``tf32`` only. A sample is one
replay of a graph that holds ``inner`` calls, between two CUDA events, as pydlbench times its hot
rows. Requests and replies are JSON lines; an error is a reply too.
"""

from __future__ import annotations

import itertools
import json
import os
import sys
import time

import torch
from torch_peer import BUILD

TYPES = {
    "fp32": torch.float32,
    "tf32": torch.float32,
    "fp16-tc": torch.float16,
    "bf16-tc": torch.bfloat16,
}


class Operator:
    """One call with its operands on the GPU, and the graphs that hold it."""

    def __init__(self, names: dict) -> None:
        self._function = names.pop("f")
        names.pop("stmt")
        self._settings = names.pop("s", ())
        self._arguments = tuple(names.values())
        self._graphs: dict[int, torch.cuda.CUDAGraph] = {}

    def call(self) -> None:
        """Run it once."""
        self._function(*self._arguments, *self._settings)

    def graph(self, inner: int) -> torch.cuda.CUDAGraph:
        """Return the graph of ``inner`` calls, captured when first asked for."""
        if inner not in self._graphs:
            self._graphs.clear()
            side = torch.cuda.Stream()
            side.wait_stream(torch.cuda.current_stream())
            with torch.cuda.stream(side):
                for _ in range(3):  # cudnn.benchmark makes its choice here
                    self.call()
            torch.cuda.current_stream().wait_stream(side)
            graph = torch.cuda.CUDAGraph()
            with torch.cuda.graph(graph):
                for _ in range(inner):
                    self.call()
            self._graphs[inner] = graph
        return self._graphs[inner]

    def seconds(self, samples: int, inner: int, untimed: int) -> list[float]:
        """Time replays, each between two events, the first one behind an untimed replay.

        Nothing waits for the host in between: it is ahead by a whole graph.
        """
        graph = self.graph(inner)
        for _ in range(1 + untimed // inner):
            graph.replay()
        events = [torch.cuda.Event(enable_timing=True) for _ in range(samples + 1)]
        events[0].record()
        for event in events[1:]:
            graph.replay()
            event.record()
        torch.cuda.synchronize()
        pairs = itertools.pairwise(events)
        return [start.elapsed_time(end) / 1e3 / inner for start, end in pairs]


def prepare(ask: dict, device: torch.device) -> Operator:
    """Build the operator that a request describes."""
    tf32 = ask["precision"] == "tf32"
    torch.backends.cudnn.allow_tf32 = tf32
    torch.backends.cuda.matmul.allow_tf32 = tf32
    # pydlbench's modes accumulate in float32.
    torch.backends.cuda.matmul.allow_fp16_reduced_precision_reduction = False
    torch.backends.cuda.matmul.allow_bf16_reduced_precision_reduction = False
    layer = ask["layer"]
    with device:
        names = BUILD[layer["kind"]](layer, ask["pass"], TYPES[ask["precision"]], ask["format"])
    return Operator(names)


def main() -> None:
    """Answer requests on the standard streams."""
    device = torch.device(sys.argv[1])
    torch.cuda.set_device(device)
    torch.backends.cudnn.benchmark = True
    torch.manual_seed(0)
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    operators: dict[int, Operator] = {}
    with torch.inference_mode():
        for line in sys.stdin:
            ask = json.loads(line)
            reply: dict = {}
            try:
                if ask["op"] == "prepare":
                    operators[ask["id"]] = prepare(ask, device)
                elif ask["op"] == "sample":
                    start = time.monotonic()
                    reply["seconds"] = operators[ask["id"]].seconds(
                        ask["samples"], ask["inner"], ask["untimed"]
                    )
                    reply["wall_s"] = time.monotonic() - start
                elif ask["op"] == "release":
                    operators.clear()
                    torch.cuda.empty_cache()
                elif ask["op"] == "describe":
                    reply = {
                        "torch": torch.__version__,
                        "cuda": torch.version.cuda,
                        "cudnn": torch.backends.cudnn.version(),
                    }
            except Exception as error:  # noqa: BLE001 - whatever it is costs one row
                reply = {"error": f"{type(error).__name__}: {error}"}
            print(json.dumps(reply), file=out, flush=True)


if __name__ == "__main__":
    main()
