"""How far two frameworks' numbers are apart: the record of a comparison."""

from __future__ import annotations

import math

import msgspec

from pydlbench.records.record import Record
from pydlbench.records.step import Check

#: The largest relative error of a float32 output or gradient that still is rounding: each of a
#: hundred layers sums thousands of products in an order of its own.
TOLERANCE = 1e-3
#: Relative change of the weights that tells how far rounding carries: a ReLU that opens in one
#: of two computations changes the gradients of everything before it.
DISTURBANCE = 1e-6
#: Folder of what a framework computes with such weights, within that of what it computes.
DISTURBED = "disturbed"
_FLOORS = 2.0
_LISTED = 3


class Agreement(Record, frozen=True, kw_only=True):
    """How far two frameworks' float32 numbers are apart.

    An error is the largest difference in a tensor over the largest value in it. Behind many
    normalisations rounding alone makes it some per cent, and of single elements (a ReLU that opens
    in one computation only) a fifth. Then a tensor's difference as a whole counts, the norm of the
    difference over the tensor's norm, which rounding leaves much the same for all tensors of a
    network; each is held against what it is where all weights change by one part in a million.

    Attributes:
        frameworks: which two; the second one's error is stated.
        output: error of the output.
        gradients: largest error of a gradient; None without a backward phase.
        worst: whose gradient that is.
        median: of the gradients' errors.
        tensors: error by name, ``output`` among them.
        tolerance: largest error that is allowed whatever the floor.
        norms: difference as a whole by name, likewise.
        floors: the same of the first framework against itself, its weights changed: how far
            rounding alone may carry each tensor; empty where nobody had to ask.
    """

    unlisted = ("norms", "floors")

    frameworks: tuple[str, ...]
    output: float
    gradients: float | None
    worst: str | None
    median: float | None
    tensors: dict[str, float]
    tolerance: float = TOLERANCE
    norms: dict[str, float] = msgspec.field(default_factory=dict)
    floors: dict[str, float] = msgspec.field(default_factory=dict)

    @property
    def wrong(self) -> list[str]:
        """Whose difference is more than rounding, the farthest first."""

        def beyond(name: str) -> float:
            return self.norms.get(name, math.inf) - _FLOORS * self.floors.get(name, 0.0)

        far = [name for name, error in self.tensors.items() if not error <= self.tolerance]
        return sorted((name for name in far if beyond(name) > 0), key=beyond, reverse=True)

    @property
    def check(self) -> Check:
        """The same as a check, to stand beside the others."""
        text = f"output {self.output:.2g}"
        if self.gradients is not None:
            text += f", gradients {self.gradients:.2g} ({self.worst}), half below {self.median:.2g}"
        text += f" relative, tolerance {self.tolerance:g}"
        if self.floors:
            text += (
                f"; tensors of {self.frameworks[0]} itself move by up to "
                f"{max(self.floors.values()):.2g} when its weights do by {DISTURBANCE:g}"
            )
        if wrong := self.wrong:
            text += f"; beyond rounding: {', '.join(wrong[:_LISTED])}"
            text += f" and {len(wrong) - _LISTED} more" if len(wrong) > _LISTED else ""
        return Check(name="agreement", status="failed" if wrong else "ok", detail=text)
