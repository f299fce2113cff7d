"""The options of ``pydlbench step``."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from pydlbench.cli.options import (
    BATCH,
    BUDGET,
    DEVICE,
    FAIL_ON,
    FEED,
    FRAMEWORK,
    HOW,
    LAYOUT,
    MODE,
    MODEL,
    PHASE,
    PRECISION,
    REPETITIONS,
    SCRIPT,
    WHAT,
    WIDTH,
    ModelOptions,
    TableOutput,
    flag,
    option,
)
from pydlbench.cli.values import (
    choices,
    device_names,
    one_of,
    real,
    splits,
    whole_number,
    wholes,
)
from pydlbench.words import CASTS, PHASES

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Options"]


def _count(least: int) -> Callable[[str, str], int]:
    return partial(whole_number, least=least)


class Options(ModelOptions, TableOutput):
    """The command's options."""

    description = (
        "Check that the steps of PyTorch, TensorFlow and JAX compute the model, then time them "
        "interleaved, or onnxruntime's of an ONNX file; or run a published benchmark's own "
        "protocol and print what its script prints."
    )
    model: str = MODEL(argument="?", default="")
    framework: tuple[str, ...] | None = FRAMEWORK(
        help="torch, tensorflow, jax, or all: the first two (default)"
    )
    mode: tuple[str, ...] | None = MODE()
    phase: tuple[str, ...] = PHASE(
        help=f"{PHASE.help}, or all",
        many=True,
        read=partial(choices, allowed=PHASES, every="all"),
        default=PHASES[:1],
    )
    batch: tuple[int, ...] = BATCH(many=True, read=wholes, default=())
    precision: tuple[str, ...] = PRECISION(
        help=f"{PRECISION.help}, or all", many=True, read=splits, default=("fp32",)
    )
    cast: str | None = option(
        "HOW",
        "below fp32: mixed (weights stay in fp32: autocast; default) or whole",
        group=WHAT,
        read=partial(one_of, allowed=CASTS),
    )
    layout: str | None = LAYOUT()
    # A published script says itself what it is fed: without a default.
    feed: str | None = FEED(default=None)
    device: tuple[str, ...] = DEVICE(
        help="cpu, cuda:N, or both for their ratio; default: the GPU if there is one",
        many=True,
        read=device_names,
        default=(),
    )
    budget: float | None = BUDGET(
        help="sampling time per step in seconds, over all repetitions (10)"
    )
    repetitions: int | None = REPETITIONS()
    width: float | None = WIDTH()
    no_checks: bool = flag("time without checking first", group=HOW)
    trace: str | None = option(
        "FILE",
        "run no step: read one that was recorded, a trace of PyTorch's profiler or of "
        "onnxruntime's, an execution trace, or a log of ONEDNN_VERBOSE=1; .gz or not",
        group=HOW,
        not_in_sweeps="reads a recorded step, it times nothing; nearest: pydlbench step --trace",
    )
    no_trace: bool = flag("do not trace steps: no modules and calls", group=HOW)
    agree: bool = flag(
        "compare the numbers of the two frameworks",
        group=HOW,
        not_in_sweeps="compares numbers, it times nothing; nearest: pydlbench step MODEL --agree",
    )
    protocol: str | None = option(
        "NAME",
        "alexnet-tutorial, mnist-tutorial, cifar10-tutorial, tf-cnn-benchmarks, "
        "deep-learning-benchmark, convnet-benchmarks, convnet-benchmarks-tf",
        group=SCRIPT,
    )
    steps: int | None = option(
        "N", "steps that count; default: the script's", group=SCRIPT, read=_count(1)
    )
    warmup: int | None = option("N", "steps before them", group=SCRIPT, read=_count(0))
    every: int | None = option("N", "steps between two lines", group=SCRIPT, read=_count(1))
    epochs: float | None = option(
        "X",
        "epochs of mnist-tutorial, instead of --steps (10)",
        group=SCRIPT,
        read=partial(real, near="10"),
    )
    quirk: tuple[str, ...] = option(
        "NAME[=off]",
        "switch a known oddity of the script on or off",
        group=SCRIPT,
        many=True,
        read=splits,
        default=(),
    )
    data: str | None = option(
        "DIR", "folder of MNIST's or CIFAR-10's files; default: generated images", group=SCRIPT
    )
    fail_on: tuple[str, float] | None = FAIL_ON()
