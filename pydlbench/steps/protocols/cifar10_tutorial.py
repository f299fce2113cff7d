"""TensorFlow's CIFAR-10 tutorial, cifar10_train.py.

What "(4765.9 examples/sec; 0.027 sec/batch)" includes, a tenth of the time since the last line:

============== ==============================================================================
steps          10 training steps: forward, cross-entropy + L2 terms (three of them with factor 0),
               gradients of all weights but not of the images, gradient descent
input          128 crops of 24 x 24 from a queue that distorts on the host; waiting for it counts
weights        live on the host and cross to the device and back (quirk ``variables-on-cpu``)
averages       moving averages of all weights, decay 0.9999
host fetch     the loss, every step
not repeated   summaries for TensorBoard every 100 steps, a checkpoint every 10 minutes
============== ==============================================================================

The clock starts before the weights are initialised and the queue is filled, so the first line is
one step plus all that; it too is divided by 10 (quirk ``first-line-over-all``). The script itself
stops after 1,000,000 steps.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING, Final

from pydlbench.steps.protocols.protocol import Batch, Number, Published, Quirk, Settings, StepSpec

if TYPE_CHECKING:
    from pydlbench.steps.protocols.protocol import Run

__all__ = ["learning_rate"]

TRAIN: Final = StepSpec(
    name="train",
    phase="training",
    loss="model",
    optimizer="model",
    feed="host",
    fetch=("loss",),
    weights="host",
    averages=0.9999,
)
ON_CPU: Final = Quirk(
    name="variables-on-cpu",
    what="the weights live on the host: they and their gradients cross to the device every step",
)
FIRST_LINE: Final = Quirk(
    name="first-line-over-all",
    what="the first line's single step is divided by the steps between lines",
)
# Of the training set that the script decays its rate by.
_IMAGES, _EPOCHS, _RATE, _DECAY = 50_000, 350, 0.1, 0.1
#: Share of the training images that the queue holds before the first step.
_FILL: Final = 0.4


def learning_rate(step: int, batch: int) -> float:
    """Return the rate of a step: a tenth after each 350 passes over 50,000 images."""
    return float(_RATE * _DECAY ** (step // int(_IMAGES / batch * _EPOCHS)))


def drive(run: Run) -> tuple[Number, ...]:
    """Train from the queue and print a line every 10 steps."""
    from pydlbench.steps.data.queues import Prefetch, ShuffleQueue

    settings, surroundings, data = run.settings, run.surroundings, run.data
    assert data is not None, "Published.run checks that there is data"
    batch, every = settings.batch, settings.every
    spec = TRAIN if ON_CPU.name in settings.quirks else replace(TRAIN, weights="device")
    fill = int(_FILL * len(data.train.labels))
    surroundings.write(
        f"Filling queue with {fill} CIFAR images before starting to train. "
        "This will take a few minutes."
    )
    queue = ShuffleQueue(data.train, batch=batch, minimum=fill, seed=0)
    step = run.stepper.prepare(spec)
    times = []
    start = surroundings.now()
    run.stepper.initialize()
    with Prefetch(queue) as batches:
        for index in range(settings.steps or 1):
            images, labels = next(batches)
            fed = Batch(images=images, labels=labels)
            loss = step(fed, learning_rate(index, batch)).loss
            if index % every:
                continue
            current = surroundings.now()
            duration, start = current - start, current
            share = every if index or FIRST_LINE.name in settings.quirks else 1
            assert loss is not None, "TRAIN fetches it"
            surroundings.write(
                f"{surroundings.stamp()}: step {index}, loss = {loss:.2f} "
                f"({share * batch / duration:.1f} examples/sec; {duration / share:.3f} sec/batch)"
            )
            if index:
                times.append(duration / share)
    if not times:
        return ()
    mean = sum(times) / len(times)
    return (
        Number(
            name="examples/sec",
            value=batch / mean,
            unit="examples/s",
            times=tuple(times),
            includes=spec.includes(),
        ),
    )


PROTOCOL: Final = Published(
    name="cifar10-tutorial",
    title="TensorFlow's CIFAR-10 tutorial",
    source="tensorflow/models tutorials/image/cifar10/cifar10_train.py @00e6186d7611",
    models=("cifar10",),
    defaults=Settings(batch=128, warmup=0, steps=101, every=10),
    specs=(TRAIN,),
    drive=drive,
    quirks=(ON_CPU, FIRST_LINE),
    data="cifar10",
)
