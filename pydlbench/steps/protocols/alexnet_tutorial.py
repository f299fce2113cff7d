"""TensorFlow's AlexNet tutorial, alexnet_benchmark.py.

What its number, the mean of 100 wall-clock times after 10 that do not count, includes:

============== ======================================= ====================================
step           Forward                                 Forward-backward
============== ======================================= ====================================
network        convolutions and pools only: no fully   the same, then back to conv1's weights
               connected layer, no softmax
input          224 x 224 x 3, normal (sd 0.1), in a variable: nothing is fed
loss           none                                    half the sum of squares of pool5
gradients      none                                    of the 10 parameters, not of the images
optimizer      none                                    none
host fetch     pool5: 4.72 MB at batch 128             all 10 gradients: 9.88 MB
spread         of the population, sqrt(E[t^2] - E[t]^2)
============== ======================================= ====================================

The script opens with one line per convolution and pool, ``conv1   [128, 56, 56, 64]``. Copies from
other years lack the LRN layers or pad conv1 otherwise: those are options of the model.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.steps.protocols.burn_in import time_steps
from pydlbench.steps.protocols.protocol import Published, Settings, StepSpec

if TYPE_CHECKING:
    from pydlbench.models.graph import Model
    from pydlbench.steps.protocols.protocol import Number, Run

__all__ = ["FORWARD", "FORWARD_BACKWARD", "activations"]

FORWARD: Final = StepSpec(
    name="Forward", phase="forward", propagation="inference", fetch=("output",)
)
FORWARD_BACKWARD: Final = StepSpec(
    name="Forward-backward", phase="forward-backward", loss="l2", fetch=("gradients",)
)


def activations(model: Model) -> tuple[tuple[str, tuple[int, ...]], ...]:
    """Return name and shape (channels last) of what the script lists: convolutions and pools."""
    found = []
    for node in model.nodes:
        if node.op in ("conv", "pool", "linear"):
            channels, *image = node.shape
            found.append((node.name, (model.batch, *image, channels)))
    return tuple(found)


def drive(run: Run) -> tuple[Number, ...]:
    """Print the shapes, then time both steps."""
    for name, shape in run.subject.activations:
        run.surroundings.write(f"{name}   {list(shape)}")
    run.stepper.initialize()
    return time_steps(run, FORWARD), time_steps(run, FORWARD_BACKWARD)


PROTOCOL: Final = Published(
    name="alexnet-tutorial",
    title="TensorFlow's AlexNet tutorial",
    source="tensorflow/models tutorials/image/alexnet/alexnet_benchmark.py @1c3408026f28",
    models=("alexnet",),
    defaults=Settings(batch=128, warmup=10, steps=100, every=10),
    specs=(FORWARD, FORWARD_BACKWARD),
    drive=drive,
)
