"""Differences between the results of two steps: of frameworks, or of two versions of a model."""

import math
from typing import Annotated

import msgspec

from pydlbench.records.ledger import LedgerDifference
from pydlbench.records.record import Record, shown
from pydlbench.records.step import Check
from pydlbench.units import format_seconds

#: Largest relative error of a float32 output or gradient that rounding explains: each of a hundred
#: layers sums thousands of products in its own order.
TOLERANCE = 1e-3
#: Relative change of the weights by which the effect of rounding is measured: a ReLU that opens in
#: only one of two computations changes all gradients before it.
DISTURBANCE = 1e-6
_MAX_FLOORS = 2.0
#: Name of the first output among results; the second one is ``output 2``.
OUTPUT = "output"
_MAX_LISTED_TENSORS = 3


class Agreement(Record, frozen=True, kw_only=True):
    """Differences between two frameworks' float32 outputs and gradients.

    An error is the largest difference in a tensor over the largest value in it. After many
    normalisations rounding alone makes it a few per cent, and a fifth for single elements (a ReLU
    that opens in only one computation). A tensor beyond the tolerance is therefore judged by its
    relative norm, the norm of the difference over the tensor's norm: it is compared with the
    relative norm that appears when all weights change by one part in a million.

    Attributes:
        frameworks: the two frameworks; errors are those of the second one.
        output: error of the output.
        gradients: largest error of a gradient; None if there is no backward phase.
        worst: name of the gradient with the largest error.
        median: median of the gradients' errors.
        tensors: error of each tensor by name; the output is named ``output``.
        tolerance: errors up to this are accepted without looking at norms.
        norms: relative norm of the difference by name.
        floors: relative norms between the first framework and itself with changed weights, which
            rounding alone may cause; empty where they were not needed.
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
        """Names of tensors that differ by more than rounding explains, the worst first."""

        def excess(name: str) -> float:
            return self.norms.get(name, math.inf) - _MAX_FLOORS * self.floors.get(name, 0.0)

        far = [name for name, error in self.tensors.items() if not error <= self.tolerance]
        return sorted((name for name in far if excess(name) > 0), key=excess, reverse=True)

    @property
    def check(self) -> Check:
        """The result as a check, printed with the other checks."""
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
            text += f"; beyond rounding: {', '.join(wrong[:_MAX_LISTED_TENSORS])}"
            hidden = len(wrong) - _MAX_LISTED_TENSORS
            text += f" and {hidden} more" if hidden > 0 else ""
        return Check(name="agreement", status="failed" if wrong else "ok", detail=text)


# -----------------------------------------------------------------------------
# Effects of a change of a model on its step: results, and calls by which the steps differ.


class StepAgreement(Record, frozen=True, kw_only=True):
    """Whether two steps compute the same, with the same weights and inputs.

    Attributes:
        agreement: the differences, of B from A; None if they were not compared.
        unchecked: why the results were not compared; None if they were.
        shared: number of B's weights and running statistics that took A's values.
        weights: numbers of weights and running statistics of A and B.
        timed: number of timed samples whose outputs were compared, each with other inputs; None if
            the run ended before they were.
        refused: steps that compute something else in timed samples.
        draws: whether A draws random numbers, such as those of dropout, which may be others in B.
    """

    agreement: Agreement | None = None
    unchecked: str | None = None
    shared: int = 0
    weights: tuple[int, ...] = (0, 0)
    timed: int | None = None
    refused: tuple[str, ...] = ()
    draws: bool = False

    @property
    def differs(self) -> bool:
        """Whether B is known to compute something else."""
        return self.agreement is not None and bool(self.agreement.wrong)


class SwapTerm(Record, frozen=True, kw_only=True):
    """A part of what a swap saves. Times in seconds.

    Attributes:
        term: name of the part.
        saved_s: time that a step saves by it; negative if it takes longer.
        ci_low: lower end of the 95 % interval; None if it was measured once.
        ci_high: upper end of the interval.
        how: how it was measured.
    """

    term: Annotated[str, shown("term", right=False)]
    saved_s: Annotated[float, shown("saved", format_seconds, unit="s")]
    ci_low: Annotated[float | None, shown("95 %, from", format_seconds, unit="s")] = None
    ci_high: Annotated[float | None, shown("to", format_seconds, unit="s")] = None
    how: Annotated[str, shown("how", right=False)]

    promised = ("ci_low", "ci_high")


class SwapSaving(Record, frozen=True, kw_only=True):
    """Savings of a swap: a user's kernel in the place of an operator or module.

    The foretold saving and the terms between add up to the step's.

    Attributes:
        calls: number of swapped calls in a step.
        foretold: the saving by the calls alone.
        between: terms by which the step's saving differs.
        step: the saving of the step, beside the original called through the same Python hook.
        dispatch: the cost of the hook in the step.
    """

    calls: int
    foretold: SwapTerm
    between: tuple[SwapTerm, ...]
    step: SwapTerm
    dispatch: SwapTerm

    derived = ("as_foretold",)

    @property
    def as_foretold(self) -> bool | None:
        """Whether the two savings differ by no more than their intervals together allow.

        None without intervals, and if the step's has both zero and what was foretold.
        """
        ends = self.foretold.ci_low, self.foretold.ci_high, self.step.ci_low, self.step.ci_high
        if None in ends:
            return None
        low, high, step_low, step_high = (end for end in ends if end is not None)
        foretold, saved = self.foretold.saved_s, self.step.saved_s
        if step_low <= min(0, foretold) <= max(0, foretold) <= step_high:
            return None
        more = math.hypot(high - foretold, saved - step_low)
        less = math.hypot(foretold - low, step_high - saved)
        return -less <= saved - foretold <= more


class ModelChange(Record, frozen=True, kw_only=True):
    """The difference of two steps. Times in seconds.

    Attributes:
        results: whether they compute the same.
        rows: the calls by which they differ, the largest difference first; the differences add up
            to that of the steps. Empty if a step was not traced.
        untraced: why there are no rows; None if there are.
        swap: what the swaps of B save; None without swaps, or before that is known.
    """

    results: StepAgreement
    rows: tuple[LedgerDifference, ...] = ()
    untraced: str | None = None
    swap: SwapSaving | None = None

    omitted = ("swap",)
