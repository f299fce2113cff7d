"""convnet-benchmarks' Torch7 script, imagenet_winners/benchmark.lua.

Three loops of 10 passes through the whole network, each pass of one kind only, launched back to
back with one synchronisation after the loop; so each number is a sum over layers of one pass:

======================== ==================== ==================== ========================
line                     :updateOutput():     :updateGradInput():  :accGradParameters():
======================== ==================== ==================== ========================
pass                     forward              backward-data        backward-weights
of the first layer       yes                  no (gradInput is     yes
                                              nil)
gradient fed             -                    the network's own output, no loss
optimizer, host fetch    none                 none                 none (gradients add up)
dropout, softmax         left out
======================== ==================== ==================== ========================

Before them, 10 dry runs of all three passes. ``:Backward:`` and ``:TOTAL:`` are sums of the means.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.steps.protocols.protocol import Number, Published, Settings, StepSpec

if TYPE_CHECKING:
    from pydlbench.steps.protocols.protocol import Run

__all__ = []

SPECS: Final = (
    StepSpec(name=":updateOutput():", phase="forward", dropout=False),
    StepSpec(name=":updateGradInput():", phase="backward-data", loss="output", dropout=False),
    StepSpec(name=":accGradParameters():", phase="backward-weights", loss="output", dropout=False),
)
# What the logs call the models and the kernels.
_MODELS: Final = {
    "alexnet-owt": "AlexNet",
    "overfeat-fast": "OverFeat[fast]",
    "vgg11": "VGG Model-A",
    "googlenet": "GoogleNet",
}


def drive(run: Run) -> tuple[Number, ...]:
    """Print the heading, run dry, time the three loops, print their sums."""
    settings, surroundings = run.settings, run.surroundings
    kernels = run.subject.framework
    shape = "x".join(str(extent) for extent in (settings.batch, *run.subject.image))
    title = _MODELS.get(run.subject.model, run.subject.model)
    surroundings.write(f"ModelType: {title}\tKernels: {kernels}\tInput shape: {shape}")
    run.stepper.initialize()
    steps = [run.stepper.prepare(spec) for spec in SPECS]
    for _ in range(settings.warmup):
        for step in steps:
            step()
        run.stepper.synchronize()
    numbers = []
    count = settings.steps or 1
    for spec, step in zip(SPECS, steps, strict=True):
        start = surroundings.now()
        for _ in range(count):
            step()
        run.stepper.synchronize()
        mean = (surroundings.now() - start) / count
        surroundings.write(_line(kernels, spec.name, mean))
        numbers.append(_number(spec.name, mean, spec.includes()))
    forward, data, weights = (number.value / 1e3 for number in numbers)
    for name, mean in (
        (":Forward:", forward),
        (":Backward:", data + weights),
        (":TOTAL:", forward + data + weights),
    ):
        surroundings.write(_line(kernels, name, mean))
        numbers.append(_number(name, mean, "sum of the above"))
    return tuple(numbers)


def _line(kernels: str, name: str, seconds: float) -> str:
    return f"{kernels:<30} {name:>25} {1e3 * seconds:10.2f}"


def _number(name: str, seconds: float, includes: str) -> Number:
    return Number(name=name, value=1e3 * seconds, unit="ms", includes=includes)


PROTOCOL: Final = Published(
    name="convnet-benchmarks",
    title="convnet-benchmarks, Torch7 script",
    source="soumith/convnet-benchmarks torch7/imagenet_winners/benchmark.lua @b458aab61c0a",
    models=("alexnet-owt", "overfeat-fast", "vgg11", "googlenet"),
    defaults=Settings(batch=128, warmup=10, steps=10, every=1),
    specs=SPECS,
    drive=drive,
    framework="torch",
    batches={"vgg11": 64},
)
