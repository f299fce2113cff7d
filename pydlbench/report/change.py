"""The report of two models' steps: whether they compute the same, which is faster, and why."""

import math
from collections.abc import Sequence
from typing import Final

from pydlbench.analysis.ledger_difference import TRACED_STEP
from pydlbench.compare.comparison import FASTER, SLOWER, Comparison
from pydlbench.grouping import sum_by
from pydlbench.records.agreement import (
    OUTPUT,
    ModelChange,
    StepAgreement,
    SwapSaving,
    SwapTerm,
)
from pydlbench.records.ledger import LedgerDifference
from pydlbench.records.record import columns_of
from pydlbench.report.blocks import Block, Figure, Headline, Lines, TableBlock
from pydlbench.report.compare import comparison_report, ratio_sentence
from pydlbench.report.figures.bars import Part, waterfall
from pydlbench.units import format_seconds, number, quantity

#: Rows of the table without ``--all``.
MAX_ROWS: Final = 12
#: Operators that the conclusion names.
MAX_NAMED: Final = 2
#: Parts of a difference below this share of it are not named.
MIN_SHARE: Final = 0.1


def change_report(
    comparison: Comparison, *, following: str = "", everything: bool = False
) -> list[Block]:
    """Return the conclusion, the two steps, and the rows by which they differ.

    Args:
        comparison: of two steps, with its change.
        following: the command to run next if they are ranked; "" for none.
        everything: show all rows.
    """
    change = comparison.change
    assert change is not None, "the comparison of two models has one"
    rows = change.rows if everything else change.rows[:MAX_ROWS]
    below = change.rows[len(rows) :]
    if below:
        name = quantity(len(below), "more row")
        seconds = [sum(getattr(row, side) for row in below) for side in ("a_s", "b_s")]
        rest = LedgerDifference(operator=name, a_s=seconds[0], b_s=seconds[1], why="--all")
        rows = (*rows, rest)
    total = LedgerDifference(
        operator="step",
        a_s=sum(row.a_s for row in change.rows),
        b_s=sum(row.b_s for row in change.rows),
    )
    shown = [*rows, total] if rows else []
    columns = columns_of(shown, "operator module direction a_s b_s difference_s why")
    notes = [f"calls are not compared: {change.untraced}"] if change.untraced else []
    ranked = following and not comparison.refused
    return [
        Headline([*conclude(comparison, change), *([f"next: {following}"] if ranked else ())]),
        *comparison_report(comparison)[1:],
        TableBlock.from_rows(columns, shown),
        *_waterfall(rows, total),
        *_swap_table(change.swap),
        Lines([*_about(change.results), *notes], listed=True),
    ]


def conclude(comparison: Comparison, change: ModelChange) -> list[str]:
    """Return the conclusion: first whether B computes something else, then its time."""
    results = change.results
    if comparison.refused:
        return [f"{text}." for text in comparison.refused]
    time = f"{ratio_sentence(comparison)}; {_results(results)}{_parts(comparison, change)}."
    swap = _swap(change.swap) if change.swap is not None else []
    if not results.differs:
        return [*swap, time]
    assert results.agreement is not None, "it differs"
    wrong, errors = results.agreement.wrong, results.agreement.tensors
    first = OUTPUT if OUTPUT in wrong else wrong[0]
    allowed = f"tolerance {results.agreement.tolerance:.1g}"
    much = f"differs by {_error(errors[first])} ({allowed})"
    if errors[first] == math.inf:
        much = "has another shape, or is not finite"
    return [
        f"B computes something else: {first} {much}.",
        *swap,
        time,
    ]


def _waterfall(rows: Sequence[LedgerDifference], total: LedgerDifference) -> list[Figure]:
    """Return the figure from A's step to B's, with the differences in between."""
    if not rows:
        return []
    between = [
        Part(" ".join(filter(None, (row.operator, row.module, row.direction))), row.difference_s)
        for row in rows
    ]
    ends = Part("A", total.a_s, level=True), Part("B", total.b_s, level=True)
    return waterfall("change", "From A to B", [ends[0], *between, ends[1]])


