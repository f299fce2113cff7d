"""The options of ``pydlbench step``."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

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

__all__ = ["StepOptions"]


def _count(least: int) -> Callable[[str, str], int]:
    return partial(whole_number, least=least)


class StepOptions(ModelOptions, TableOutput):
    """The command's options."""

    description = (
        "Time real steps of a model in PyTorch, TensorFlow or JAX, or of an ONNX file in "
        "onnxruntime, and list the modules and calls that dominate. Steps are timed in turn, each "
        "in new processes; in the first its framework is checked to compute the model. With "
        "--protocol, run a published benchmark as its script does and print what that prints."
    )
    model: str = MODEL(argument="?", default="")
    framework: tuple[str, ...] | None = FRAMEWORK(
        help="torch, tensorflow, jax, or all; default: torch and tensorflow"
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
        "of bf16 and fp16: mixed (default; autocast, weights stay in fp32) or whole (weights, too)",
        group=WHAT,
        read=partial(one_of, allowed=CASTS),
    )
    layout: str | None = LAYOUT()
    # No default, because a published script defines its own.
    feed: str | None = FEED(default=None)
    device: tuple[str, ...] = DEVICE(
        help="cpu or cuda:N, or both (cpu,cuda:0) for their ratio; default: the GPU if there is "
        "one",
        many=True,
        read=device_names,
        default=(),
    )
    budget: float | None = BUDGET(
        help="sampling time in seconds per row, over all repetitions (default: 10)"
    )
    repetitions: int | None = REPETITIONS()
    width: float | None = WIDTH()
    no_checks: bool = flag("do not check first that the steps compute the model", group=HOW)
    no_trace: bool = flag("do not trace a step: no table of modules and calls", group=HOW)
    agree: bool = flag(
        "compare what two frameworks compute: outputs and gradients",
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
        "N", "steps that are timed; default: as the script", group=SCRIPT, read=_count(1)
    )
    warmup: int | None = option(
        "N", "steps before those that are timed", group=SCRIPT, read=_count(0)
    )
    every: int | None = option("N", "steps between two printed lines", group=SCRIPT, read=_count(1))
    epochs: float | None = option(
        "X",
        "epochs of mnist-tutorial, instead of --steps (default: 10)",
        group=SCRIPT,
        read=partial(real, near="10"),
    )
    quirk: tuple[str, ...] = option(
        "NAME[=off]",
        "switch a known peculiarity of the script on or off",
        group=SCRIPT,
        many=True,
        read=splits,
        default=(),
    )
    data: str | None = option(
        "DIR", "folder with the files of MNIST or CIFAR-10; default: generated images", group=SCRIPT
    )
    fail_on: tuple[str, float] | None = FAIL_ON()
