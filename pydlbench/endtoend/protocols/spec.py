"""What one step of a published script does, and what of it comes back to the host."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

__all__ = ["BACKWARD", "Fetch", "Phase", "StepSpec"]

Phase: TypeAlias = Literal[
    "forward", "forward-backward", "training", "backward-data", "backward-weights"
]
Fetch: TypeAlias = Literal["output", "predictions", "loss", "gradients"]

#: The phases in which gradients arise.
BACKWARD: Final = ("forward-backward", "training", "backward-data", "backward-weights")


@dataclass(frozen=True, slots=True, kw_only=True)
class StepSpec:
    """A step, as a framework has to build it so that its time is the script's.

    Attributes:
        name: of the step within its protocol: ``Forward``, ``train``.
        phase: how far it goes. ``backward-data`` and ``backward-weights`` are one pass through all
            nodes, of one kind of gradient, the activations being there already.
        propagation: whether batch normalisation and dropout train.
        loss: ``model`` (with its L2 terms), ``l2`` (half the sum of squares of the output),
            ``sum`` (of the output), ``output`` (no loss: the output itself is taken as the gradient
            of the output), or ``none``.
        optimizer: ``model``, or ``none``: the step ends with the gradients.
        fetch: what is copied to the host within the step: the network's ``output``,
            ``predictions`` (its softmax), the ``loss``, all weights' ``gradients``.
        feed: ``host`` where images and labels are handed over with every step, ``device`` where
            they lie there already.
        input_gradient: whether the images' gradient is computed too (the first layer's
            backward-data pass).
        dropout: False leaves dropout out even where the propagation is training.
        zero_fill: whether the step first writes zeros over all gradients and then adds to them.
        weights: ``host`` where they live there and cross to the device with every step.
        cast: below float32: ``mixed`` keeps the weights in float32, ``whole`` narrows everything.
        averages: decay of moving averages kept of all weights within the step; None for none.
    """

    name: str
    phase: Phase
    propagation: Literal["training", "inference"] = "training"
    loss: Literal["model", "l2", "sum", "output", "none"] = "none"
    optimizer: Literal["model", "none"] = "none"
    fetch: tuple[Fetch, ...] = ()
    feed: Literal["device", "host"] = "device"
    input_gradient: bool = False
    dropout: bool = True
    zero_fill: bool = False
    weights: Literal["device", "host"] = "device"
    cast: Literal["mixed", "whole"] = "mixed"
    averages: float | None = None

    def __post_init__(self) -> None:
        """Reject what contradicts itself: a protocol's table is wrong then."""
        backward = self.phase in BACKWARD
        wrong = [
            words
            for words, found in (
                ("gradients without a backward pass", "gradients" in self.fetch and not backward),
                ("a backward pass of nothing", backward and self.loss == "none"),
                ("a loss that is not computed", "loss" in self.fetch and self.loss == "none"),
                ("an optimizer outside training", (self.optimizer == "model") != self._trains),
                ("an input gradient without a backward pass", self.input_gradient and not backward),
                ("averages outside training", self.averages is not None and not self._trains),
            )
            if found
        ]
        if wrong:
            raise ValueError(f"step {self.name}: {wrong[0]}")

    @property
    def _trains(self) -> bool:
        return self.phase == "training"

    def includes(self) -> str:
        """Say in one line what the step's time includes."""
        parts = [f"{self.phase}, {self.propagation} propagation"]
        if self.feed == "host":
            parts.append("images and labels from the host")
        if self.weights == "host":
            parts.append("weights from the host")
        if self.loss != "none":
            losses = {
                "model": "the model's loss",
                "l2": "loss: half the sum of squares of the output",
                "sum": "loss: sum of the output",
                "output": "no loss: the output is its own gradient",
            }
            parts.append(losses[self.loss])
        if self.zero_fill:
            parts.append("gradients zeroed first")
        if self.phase in BACKWARD:
            parts.append(f"{'with' if self.input_gradient else 'no'} gradient of the images")
            parts.append("optimizer" if self.optimizer == "model" else "no optimizer")
        if self.averages is not None:
            parts.append(f"moving averages of the weights ({self.averages:g})")
        if self.propagation == "training" and not self.dropout:
            parts.append("no dropout")
        parts.append(f"to the host: {', '.join(self.fetch)}" if self.fetch else "nothing fetched")
        return "; ".join(parts)