def _swap(saving: SwapSaving) -> list[str]:
    """Return the sentence on a swap: what the step saves, and whether that was foretold."""
    foretold, step = saving.foretold, saving.step
    words = {
        None: "the step cannot tell (--repetitions)",
        True: "as foretold",
        False: "not as foretold",
    }
    why = [row for row in saving.between if abs(row.saved_s) > MIN_SHARE * abs(step.saved_s)]
    causes = ", ".join(f"{row.term} {format_seconds(row.saved_s)}" for row in why)
    because = f": {causes}" if saving.as_foretold is False and why else ""
    text = (
        f"The swap of {quantity(saving.calls, 'call')} saves {_between(step)} of a step; the calls "
        f"alone foretold {_between(foretold)}: {words[saving.as_foretold]}{because}. Its own "
        f"dispatch, {format_seconds(saving.dispatch.saved_s)}, is left out."
    )
    return [text]


def _between(term: SwapTerm) -> str:
    ends = " .. ".join("-" if x is None else format_seconds(x) for x in (term.ci_low, term.ci_high))
    return f"{format_seconds(term.saved_s)} (95 % {ends})"


def _swap_table(saving: SwapSaving | None) -> list[Block]:
    """Return the terms from the foretold saving to that of the step."""
    if saving is None:
        return []
    rows = [saving.foretold, *saving.between, saving.step, saving.dispatch]
    return [TableBlock.from_rows(columns_of(rows, "term saved_s ci_low ci_high how"), rows)]


def _results(results: StepAgreement) -> str:
    agreement = results.agreement
    if agreement is None:
        return f"results are not compared: {results.unchecked}"
    what = "outputs" if agreement.gradients is None else "outputs and gradients"
    if results.differs:
        return "the results differ, so these are times of two computations"
    if not agreement.tensors:
        return "there are no results to compare"
    if results.timed is None:
        what += " of a first step"
    return f"{what} agree (largest difference {_error(max(agreement.tensors.values()))})"


def _error(error: float) -> str:
    return f"{number(error, 2)} of the scale"


def _parts(comparison: Comparison, change: ModelChange) -> str:
    """Return the operators that make the difference; empty without a known difference."""
    (row,) = comparison.rows
    whole = (row.b.median or 0.0) - (row.a.median or 0.0)
    if row.verdict not in (FASTER, SLOWER):
        return ""
    sums = sum_by((each.operator, each.difference_s) for each in change.rows if each.direction)
    parts = sorted(
        (pair for pair in sums.items() if pair[1] / whole > MIN_SHARE),
        key=lambda pair: -abs(pair[1]),
    )
    word = "saved" if whole < 0 else "added"
    named = ", ".join(f"{name} {format_seconds(abs(part))}" for name, part in parts[:MAX_NAMED])
    which = f", of which {named}" if named else ""
    # Traced steps run once, in one process: the machine may be slower during one of the two.
    untraced_s = sum(each.difference_s for each in change.rows if each.operator == TRACED_STEP)
    if abs(untraced_s) > abs(whole):
        traced = format_seconds(whole - untraced_s)
        which = f"; traced steps differ by {traced} instead, so no call is named"
    return f"; {word}: {format_seconds(abs(whole))}{which}"


def _about(results: StepAgreement) -> list[str]:
    """Return lines on the compared results, and restrictions."""
    lines = []
    a, b = results.weights
    if a or b:
        own = b - results.shared
        text = f"B uses A's values for {results.shared} of its {quantity(b, 'weight')}"
        if own:
            keep = "keeps its own initial value" if own == 1 else "keep their own initial values"
            text += f"; the other {own} {keep}"
        lines.append(f"weights: {text}")
    if results.agreement is not None:
        lines.append(f"results: {results.agreement.check.detail}")
        timed = f"{quantity(results.timed or 0, 'timed step')} compared, each with its own inputs"
        none = (
            "timed steps are not compared: only a user model's in PyTorch on a CPU can be, with "
            "inputs that can change"
        )
        if results.timed is None:
            none = "timed steps are not compared: the run ended before"
        elif results.draws and results.differs:
            none = "timed steps are not compared: A draws random numbers, and the results differ"
        lines.append(timed if results.timed else none)
    if results.draws:
        lines.append("A draws random numbers: with others, B's results differ for that reason")
    return lines
