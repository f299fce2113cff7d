"""TensorFlow's MNIST tutorial, convolutional.py.

What "Step 100 (epoch 0.12), 4.2 ms" includes, as a hundredth of the time between two reports:

============== ============================== ======================= =====================
step           train                          report                  evaluate
============== ============================== ======================= =====================
how often      100                            1                       79 (5000 images)
phase          training                       forward, dropout on     forward, inference
input          64 images and labels fed from the host each time       64 images fed
loss           cross-entropy + L2 terms       the same                none
optimizer      momentum 0.9, rate * 0.95      none                    none
               per epoch
host fetch     nothing                        loss, rate,             predictions
                                              predictions
============== ============================== ======================= =====================

So the number is ``T(train) + 0.01 T(report) + 0.79 T(evaluate)``. The first line is one step and
one report, with the initialisation of the weights, and it too is divided by 100.

Quirks: ``validation-in-time`` (the clock is restarted before the validation pass, which therefore
counts in the next line) and ``first-line-over-all`` (the first line is divided by 100, not by 1).
Training images are taken in the order of the file; the last 5000 / 64 remainder of an evaluation
runs the last 64 images again, as the script does.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError
from pydlbench.steps.protocols.protocol import Batch, Number, Published, Quirk, Settings, StepSpec

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    from pydlbench.steps.data.datasets import Split
    from pydlbench.steps.protocols.protocol import Run, Step

__all__ = ["error_rate", "learning_rate"]

TRAIN: Final = StepSpec(
    name="train", phase="training", loss="model", optimizer="model", feed="host", cast="whole"
)
REPORT: Final = StepSpec(
    name="report",
    phase="forward",
    loss="model",
    feed="host",
    fetch=("loss", "predictions"),
    cast="whole",
)
EVALUATE: Final = StepSpec(
    name="evaluate",
    phase="forward",
    propagation="inference",
    feed="host",
    fetch=("predictions",),
    cast="whole",
)
VALIDATION: Final = Quirk(
    name="validation-in-time",
    what="a line's time covers the validation pass of the line before",
)
FIRST_LINE: Final = Quirk(
    name="first-line-over-all",
    what="the first line's single step is divided by the steps between lines",
)
_RATE, _DECAY = 0.01, 0.95


def learning_rate(step: int, batch: int, images: int) -> float:
    """Return the rate of a step: 5 % less after each pass over the training images."""
    return float(_RATE * _DECAY ** (step * batch // images))


def error_rate(predictions: NDArray[np.float32], labels: NDArray[np.int64]) -> float:
    """Return the percentage of rows whose largest entry is not the label's."""
    right = int((predictions.argmax(axis=1) == labels).sum())
    return 100.0 - 100.0 * right / len(labels)


def drive(run: Run) -> tuple[Number, ...]:
    """Train, report every 100 steps, test at the end."""
    settings, surroundings, stepper = run.settings, run.surroundings, run.stepper
    data = run.data
    assert data is not None, "Published.run checks that there is data"
    batch, every = settings.batch, settings.every
    images = len(data.train.labels)
    for name, split in (
        ("training", data.train),
        ("validation", data.validation),
        ("test", data.test),
    ):
        least = batch + (name == "training")
        if len(split.labels) < least:
            raise UsageError(
                f"--batch {batch}: only {len(split.labels)} {name} images; nearest: "
                f"{len(split.labels) - (name == 'training')}"
            )
    steps = _steps(settings, images)
    train, report, evaluate = (stepper.prepare(spec) for spec in (TRAIN, REPORT, EVALUATE))
    times, lines, validation = [], [], 0.0
    start = surroundings.now()
    stepper.initialize()
    surroundings.write("Initialized!")
    for step in range(steps):
        offset = step * batch % (images - batch)
        fed = _cut(data.train, offset, offset + batch)
        train(fed, learning_rate(step, batch, images))
        stepper.synchronize()
        if step % every:
            continue
        outcome = report(fed)
        elapsed = surroundings.now() - start
        start = surroundings.now()
        share = every if step or FIRST_LINE.name in settings.quirks else 1
        assert outcome.loss is not None, "REPORT fetches both"
        assert outcome.predictions is not None, "REPORT fetches both"
        surroundings.write(
            f"Step {step} (epoch {step * batch / images:.2f}), {1e3 * elapsed / share:.1f} ms"
        )
        # The optimizer has counted this step already when the script reads its rate.
        rate = learning_rate(step + 1, batch, images)
        surroundings.write(f"Minibatch loss: {outcome.loss:.3f}, learning rate: {rate:.6f}")
        surroundings.write(f"Minibatch error: {error_rate(outcome.predictions, fed.labels):.1f}%")
        validation = _evaluate(evaluate, data.validation, batch)
        surroundings.write(f"Validation error: {validation:.1f}%")
        if VALIDATION.name not in settings.quirks:
            start = surroundings.now()
        if step:
            times.append(elapsed / share)
            lines.append(1e3 * elapsed / share)
    test = _evaluate(evaluate, data.test, batch)
    surroundings.write(f"Test error: {test:.1f}%")
    numbers = [
        Number(name="Validation error", value=validation, unit="%"),
        Number(name="Test error", value=test, unit="%"),
    ]
    if lines:
        mean = sum(lines) / len(lines)
        includes = f"{TRAIN.includes()}; a report; " + (
            "the validation pass of the report before"
            if VALIDATION.name in settings.quirks
            else "no validation pass"
        )
        numbers.insert(
            0, Number(name="Step", value=mean, unit="ms", times=tuple(times), includes=includes)
        )
    return tuple(numbers)


def _steps(settings: Settings, images: int) -> int:
    if settings.steps is not None:
        return settings.steps
    epochs = settings.epochs or 0.0
    steps = int(epochs * images) // settings.batch
    if steps < 1:
        raise UsageError(
            f"--epochs {epochs:g}: less than one step of {settings.batch} out of {images} images; "
            f"nearest: {settings.batch / images:.2g}"
        )
    return steps


def _cut(split: Split, begin: int, end: int) -> Batch:
    return Batch(images=split.images[begin:end], labels=split.labels[begin:end])


def _evaluate(step: Step, split: Split, batch: int) -> float:
    """Return the error rate of all images, in batches; the last one reaches back to be full."""
    import numpy as np

    count = len(split.labels)
    rows = []
    for begin in range(0, count, batch):
        first = min(begin, count - batch)
        predictions = step(_cut(split, first, first + batch)).predictions
        assert predictions is not None, "EVALUATE fetches them"
        rows.append(predictions[begin - first :])
    return error_rate(np.concatenate(rows), split.labels)


PROTOCOL: Final = Published(
    name="mnist-tutorial",
    title="TensorFlow's MNIST tutorial",
    source="tensorflow/models tutorials/image/mnist/convolutional.py @48251730feb7",
    models=("mnist",),
    defaults=Settings(batch=64, warmup=0, steps=None, every=100, epochs=10.0),
    specs=(TRAIN, REPORT, EVALUATE),
    drive=drive,
    quirks=(VALIDATION, FIRST_LINE),
    data="mnist",
)
