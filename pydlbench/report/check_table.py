"""The report of ``check``: predicted and measured, the ladder, the ledger, and what follows."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.report.check_conclusion import check_conclusion
from pydlbench.report.check_explain import explain_check
from pydlbench.report.check_ladder import ladder_table
from pydlbench.report.check_numbers import WIDTH, Scale, clip, percent, signed_percent, wrap
from pydlbench.report.plain_table import plain_table
from pydlbench.report.style import PLAIN, Style
from pydlbench.results.heading import device_name

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.crosscheck import CheckRecord
    from pydlbench.report.check_ladder import Limits
    from pydlbench.report.check_result import CheckResult
    from pydlbench.results import RunRecord

__all__ = ["errors_line", "faults_line", "ledger_rows", "render_checks", "summary_parts"]

_BAR = 20
_UNEXPLAINED = "unexplained"


def render_checks(
    run: RunRecord,
    results: Sequence[CheckResult],
    limits: Limits,
    *,
    explain: bool = False,
    diagnose: bool = False,
    style: Style = PLAIN,
) -> str:
    """Return a block for each framework and mode, then all of them in one table.

    Args:
        run: for the device's name.
        results: checks of the same step; no newline at the end.
        limits: the step's two lowest rungs.
        explain: how each term was measured, all parts and rounds.
        diagnose: whether there is a command of that name to point to.
        style: colours.
    """
    blocks = []
    for one in results:
        if one.record is None:
            step = f"{one.model}  batch {one.batch}  {one.phase}  {one.precision}  {one.who}"
            lines = wrap([f"{step}  {one.status}: {' '.join(str(one.reason).split())}"])
            blocks.append("\n".join(map(style.alarm, lines)))
        else:
            parts = _block(run, one.record, limits, diagnose, style)
            blocks += [*parts, *(explain_check(one.record) if explain else [])]
    records = [one.record for one in results if one.record is not None]
    if len(records) > 1:
        blocks.append(ladder_table(records, limits))
    return "\n\n".join(blocks)


def summary_parts(record: CheckRecord) -> tuple[str, str]:
    """Return what was checked, and predicted against measured."""
    scale, time = Scale.of(record.measured.median), record.measured
    layout = ""
    if record.framework == "torch":
        layout = ", channels_last" if record.layout == "nhwc" else f", {record.layout}"
    fed = ", fed from the host" if record.feed == "host" else ""
    what = "  ".join(
        [
            record.model,
            *(f"{name}={value}" for name, value in record.options.items()),
            f"batch {record.batch}",
            record.phase,
            record.precision,
            f"{record.library} {record.mode}{layout}{fed}",
        ]
    )
    interval = f"n {time.n}"
    if time.ci_low is not None and time.ci_high is not None:
        level = f"{100 * time.confidence:g} %"
        interval = f"{level} {scale.bare(time.ci_low)} .. {scale.bare(time.ci_high)}, {interval}"
    figures = (
        f"predicted {scale.text(record.estimate_s)}   measured {scale.text(time.median)} "
        f"({interval})   error {signed_percent(record.error)}"
    )
    return what, figures


def ledger_rows(record: CheckRecord) -> list[list[str]]:
    """Return the rows of the ledger: term, time, share, bar, what stands out; the sum last."""
    scale = Scale.of(record.measured.median)
    rows = []
    for one in record.ledger:
        rest = one.term == _UNEXPLAINED
        rows.append(
            [
                one.term,
                (scale.signed if rest else scale.text)(one.seconds),
                (signed_percent if rest else percent)(one.share),
                ("-" if one.seconds < 0 else "#") * round(_BAR * min(1.0, abs(one.share))),
                " ".join(one.detail.split()),
            ]
        )
    total = sum(one.seconds for one in record.ledger)
    share = total / record.measured.median
    return [*rows, ["end-to-end step", scale.text(total), percent(share), "", ""]]


def errors_line(record: CheckRecord) -> str:
    """Return both errors: of the prediction and of the native sum."""
    return (
        f"error of the prediction {signed_percent(record.error)}, "
        f"of the native sum {signed_percent(record.error_native)}; "
        f"unexplained {signed_percent(record.unexplained)}"
    )


def faults_line(record: CheckRecord) -> str:
    """Return the page faults that the prediction knew of, and those of the step.

    It knows of those of earlier steps; where the framework keeps its pages, of those of its parts.
    """
    earlier = record.calibration.get("fault_s") is not None
    names = (
        ("predicted", "in the steps before" if earlier else "in the parts"),
        ("counted", "counted"),
        ("kept", "with kept pages"),
    )
    parts = []
    for key, word in names:
        count = record.faults.get(key)
        parts.append(f"{word} {'unknown' if count is None else f'{count:,.0f}'}")
    return f"page faults per step: {', '.join(parts)}"


def _block(
    run: RunRecord, record: CheckRecord, limits: Limits, diagnose: bool, style: Style
) -> list[str]:
    what, figures = summary_parts(record)
    one_line = f"{what}    {figures}"
    first = [one_line] if len(one_line) <= WIDTH else [what, figures]
    threads = f"{record.threads} thread{'' if record.threads == 1 else 's'}"
    where = f"{device_name(run.device)}  {threads}  checked in {record.seconds:.0f} s"
    table = plain_table(
        ["term", "time", "share", "", ""],
        ledger_rows(record),
        [False, True, True, False, False],
    )
    below = [errors_line(record), faults_line(record), *(f"note: {one}" for one in record.notes)]
    return [
        "\n".join([*map(style.bold, wrap(first)), *wrap([where])]),
        ladder_table([record], limits),
        clip(table),
        "\n".join(wrap(below)),
        "\n".join(wrap(check_conclusion(record, diagnose=diagnose))),
    ]
