"""Frameworks' rows beside each framework's own benchmark tool, on the same problems, interleaved.

    python benchmarks/rows_vs_tools.py --framework torch --md page.md

A row of ``layers`` and the statement that a user would time run in two processes with the same
environment. The tool is ``torch.utils.benchmark`` for PyTorch, and ``timeit`` for TensorFlow (calls
of a ``tf.function`` on a CPU return with their results) and for JAX (``block_until_ready``). Both
are sampled in turn, round by round in random order; new processes start with each repetition. The
ratio is row / tool, the median over all rounds; ``between`` has the lowest and the highest median
of a repetition. Problems whose ratio is outside of the limits are measured once more with one thing
changed in the tool's process (:data:`EXPERIMENTS`), which shows the reason. With ``--steps``, rows
of activations are held against the same statement as a step runs it (:data:`STEPS`). Exit 1 if a
ratio is still outside of the limits.
"""

from __future__ import annotations

import argparse
import math
import re
import statistics
import sys
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from torch_rows import TorchPeer, rested

from pydlbench.errors import PydlbenchError
from pydlbench.models.catalog import find_layers
from pydlbench.records.measurement import KernelSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
from pydlbench.study.estimate import contrast
from pydlbench.study.loop import Study, Subject, random_order
from pydlbench.timing.policy import Policy

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.timing.chunk import Chunk, ChunkRequest

#: Ratios of row and tool that count as agreement.
LIMITS: Final = (0.97, 1.03)
_CODE: Final = Path(__file__).with_name("tool_peer.py")


@dataclass(frozen=True)
class Comparison:
    """A problem, and the expression that a user of a framework would time.

    Attributes:
        shape: descriptor of the problem.
        shapes: shapes of the expression's tensors ``x``, ``y``, ``z``; images as NCHW.
        torch: expression in PyTorch, whose functions are ``F`` and ``torch``; likewise the others.
        tensorflow: expression in TensorFlow (``tf``), with images as NHWC.
        jax: expression in JAX (``jax``, ``jnp``), with images as NHWC.
        gradient: whether it is a backward pass by the data.
        pool: kind of a pooling.
        largest: largest magnitude of the values, as pydlbench chooses it for the operation.
    """

    shape: str
    shapes: tuple[str, ...]
    torch: str
    tensorflow: str = ""
    jax: str = ""
    gradient: bool = False
    pool: str | None = None
    largest: int = 1


