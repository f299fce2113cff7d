"""The timing loop that TensorFlow's AlexNet tutorial and convnet-benchmarks' TensorFlow share."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydlbench.steps.protocols.protocol import Number

if TYPE_CHECKING:
    from pydlbench.steps.protocols.protocol import Run, StepSpec

__all__ = ["time_steps"]


def time_steps(run: Run, spec: StepSpec, *, drops_one: bool = False) -> Number:
    """Time a step as both scripts do, printing their lines.

    The mean is ``sum(t) / steps``, the spread the population's:
    ``sqrt(sum(t^2) / steps - mean^2)``.

    Args:
        run: what to run and how often.
        spec: the step; its name begins the last line.
        drops_one: whether the first counted step is left out of both sums, which are still divided
            by the full number. For equal times ``t`` of 100 steps the mean is then ``0.99 t`` and
            the spread ``sqrt(0.99 - 0.99^2) t = 0.0995 t``: published spreads of 10 % are this.
    """
    settings, surroundings = run.settings, run.surroundings
    steps = settings.steps or 1
    step = run.stepper.prepare(spec)
    times = []
    for index in range(-settings.warmup, steps):
        start = surroundings.now()
        step()
        if not spec.fetch:
            run.stepper.synchronize()
        duration = surroundings.now() - start
        if index > 0 or (index == 0 and not drops_one):
            if index % settings.every == 0:
                surroundings.write(
                    f"{surroundings.stamp()}: step {index}, duration = {duration:.3f}"
                )
            times.append(duration)
    mean = sum(times) / steps
    # Rounding can make the difference of equal times a little negative.
    spread = math.sqrt(max(0.0, sum(t * t for t in times) / steps - mean * mean))
    surroundings.write(
        f"{surroundings.stamp()}: {spec.name} across {steps} steps, "
        f"{mean:.3f} +/- {spread:.3f} sec / batch"
    )
    return Number(
        name=spec.name,
        value=mean,
        unit="s",
        spread=spread,
        times=tuple(times),
        includes=spec.includes(),
    )
