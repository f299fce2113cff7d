"""Counts how often a swap in a step saves what its calls alone foretold.

    python benchmarks/swaps.py --md swaps.md                 # all 20 swaps
    python benchmarks/swaps.py --runs 2 --json swaps.json    # the next two; in slices
    python benchmarks/swaps.py --runs 0 --json swaps.json --md swaps.md

Each swap puts a slower or faster kernel, of NumPy, PyTorch or Numba, into a step of mnist, cifar10
or a small transformer. The calls alone foretold right if the saving of the step lies in their
interval (``in``), or differs by no more than both intervals together allow (``near``). It cannot be
told if the step's interval has both zero and what was foretold, so steps are short. Beside it
stands what the calls save at their places in the step. With --json each answer is added to a file
at once, and swaps that it has are not measured again. Run it alone on the machine.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import pydlbench
from pydlbench.compare.swaps import AT_PLACE
from pydlbench.report.text import markdown_table
from pydlbench.units import format_seconds

SOURCE = """
import numpy as np
import torch
import torch.nn.functional as F
from torch import nn

def host(x):
    return x.detach().numpy()

def relu_numpy(x):
    return torch.from_numpy(np.maximum(host(x), 0))

def relu_slow(x):
    return torch.where(x > 0, x, torch.zeros_like(x)) * 1.0

def relu_inplace_slow(x):
    return x.copy_(torch.clamp_min(x * 1.0, 0))

def relu_inplace_numpy(x):
    np.maximum(host(x), 0, out=host(x))
    return x

def relu_numba(x):
    from numba import njit, prange
    global _kernel
    if "_kernel" not in globals():
        @njit(parallel=False)
        def _kernel(a, b):
            for i in range(a.size):
                b[i] = a[i] if a[i] > 0 else 0.0
    out = torch.empty_like(x)
    _kernel(host(x).reshape(-1), out.numpy().reshape(-1))
    return out

def gelu_slow(x, approximate="none"):
    return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))

def softmax_slow(x, dim, half_to_float):
    shifted = (x - x.amax(dim, keepdim=True)).exp()
    return shifted / shifted.sum(dim, keepdim=True)

def softmax_numpy(x, dim, half_to_float):
    a = host(x)
    e = np.exp(a - a.max(dim, keepdims=True))
    return torch.from_numpy(e / e.sum(dim, keepdims=True))

def norm_slow(x, shape, weight, bias, eps):
    dims = tuple(range(-len(shape), 0))
    mean = x.mean(dims, keepdim=True)
    rstd = (x.var(dims, keepdim=True, unbiased=False) + eps).rsqrt()
    return (x - mean) * rstd * weight + bias, mean, rstd

def addmm_slow(bias, a, b, beta=1, alpha=1):
    return torch.mm(a, b) + bias

def addmm_numpy(bias, a, b, beta=1, alpha=1):
    return torch.from_numpy(host(a) @ host(b) + host(bias))

def mm_numpy(a, b):
    return torch.from_numpy(host(a) @ host(b))

def mm_split(a, b):
    half = a.shape[0] // 2
    return torch.cat([torch.mm(a[:half], b), torch.mm(a[half:], b)])

def bmm_loop(a, b):
    return torch.stack([torch.mm(x, y) for x, y in zip(a, b)])

class Slow(nn.Module):
    def forward(self, x):
        return x * 0.5 * (1 + torch.erf(x * 0.7071067811865476))

def gelu_module(module):
    return Slow()

class Merged(nn.Module):
    def __init__(self, other):
        super().__init__()
        self.weight, self.bias = other.weight, other.bias

    def forward(self, x):
        return torch.addmm(self.bias, x.flatten(0, -2), self.weight.t()).view(*x.shape[:-1], -1)

class Block(nn.Module):
    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.one, self.two = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.out = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)
        self.gelu = nn.GELU()

    def forward(self, x):
        shape = (*x.shape[:2], 3 * self.heads, -1)
        q, k, v = self.qkv(self.one(x)).view(shape).transpose(1, 2).chunk(3, 1)
        scores = torch.softmax(q @ k.mT * q.shape[-1] ** -0.5, -1)
        x = x + self.out((scores @ v).transpose(1, 2).flatten(2))
        return x + self.down(self.gelu(self.up(self.two(x))))

def transformer():
    torch.manual_seed(0)
    return nn.Sequential(*(Block(256, 8) for _ in range(2))), torch.randn(4, 128, 256)

def perceptron():
    torch.manual_seed(0)
    layers = [layer for _ in range(4) for layer in (nn.Linear(1024, 1024), nn.ReLU())]
    return nn.Sequential(*layers), torch.randn(128, 1024)