_IMAGES: Final = "16,64,56,56"
_SAME: Final = "(1, 1), 'SAME', dimension_numbers=('NHWC', 'HWIO', 'NHWC')"
#: The problems: memory-bound ones of several sizes, and products.
COMPARISONS: Final = (
    Comparison(
        "relu:mb1ic64ih56", ("1,64,56,56",), "torch.relu(x)", "tf.nn.relu(x)", "jax.nn.relu(x)"
    ),
    Comparison("relu:mb16ic64ih56", (_IMAGES,), "torch.relu(x)", "tf.nn.relu(x)", "jax.nn.relu(x)"),
    Comparison(
        "relu:mb64ic64ih56", ("64,64,56,56",), "torch.relu(x)", "tf.nn.relu(x)", "jax.nn.relu(x)"
    ),
    Comparison(
        "relu:mb16ic64ih56",
        (_IMAGES, _IMAGES),
        "torch.ops.aten.threshold_backward(x, y, 0)",
        "tf.raw_ops.ReluGrad(gradients=x, features=y)",
        "jnp.where(y > 0, x, 0)",
        gradient=True,
    ),
    Comparison(
        "silu:mb16ic64ih56", (_IMAGES,), "F.silu(x)", "tf.nn.silu(x)", "jax.nn.silu(x)", largest=8
    ),
    Comparison(
        "gelu:mb8ic128ih1iw3072",
        ("8,128,1,3072",),
        "F.gelu(x)",
        "tf.nn.gelu(x)",
        "jax.nn.gelu(x, approximate=False)",
        largest=8,
    ),
    Comparison(
        "sigmoid:mb64ic64ih56",
        ("64,64,56,56",),
        "torch.sigmoid(x)",
        "tf.sigmoid(x)",
        "jax.nn.sigmoid(x)",
        largest=8,
    ),
    Comparison(
        "tanh:mb8ic128ih1iw768",
        ("8,128,1,768",),
        "torch.tanh(x)",
        "tf.tanh(x)",
        "jnp.tanh(x)",
        largest=8,
    ),
    Comparison("add:mb16ic64ih56", (_IMAGES, _IMAGES), "x + y", "x + y", "x + y"),
    Comparison(
        "bias:mb16ic64ih56",
        (_IMAGES, "64"),
        "x + y.reshape(1, -1, 1, 1)",
        "tf.nn.bias_add(x, y)",
        "x + y",
    ),
    Comparison(
        "softmax:mb8ic12ih128iw128",
        ("8,12,128,128",),
        "torch.softmax(x, -1)",
        "tf.nn.softmax(x)",
        "jax.nn.softmax(x)",
    ),
    Comparison(
        "layernorm:mb8ic128ih1iw768",
        ("8,128,1,768", "768", "768"),
        "F.layer_norm(x, (768,), y, z)",
        "tf.nn.batch_normalization(x, *tf.nn.moments(x, [-1], keepdims=True), z, y, 1e-5)",
        "(x - jnp.mean(x, -1, keepdims=True)) * jax.lax.rsqrt(jnp.mean(x * x, -1, keepdims=True)"
        " - jnp.mean(x, -1, keepdims=True) ** 2 + 1e-5) * y + z",
    ),
    Comparison(
        "log-softmax:mb64ic1ih1iw1000",
        ("64,1,1,1000",),
        "torch.log_softmax(x, -1)",
        "tf.nn.log_softmax(x)",
        "jax.nn.log_softmax(x)",
    ),
    Comparison(
        "mb16ic64ih112kh3sh2ph1",
        ("16,64,112,112",),
        "F.max_pool2d(x, 3, 2, 1)",
        "tf.nn.max_pool2d(x, 3, 2, [[0, 0], [1, 1], [1, 1], [0, 0]])",
        "jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 3, 3, 1), (1, 2, 2, 1),"
        " ((0, 0), (1, 1), (1, 1), (0, 0)))",
        pool="max",
    ),
    Comparison(
        "mb16ic64ih56kh2sh2ph0",
        (_IMAGES,),
        "F.avg_pool2d(x, 2)",
        "tf.nn.avg_pool2d(x, 2, 2, 'VALID')",
        "jax.lax.reduce_window(x, 0., jax.lax.add, (1, 2, 2, 1), (1, 2, 2, 1), 'VALID') / 4",
        pool="avg",
    ),
    Comparison("reduction:mean:8x128x768:8x128x1", ("8,128,768",), "torch.mean(x, -1, True)"),
    Comparison(
        "move:permute:8x128x12x64by0213", ("8,128,12,64",), "x.permute(0, 2, 1, 3).contiguous()"
    ),
    Comparison(
        "mb16ic64ih56oc64kh3ph1",
        (_IMAGES, "64,64,3,3"),
        "F.conv2d(x, y, padding=1)",
        "tf.nn.conv2d(x, y, 1, 'SAME')",
        f"jax.lax.conv_general_dilated(x, y, {_SAME})",
    ),
    Comparison(
        "mb16ic64ih56oc256kh1",
        (_IMAGES, "256,64,1,1"),
        "F.conv2d(x, y)",
        "tf.nn.conv2d(x, y, 1, 'VALID')",
        f"jax.lax.conv_general_dilated(x, y, {_SAME})",
    ),
    Comparison(
        "g64mb16ic64ih56oc64kh3ph1",
        (_IMAGES, "64,1,3,3"),
        "F.conv2d(x, y, padding=1, groups=64)",
        "tf.nn.depthwise_conv2d(x, y, (1, 1, 1, 1), 'SAME')",
        f"jax.lax.conv_general_dilated(x, y, {_SAME}, feature_group_count=64)",
    ),
    Comparison("1024x1024:1024x1024wtagkn", ("1024,1024", "1024,1024"), "x @ y", "x @ y", "x @ y"),
    Comparison("96x128x64:96x64x128wtagkn", ("96,128,64", "96,64,128"), "x @ y", "x @ y", "x @ y"),
)


