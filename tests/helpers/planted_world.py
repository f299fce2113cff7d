"""An invented world: what is planted in it, and what steps and operators take there."""

import random
from dataclasses import dataclass, field

from pydlbench.records.measurement import TimeSummary

#: Seconds of every native kernel, hot or cold.
KERNEL_S = 2e-3


def summary(seconds):
    return TimeSummary(
        median=seconds,
        ci_low=0.999 * seconds,
        ci_high=1.001 * seconds,
        q1=seconds,
        q3=seconds,
        min=seconds,
        n=10,
    )


@dataclass
class World:
    """Planted faults; seconds per step.

    Attributes:
        step_s: what the step takes without any of them, at its own batch.
        fresh_s: first touch of fresh memory; less with huge pages, nothing with kept ones.
        returned_s: fresh memory given back, likewise.
        reorder_s: layouts converted in NCHW.
        gaps_s: starting operators, whatever the batch; nothing where they are joined.
        pointwise_s: of the step without faults, what joining saves.
        optimizer_s: the updates' share of the step without faults.
        decay_s: likewise that of L2 terms.
        unpacked_s: by node, what its forward pass loses by unpacked weights.
        slow_s: by node, what its forward pass loses by a slower kernel.
        copy_s: what an uneven padding costs an operator.
        ragged_s: what channels that are no multiple of eight cost one.
        other_way_s: what the framework's usual way costs a product or convolution.
        wide_s: of the step without faults, what products in float32 cost beside bfloat16.
        batch_s: of the step, what it takes whatever the batch.
        efficiency: of native rows.
        bound: of native rows.
        refuses: words of cases that cannot be prepared.
        noise: relative, of every sample, drawn with ``seed``.
        seed: of the noise.
        disturbed: how much longer the step takes while it is timed alone, and flagged as contended.
    """

    step_s: float = 0.2
    fresh_s: float = 0.0
    returned_s: float = 0.0
    reorder_s: float = 0.0
    gaps_s: float = 0.0
    pointwise_s: float = 0.0
    optimizer_s: float = 0.0
    decay_s: float = 0.0
    unpacked_s: dict = field(default_factory=dict)
    slow_s: dict = field(default_factory=dict)
    copy_s: float = 0.0
    ragged_s: float = 0.0
    other_way_s: float = 0.0
    wide_s: float = 0.0
    batch_s: float = 0.0
    efficiency: float = 0.95
    bound: str = "memory"
    refuses: tuple = ()
    noise: float = 0.0
    seed: int = 0
    disturbed: float = 0.0
    drift: float = 1.0

    def __post_init__(self):
        self.random = random.Random(self.seed)

    def sample(self, seconds):
        """One sample of something that takes so long."""
        return seconds * (1 + self.noise * abs(self.random.gauss(0, 1)))

    def step(self, case, allocator, own_batch):
        """Seconds of a step."""
        fused = case.mode in ("compiled", "xla")
        seconds = self.step_s - self.batch_s
        seconds += sum(self.unpacked_s.values()) + sum(self.slow_s.values())
        seconds += self.copy_s + self.ragged_s + self.other_way_s
        fresh = {"default": 1.0, "huge pages": 0.1, "kept pages": 0.0}[allocator]
        seconds += fresh * (self.fresh_s + self.returned_s)
        seconds += self.reorder_s if case.layout == "nchw" else 0.0
        if fused:
            seconds -= self.pointwise_s
        if case.precision == "bf16":
            seconds -= self.wide_s
        if case.phase == "forward-backward":
            seconds -= self.optimizer_s
        if case.options.get("decay") == "0":
            seconds -= self.decay_s
        seconds *= (case.batch or own_batch) / own_batch
        return seconds + self.batch_s + (0.0 if fused else self.gaps_s)

    def operator(self, case, variant):
        """Seconds of one operator of the framework alone."""
        layer, name = case.layer, (case.layer.name or "").rpartition("/")[2]
        seconds = KERNEL_S
        if case.pass_ == "forward":
            seconds += self.unpacked_s.get(name, 0.0) + self.slow_s.get(name, 0.0)
        if layer.kind == "conv2d":
            uneven = (
                layer.pad_before[0] != layer.pad_after[0]
                or layer.pad_before[1] != layer.pad_after[1]
            )
            seconds += self.copy_s if uneven else 0.0
            seconds += self.ragged_s if layer.in_channels % 8 else 0.0
        if variant in ("transposed", "nhwc"):
            seconds += self.other_way_s
        return seconds