"""
#: Model, target, kernel and phase of each swap.
SWAPS = [
    ("transformer", "aten.gelu", "gelu_slow", "forward"),
    ("transformer", "aten.gelu", "gelu_slow", "training"),
    ("transformer", "aten._softmax", "softmax_slow", "forward"),
    ("transformer", "aten._softmax", "softmax_numpy", "training"),
    ("transformer", "aten.native_layer_norm", "norm_slow", "forward"),
    ("transformer", "aten.native_layer_norm", "norm_slow", "training"),
    ("transformer", "aten.addmm", "addmm_slow", "forward"),
    ("transformer", "aten.addmm", "addmm_numpy", "training"),
    ("transformer", "aten.mm", "mm_split", "training"),
    ("transformer", "aten.bmm", "bmm_loop", "forward"),
    ("transformer", "module:GELU", "gelu_module", "training"),
    ("transformer", "module:Linear", "Merged", "forward"),
    ("perceptron", "aten.relu", "relu_numpy", "forward"),
    ("perceptron", "aten.relu", "relu_slow", "training"),
    ("perceptron", "aten.relu", "relu_numba", "forward"),
    ("perceptron", "aten.mm", "mm_numpy", "training"),
    ("mnist", "aten.relu_", "relu_inplace_slow", "training"),
    ("mnist", "aten.addmm", "addmm_slow", "forward"),
    ("cifar10", "aten.relu_", "relu_inplace_numpy", "forward"),
    ("cifar10", "aten.relu_", "relu_inplace_slow", "training"),
]


def saving(swap: tuple[str, ...], file: Path, **sampling: Any) -> dict[str, Any]:
    """Return what a swap saves, as the comparison has it, and the seconds that this took."""
    started = time.perf_counter()
    model, target, kernel, phase = swap
    name = model if model in ("mnist", "cifar10") else f"{file}:{model}"
    options = {"swap": f"{target}={file}:{kernel}", "phase": phase, **sampling}
    document = pydlbench.compare_models(name, name, **options)
    assert document.change is not None
    assert document.change.swap is not None
    return {**document.change.swap.to_dict(), "seconds": time.perf_counter() - started}


def line(swap: tuple[str, ...], found: dict[str, Any]) -> list[str]:
    """Return the table's line of a swap."""
    foretold, step = found["foretold"], found["step"]

    def between(term: dict[str, Any]) -> str:
        ends = " .. ".join(format_seconds(term[end]) for end in ("ci_low", "ci_high"))
        return f"{format_seconds(term['saved_s'])} ({ends})"

    within = foretold["ci_low"] <= step["saved_s"] <= foretold["ci_high"]
    place = [each["saved_s"] for each in found["between"] if each["term"] == AT_PLACE]
    told = {True: "in" if within else "near", False: "out", None: "not told"}
    return [
        *swap,
        between(foretold),
        format_seconds(foretold["saved_s"] + place[0]) if place else "-",
        between(step),
        format_seconds(found["dispatch"]["saved_s"]),
        told[found["as_foretold"]],
        f"{found['seconds']:.0f} s",
    ]


def main() -> None:
    """Run the next swaps, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=len(SWAPS), help="swaps to measure")
    parser.add_argument("--repetitions", type=int, default=10, help="processes of each side")
    parser.add_argument("--budget", type=float, default=0.25, help="seconds of sampling in each")
    parser.add_argument("--json", help="file to which the answers are added")
    parser.add_argument("--md", help="file to write the table into")
    given = parser.parse_args()
    # Numba imports a library that has the name of a file here.
    sys.path[:] = [place for place in sys.path if Path(place) != Path(__file__).parent]
    answers: list[tuple[list[str], dict[str, Any]]] = []
    if given.json and Path(given.json).exists():
        answers += json.loads(Path(given.json).read_text(encoding="utf-8"))
    pending = [swap for swap in SWAPS if [*swap] not in [known for known, _ in answers]]
    with tempfile.TemporaryDirectory() as folder:
        file = Path(folder) / "swapped_kernels.py"
        file.write_text(SOURCE, encoding="utf-8")
        for swap in pending[: given.runs]:
            sampling = {"repetitions": given.repetitions, "budget": given.budget}
            answers.append(([*swap], saving(swap, file, **sampling)))
            print(*line(*answers[-1]), sep="  ", flush=True)
            if given.json:
                Path(given.json).write_text(json.dumps(answers), encoding="utf-8")
    rows = [line(tuple(swap), found) for swap, found in answers]
    titles = [
        "model",
        "target",
        "kernel",
        "phase",
        "foretold",
        "calls in the step",
        "step",
        "dispatch",
        "told",
        "seconds",
    ]
    told = [row[-2] for row in rows]
    table = markdown_table(titles, rows)
    table += (
        f"\n{told.count('in')} in, {told.count('near')} near, of "
        f"{len(told) - told.count('not told')} that could be told"
    )
    print(table)
    if given.md:
        Path(given.md).write_text(f"{table}\n", encoding="utf-8")


if __name__ == "__main__":
    main()