# -----------------------------------------------------------------------------
# Statements.

#: Calls of a statement that runs as in a step.
_CALLS: Final = 8
#: How a step runs an operation whose result is as large as its operand: by a description, code.
STEPS: Final = {
    "a forward step: eight in turn, each on the result before it, which is then dropped": (
        "t = x\nfor _ in range({calls}):\n    t = {call}"
    ),
    "a training step: eight in turn, each on the result before it, and all results are kept": (
        "kept = [x]\nfor _ in range({calls}):\n    t = kept[-1]\n    kept.append({call})"
    ),
}
_ACTIVATIONS: Final = ("relu", "silu", "gelu", "sigmoid", "tanh")


def _shapes(comparison: Comparison, framework: str) -> list[str]:
    """Return the shapes of an expression's tensors in the framework's usual layout."""
    (layer,) = find_layers([comparison.shape], pool=comparison.pool)
    shapes = [text.split(",") for text in comparison.shapes]
    images = layer.kind in ("conv2d", "pool2d") or getattr(layer, "op", "") == "bias"
    if framework != "torch" and images:
        n, c, h, w = shapes[0]
        shapes[0] = [n, h, w, c]
        if layer.kind == "conv2d":
            out, channels, height, width = shapes[1]
            depthwise = framework == "tensorflow" and layer.groups > 1
            filters = [out, channels] if depthwise else [channels, out]
            shapes[1] = [height, width, *filters]
    return [", ".join(shape) for shape in shapes]


def in_step(problem: Comparison, framework: str, step: str) -> dict[str, str | int]:
    """Return the statement of an activation and its setup, as a step runs it."""
    alone = statement(problem, framework)
    call = re.sub(r"\bx\b", "t", alone["statement"])
    return {**alone, "statement": STEPS[step].format(calls=_CALLS, call=call), "calls": _CALLS}


def statement(comparison: Comparison, framework: str) -> dict[str, str]:
    """Return the statement of a problem and its setup, as a user would write them."""
    expression = getattr(comparison, framework)
    shapes = dict(zip("xyz", _shapes(comparison, framework), strict=False))
    names, largest = ", ".join(shapes), comparison.largest
    if framework == "torch":
        head = "import torch; import torch.nn.functional as F"
        tensors = [
            f"{name} = (torch.rand({shape}) * 2 - 1) * {largest}" for name, shape in shapes.items()
        ]
        return {"setup": "\n".join([head, *tensors]), "statement": expression}
    if framework == "tensorflow":
        head = "import tensorflow as tf"
        tensors = [
            f"{name} = tf.random.uniform([{shape}], -{largest}, {largest})"
            for name, shape in shapes.items()
        ]
        make = f"f = tf.function(lambda {names}: {expression}, autograph=False)"
        return {"setup": "\n".join([head, *tensors, make]), "statement": f"f({names})"}
    head = "import jax; import jax.numpy as jnp; key = jax.random.key(0)"
    tensors = [
        f"{name} = jax.random.uniform(key, ({shape},), minval=-{largest}, maxval={largest})"
        for name, shape in shapes.items()
    ]
    make = f"f = jax.jit(lambda {names}: {expression})"
    run = f"jax.block_until_ready(f({names}))"
    return {"setup": "\n".join([head, *tensors, make]), "statement": run}


@dataclass(frozen=True)
class Experiment:
    """What the tool's process does first where row and tool differ, to show the reason.

    Attributes:
        what: continues the sentence "the tool's process".
        code: Python code.
    """

    what: str
    code: str


