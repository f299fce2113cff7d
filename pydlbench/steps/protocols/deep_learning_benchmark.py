"""deep-learning-benchmark, and the CSV that a wrapper around it writes.

The mean of 20 iterations after 20 that warm up, in milliseconds, of 16 images of 224 x 224:

============== ======================================== ===================================
framework      torch                                    tensorflow
============== ======================================== ===================================
eval           forward, inference, no autograd          forward, inference
train          gradients zeroed, forward, sum of the    gradients of the sum of the outputs,
               outputs, backward                        batch normalisation and dropout in
                                                        inference
gradients      of the weights and of the images         of the weights
optimizer      none                                     none
input          on the device                            a constant
host fetch     none; the device is waited for before    eval: the output; train: every
               and after each iteration                 gradient (553 MB for VGG-16)
fp16           the whole model and its images in half precision, no autocast
============== ======================================== ===================================

Quirks: ``zero-fill`` (PyTorch of those years wrote zeros over the gradients where it drops them
now; torch only) and ``wrapper-csv`` (off: the wrapper's file has a column of row numbers, the
heading "Algoritem" and a result with its unit, ``39.3ms``; without it the columns are the
documented ones and the result is a number of milliseconds). All rows carry the time at which the
run began.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydlbench.steps.protocols.protocol import Number, Published, Quirk, Settings, StepSpec

if TYPE_CHECKING:
    from pydlbench.steps.protocols.protocol import Run

__all__ = ["TENSORFLOW", "TORCH"]

TORCH: Final = (
    StepSpec(name="eval", phase="forward", propagation="inference", cast="whole"),
    StepSpec(
        name="train",
        phase="forward-backward",
        loss="sum",
        input_gradient=True,
        zero_fill=True,
        cast="whole",
    ),
)
TENSORFLOW: Final = (
    StepSpec(
        name="eval",
        phase="forward",
        propagation="inference",
        fetch=("output",),
        cast="whole",
    ),
    StepSpec(
        name="train",
        phase="forward-backward",
        propagation="inference",
        loss="sum",
        fetch=("gradients",),
        cast="whole",
    ),
)
ZERO_FILL: Final = Quirk(
    name="zero-fill", what="zeros are written over the gradients before each step (torch only)"
)
WRAPPER: Final = Quirk(
    name="wrapper-csv",
    what="row numbers, the heading Algoritem, and the unit in the result",
    default=False,
)
_COLUMNS: Final = ("Timestamp", "Framework", "Algorithm", "BenchStage", "Precision", "Result")
_WRAPPER_COLUMNS: Final = ("", *_COLUMNS[:2], "Algoritem", *_COLUMNS[3:])
_FRAMEWORKS: Final = {"torch": "pytorch"}


def drive(run: Run) -> tuple[Number, ...]:
    """Print the heading, then a row for each stage."""
    subject, settings, surroundings = run.subject, run.settings, run.surroundings
    began = surroundings.today().isoformat()
    wrapper = WRAPPER.name in settings.quirks
    surroundings.write(",".join(_WRAPPER_COLUMNS if wrapper else _COLUMNS))
    framework = _FRAMEWORKS.get(subject.framework, subject.framework)
    run.stepper.initialize()
    numbers = []
    for row, table in enumerate(PROTOCOL.specs_in(framework)):
        keep = ZERO_FILL.name in settings.quirks
        spec = table if keep else replace(table, zero_fill=False)
        times = _times(run, spec)
        mean = 1e3 * sum(times) / len(times)
        # The script rounds to a tenth before it prints.
        result = str(round(mean, 1))
        cells = [began, framework, subject.model, spec.name, subject.precision, result]
        if wrapper:
            cells = [str(row), *cells[:-1], f"{result}ms"]
        surroundings.write(",".join(cells))
        numbers.append(
            Number(
                name=f"{subject.model} {spec.name}",
                value=mean,
                unit="ms",
                times=times,
                includes=spec.includes(),
            )
        )
    return tuple(numbers)


def _times(run: Run, spec: StepSpec) -> tuple[float, ...]:
    step = run.stepper.prepare(spec)
    times = []
    for index in range(-run.settings.warmup, run.settings.steps or 1):
        run.stepper.synchronize()
        start = run.surroundings.now()
        step()
        run.stepper.synchronize()
        if index >= 0:
            times.append(run.surroundings.now() - start)
    return tuple(times)


PROTOCOL: Final = Published(
    name="deep-learning-benchmark",
    title="deep-learning-benchmark",
    source="u39kun/deep-learning-benchmark @9dc3e36e6f97; its wrapper in OryanOmer's fork",
    models=("vgg16", "resnet152", "densenet161"),
    defaults=Settings(batch=16, warmup=20, steps=20, every=1),
    specs=TORCH,
    own_specs={"tensorflow": TENSORFLOW},
    drive=drive,
    framework="torch",
    quirks=(ZERO_FILL, WRAPPER),
)
