"""TensorFlow's tf_cnn_benchmarks, on one device with synthetic images.

What "images/sec" includes:

============== ==============================================================================
step           training: forward, softmax cross-entropy + 4e-5 of the L2 terms, gradients of all
               weights but not of the images, optimizer (``sgd`` is plain gradient descent)
input          synthetic, in a variable on the device: nothing is fed
host fetch     the loss
times          of every step since the 10 that warm up; each line covers all steps so far
images/sec     batch / mean(times): the harmonic mean of the steps' own rates
+/-            population's standard deviation of those rates / sqrt(steps)
jitter         1.4826 * median(abs(rate - median(rates)))
total          steps * batch / wall time of the loop, with everything between two steps
============== ==============================================================================

``forward-only`` (off) is the script's flag of that name: no gradients, and a loss printed as 0.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Final

from pydlbench.steps.protocols.protocol import Number, Published, Quirk, Settings, StepSpec
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.steps.protocols.protocol import Run

__all__ = ["speeds"]

TRAIN: Final = StepSpec(
    name="train", phase="training", loss="model", optimizer="model", fetch=("loss",)
)
FORWARD: Final = StepSpec(name="forward", phase="forward", propagation="inference")
FORWARD_ONLY: Final = Quirk(
    name="forward-only", what="no gradients and no loss, as with --forward_only", default=False
)
#: Images of the data sets that the script counts epochs by.
_EPOCH: Final = {"imagenet": 1_281_167, "cifar10": 50_000}
_NAMES: Final = {"tensorflow": "TensorFlow", "torch": "PyTorch", "native": "pydlbench"}
_CIFAR_SIZE: Final = 32
_RULE: Final = "-" * 64


def heading(run: Run) -> tuple[str, ...]:
    """Return the lines before the first step, as the script's ``print_info`` writes them."""
    subject, settings = run.subject, run.settings
    dataset = "cifar10" if subject.image[1] == _CIFAR_SIZE else "imagenet"
    steps = settings.steps or 1
    mode = "FORWARD_ONLY" if FORWARD_ONLY.name in settings.quirks else "TRAIN"
    device = "/gpu:" + subject.device.partition(":")[2] if ":" in subject.device else "/cpu:0"
    version = ".".join(subject.version.split(".")[:2])
    rows = (
        (_NAMES.get(subject.framework, subject.framework), version),
        ("Model", subject.model),
        ("Dataset", f"{dataset} (synthetic)"),
        ("Mode", f"BenchmarkMode.{mode}"),
        ("SingleSess", "False"),
        ("Batch size", f"{settings.batch} global"),
        ("", f"{settings.batch} per device"),
        ("Num batches", str(steps)),
        ("Num epochs", f"{steps * settings.batch / _EPOCH[dataset]:.2f}"),
        ("Devices", f"['{device}']"),
        ("Data format", subject.layout),
        ("Optimizer", subject.optimizer),
        ("Variables", "parameter_server"),
    )
    lines = (f"{name + ':' if name else '':<12} {value}" for name, value in rows)
    return (*lines, "==========", "Generating model")


def speeds(batch: int, times: Sequence[float]) -> tuple[float, float, float]:
    """Return images per second, their uncertainty and their jitter, as the script defines them."""
    rates = [batch / time for time in times]
    mean_rate = sum(rates) / len(rates)
    variance = sum((rate - mean_rate) ** 2 for rate in rates) / len(rates)
    middle = median(rates)
    return (
        batch * len(times) / sum(times),
        math.sqrt(variance / len(rates)),
        1.4826 * median(abs(rate - middle) for rate in rates),
    )


def drive(run: Run) -> tuple[Number, ...]:
    """Warm up, then print a line after the first step and every 10 steps, and the total."""
    settings, surroundings = run.settings, run.surroundings
    batch, steps = settings.batch, settings.steps or 1
    spec = FORWARD if FORWARD_ONLY.name in settings.quirks else TRAIN
    for line in heading(run):
        surroundings.write(line)
    run.stepper.initialize()
    step = run.stepper.prepare(spec)
    surroundings.write("Running warm up")
    for _ in range(settings.warmup):
        step()
        run.stepper.synchronize()
    surroundings.write("Done warm up")
    surroundings.write("Step\tImg/sec\ttotal_loss")
    times: list[float] = []
    loop = surroundings.now()
    for index in range(1, steps + 1):
        start = surroundings.now()
        outcome = step()
        if not spec.fetch:
            run.stepper.synchronize()
        times.append(surroundings.now() - start)
        if index == 1 or index % settings.every == 0:
            rate, uncertainty, jitter = speeds(batch, times)
            surroundings.write(
                f"{index}\timages/sec: {rate:.1f} +/- {uncertainty:.1f} (jitter = {jitter:.1f})"
                f"\t{outcome.loss or 0.0:.3f}"
            )
    total = steps * batch / (surroundings.now() - loop)
    for line in (_RULE, f"total images/sec: {total:.2f}", _RULE):
        surroundings.write(line)
    rate, uncertainty, _ = speeds(batch, times)
    includes = spec.includes()
    return (
        Number(
            name="images/sec",
            value=rate,
            unit="images/s",
            spread=uncertainty,
            times=tuple(times),
            includes=includes,
        ),
        Number(
            name="total images/sec",
            value=total,
            unit="images/s",
            includes=f"{includes}; whatever happens between two steps",
        ),
    )


PROTOCOL: Final = Published(
    name="tf-cnn-benchmarks",
    title="TensorFlow's tf_cnn_benchmarks",
    source="tensorflow/benchmarks scripts/tf_cnn_benchmarks @8fb790792659",
    models=(
        *("resnet50-v1", "alexnet-tfcnn", "alexnet-tfcnn-cifar10", "vgg11", "vgg16", "vgg19"),
        *("googlenet", "overfeat-fast", "inception-v3", "resnet101-v1", "resnet152-v1"),
        *("nasnet-mobile", "nasnet-large"),
    ),
    defaults=Settings(batch=32, warmup=10, steps=100, every=10),
    specs=(TRAIN, FORWARD),
    drive=drive,
    batches={
        "resnet50-v1": 64,
        "alexnet-tfcnn": 512,
        "alexnet-tfcnn-cifar10": 128,
        "vgg11": 64,
        "vgg16": 64,
        "vgg19": 64,
        "nasnet-large": 16,
    },
    options={"classes": 1001, "decay": 4e-5},
    own_options={
        "alexnet-tfcnn-cifar10": {"classes": 11},
        "googlenet": {"form": "tfcnn"},
        "inception-v3": {"scale": False},
    },
    quirks=(FORWARD_ONLY,),
)