_ADAPTED: Final = Experiment(
    "has freed a large block first, as the row's process has",
    "from pydlbench.backends.frameworks.backend import adapt_allocator; adapt_allocator()",
)
EXPERIMENTS: Final = {
    "torch": _ADAPTED,
    "tensorflow": _ADAPTED,
    "jax": Experiment(
        "dispatches synchronously and has freed a large block first, as the row's process",
        "import jax; jax.config.update('jax_cpu_enable_async_dispatch', False); " + _ADAPTED.code,
    ),
}
MODES: Final = {"torch": "eager", "tensorflow": "graph", "jax": None}
LAYOUTS: Final = {"torch": "nchw", "tensorflow": "nhwc", "jax": "nhwc"}


def spec_of(comparison: Comparison, framework: str) -> KernelSpec:
    """Return the request of a problem's row, in the layout of the statement."""
    (layer,) = find_layers([comparison.shape], pool=comparison.pool)
    images = layer.kind != "gemm" and layer.kind not in ("reduction", "move")
    return KernelSpec(
        layer=layer,
        pass_="backward-data" if comparison.gradient else "forward",
        backend=framework,
        mode=MODES[framework],
        layout=LAYOUTS[framework] if images else "best",
    )


# -----------------------------------------------------------------------------
# Samples.


@dataclass
class Row:
    """Medians of all repetitions of a problem.

    Attributes:
        name: descriptor and pass.
        row_s: median seconds of our row in each repetition.
        tool_s: median seconds of the framework's tool in each repetition.
        ratios: median over rounds of row / tool in each repetition.
        faults: page faults per call, of row and tool, in the last repetition.
    """

    name: str
    row_s: list[float] = field(default_factory=list)
    tool_s: list[float] = field(default_factory=list)
    ratios: list[float] = field(default_factory=list)
    faults: tuple[float, float] = (0.0, 0.0)

    @property
    def ratio(self) -> float:
        """The median over repetitions."""
        return statistics.median(self.ratios)

    @property
    def cells(self) -> list[str]:
        """The row as text."""
        row, tool = (f"{statistics.median(s) * 1e3:.3f} ms" for s in (self.row_s, self.tool_s))
        between = f"{min(self.ratios):.3f} to {max(self.ratios):.3f}"
        faults = f"{self.faults[0]:.0f}, {self.faults[1]:.0f}"
        return [self.name, row, tool, f"{self.ratio:.3f}", between, faults]


TITLES: Final = ("problem", "row", "tool", "row / tool", "between", "faults per call")


class _Faults:
    """A sampler that keeps the page faults of its last chunk."""

    def __init__(self, sample: Callable[[ChunkRequest], Chunk]) -> None:
        self._sample, self.faults = rested(sample), 0.0

    def __call__(self, request: ChunkRequest) -> Chunk:
        chunk = self._sample(request)
        self.faults = chunk.faults or 0.0
        return chunk


def repeat(
    rows: dict[Comparison, Row],
    framework: str,
    before: str,
    rounds: int,
    seed: int,
    errors: dict[str, str],
    step: str = "",
) -> str:
    """Measure all problems once in new processes; return the framework's version."""
    policy = Policy(budget_s=1.0, chunk_s=0.03, min_sample_s=0.005)
    with Session(RunnerOptions(seed=seed)) as session:
        command = (sys.executable, str(_CODE), framework)
        with TorchPeer(session.cpus, command) as peer:
            peer.ask(op="run", code=before)
            for comparison, row in rows.items():
                try:
                    kernel = session.prepare(spec_of(comparison, framework))
                    code = statement(comparison, framework)
                    code = in_step(comparison, framework, step) if step else code
                    peer.ask(op="prepare", id=0, **code)
                    samplers = _Faults(kernel.sample), _Faults(partial(peer.sample, 0))
                    study = Study(random_order(seed))
                    subjects = [
                        Subject(key=number, sample=sampler, policy=policy)
                        for number, sampler in enumerate(samplers)
                    ]
                    for error in study.take(subjects, rounds=rounds).values():
                        raise error
                    kernel.release()
                    peer.ask(op="release")
                except PydlbenchError as error:
                    errors[row.name] = str(error)
                    continue
                ours, tool = study.table.series(0), study.table.series(1)
                ratio = contrast(ours, tool)
                assert ratio is not None, "they shared all rounds"
                row.row_s.append(ours.median)
                row.tool_s.append(tool.median)
                row.ratios.append(ratio.median)
                row.faults = samplers[0].faults, samplers[1].faults
            return str(peer.ask(op="describe")["version"])


