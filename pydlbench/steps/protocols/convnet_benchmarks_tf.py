"""convnet-benchmarks' TensorFlow scripts, benchmark_alexnet.py and its siblings.

What the number, printed like the AlexNet tutorial's, includes:

============== ================================= ==========================================
step           Forward                           Forward-backward
============== ================================= ==========================================
network        with the fully connected layers
input          in a variable: nothing is fed
loss           none                              mean softmax cross-entropy
gradients      none                              of all parameters, not of the images
optimizer      none                              none
host fetch     none: the targets are grouped into one operation without a value
============== ================================= ==========================================

Quirk ``burn-in-off-by-one``: the script tests ``i > num_steps_burn_in`` where 10 steps were meant
to be dropped, so that an 11th is, and still divides by 100. The mean comes out 1 % low, "step 0" is
never printed, and the spread is at least 10 % of the mean.

The graphs are those of the Torch7 script. The one of this AlexNet takes images of 227 x 227 without
padding, which makes as many outputs, and a ReLU follows its last fully connected layer too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError
from pydlbench.steps.protocols.burn_in import time_steps
from pydlbench.steps.protocols.protocol import Published, Quirk, Settings, StepSpec

if TYPE_CHECKING:
    from pydlbench.steps.protocols.protocol import Number, Run

__all__ = []

FORWARD: Final = StepSpec(name="Forward", phase="forward", propagation="inference")
FORWARD_BACKWARD: Final = StepSpec(
    name="Forward-backward", phase="forward-backward", loss="model", dropout=False
)
OFF_BY_ONE: Final = Quirk(
    name="burn-in-off-by-one",
    what="one step more than the burn-in is dropped, and the sums are divided by all steps",
)


def drive(run: Run) -> tuple[Number, ...]:
    """Time both steps.

    Raises:
        UsageError: a single step, and that one dropped: its mean would be zero.
    """
    drops_one = OFF_BY_ONE.name in run.settings.quirks
    if drops_one and run.settings.steps == 1:
        raise UsageError(
            f"--steps 1: {PROTOCOL.name} drops one more than the burn-in; nearest: --steps 2, or "
            f"--quirk {OFF_BY_ONE.name}=off"
        )
    run.stepper.initialize()
    return (
        time_steps(run, FORWARD, drops_one=drops_one),
        time_steps(run, FORWARD_BACKWARD, drops_one=drops_one),
    )


PROTOCOL: Final = Published(
    name="convnet-benchmarks-tf",
    title="convnet-benchmarks, TensorFlow scripts",
    source="soumith/convnet-benchmarks tensorflow/benchmark_alexnet.py @b458aab61c0a",
    models=("alexnet-owt", "overfeat-fast", "vgg11", "googlenet"),
    defaults=Settings(batch=128, warmup=10, steps=100, every=10),
    specs=(FORWARD, FORWARD_BACKWARD),
    drive=drive,
    batches={"vgg11": 64},
    quirks=(OFF_BY_ONE,),
)
