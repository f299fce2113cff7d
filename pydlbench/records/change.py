"""What a change of a model did to its step: results, and calls by which the steps differ."""

from __future__ import annotations

from pydlbench.records.agreement import Agreement
from pydlbench.records.ledger import LedgerDifference
from pydlbench.records.record import Record


class StepAgreement(Record, frozen=True, kw_only=True):
    """Whether two steps compute the same, with the same weights and inputs.

    Attributes:
        agreement: the differences, of B from A; None if they were not compared.
        unchecked: why the results were not compared; None if they were.
        shared: number of B's weights and running statistics that took A's values.
        weights: numbers of weights and running statistics of A and B.
        draws: whether a step draws random numbers, such as those of dropout, which may be others in
            the other step.
    """

    agreement: Agreement | None = None
    unchecked: str | None = None
    shared: int = 0
    weights: tuple[int, ...] = (0, 0)
    draws: bool = False

    @property
    def differs(self) -> bool:
        """Whether B is known to compute something else."""
        return self.agreement is not None and bool(self.agreement.wrong)


class ModelChange(Record, frozen=True, kw_only=True):
    """The difference of two steps. Times in seconds.

    Attributes:
        results: whether they compute the same.
        rows: the calls by which they differ, the largest difference first; the differences add up
            to that of the steps. Empty if a step was not traced.
        untraced: why there are no rows; None if there are.
    """

    results: StepAgreement
    rows: tuple[LedgerDifference, ...] = ()
    untraced: str | None = None