def is_close(row: Row) -> bool:
    """Whether a ratio is within the limits."""
    return LIMITS[0] <= row.ratio <= LIMITS[1]


def table(rows: Sequence[Row], ending: str = ".") -> list[str]:
    """Return the conclusion and a table of rows as lines."""
    geomean = math.exp(statistics.fmean(math.log(row.ratio) for row in rows))
    count = f"{sum(map(is_close, rows))} of {len(rows)}"
    return [
        f"{count} ratios row / tool are within {LIMITS}, geometric mean {geomean:.3f}{ending}",
        "",
        "| " + " | ".join(TITLES) + " |",
        "| :--- |" + " ---: |" * (len(TITLES) - 1),
        *("| " + " | ".join(row.cells) + " |" for row in rows),
        "",
    ]


def main() -> int:
    """Compare rows and tools; exit 1 if a ratio stays outside of the limits, or a row fails."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--framework", choices=sorted(MODES), default="torch")
    parser.add_argument("--only", nargs="+", help="texts that descriptors contain")
    parser.add_argument("--repetitions", type=int, default=3, help="with new processes each (3)")
    parser.add_argument("--rounds", type=int, default=5, help="in each repetition (5)")
    parser.add_argument(
        "--set",
        nargs="+",
        default=[],
        metavar="NAME=VALUE",
        help="environment of the tool's process",
    )
    parser.add_argument("--steps", action="store_true", help="activations in a step, too")
    parser.add_argument("--md", type=Path, help="append the tables to this page, too")
    args = parser.parse_args()
    errors: dict[str, str] = {}

    def measure(
        problems: Sequence[Comparison], before: str = "", step: str = ""
    ) -> tuple[list[Row], str]:
        rows = {
            problem: Row(problem.shape + (" backward-data" if problem.gradient else ""))
            for problem in problems
        }
        version = ""
        for number in range(args.repetitions):
            version = repeat(rows, args.framework, before, args.rounds, number, errors, step)
        return [row for row in rows.values() if row.ratios], version

    problems = [
        problem
        for problem in COMPARISONS
        if getattr(problem, args.framework)
        and (not args.only or any(text in problem.shape for text in args.only))
    ]
    rows, version = measure(problems)
    with Session(RunnerOptions()) as session:
        cpu = f"{session.facts.name}, {len(session.cpus)} threads"
    where = f"{cpu}; {args.framework} {version}; {datetime.now(UTC).date()}."
    lines = [f"## {args.framework}", "", where, "", *table(rows)]
    far = {row.name for row in rows if not is_close(row)}
    again = [problem for problem in problems if problem.shape in far]
    if again:
        experiment = EXPERIMENTS[args.framework]
        rows, _ = measure(again, experiment.code)
        lines += table(rows, f", where the tool's process {experiment.what}.")
    activations = [
        problem
        for problem in problems
        if problem.shape.startswith(_ACTIVATIONS) and not problem.gradient
    ]
    for step in STEPS if args.steps and activations else ():
        steps, _ = measure(activations, EXPERIMENTS[args.framework].code, step)
        lines += table(steps, f", beside a call in {step}.")
    lines += [f"{name}: {message}" for name, message in errors.items()]
    print("\n".join(lines))
    if args.md:
        start = (
            args.md.read_text()
            if args.md.exists()
            else "# Rows beside the frameworks' own tools\n\n"
        )
        args.md.write_text(start.rstrip("\n") + "\n\n" + "\n".join(lines).rstrip("\n") + "\n")
    return int(bool(errors) or not rows or not all(map(is_close, rows)))


if __name__ == "__main__":
    raise SystemExit(main())
