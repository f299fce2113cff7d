"""``pydlbench compare``: two runs row by row with a verdict, or own results beside published."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pydlbench.cli.collecting import without_collection
from pydlbench.cli.damaged import reading_files
from pydlbench.errors import PydlbenchError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable

    from pydlbench.compare import Comparison, Settings

__all__ = ["add_parser", "run"]

# What asks for other things than the published figures, or than a comparison of stored runs.
_WITH_PUBLISHED = ("interleave", "fail_on", "same", "passes", "budget", "seed", "all")
_WITH_INTERLEAVE = ("passes", "budget", "seed")


def add_parser(subparsers: argparse._SubParsersAction[Any]) -> None:
    """Describe the command."""
    from pydlbench.cli.store_option import add_store_option

    parser = subparsers.add_parser(
        "compare",
        help="two runs row by row, with verdicts that count the scatter between runs",
        description="Compare B with A row by row: SAME, FASTER, SLOWER or UNCLEAR. Both are runs "
        "of the store or files that --json wrote. With --published, own results stand beside "
        "published figures instead.",
    )
    parser.add_argument(
        "runs",
        nargs="*",
        metavar="RUN",
        help="A and B: id, its beginning, a tag, last, last~2, or a JSON file",
    )
    what = parser.add_argument_group("what is compared")
    what.add_argument(
        "--interleave",
        action="store_true",
        help="measure both sides again, in turn: tells differences of a few percent",
    )
    what.add_argument(
        "--published",
        action="store_true",
        help="put the RUNs' steps beside published figures; without a RUN list these",
    )
    what.add_argument("--model", metavar="NAME", help="only this model, with --published")
    what.add_argument(
        "--same", metavar="P%", help="what still counts as the same (2%%); verdicts lie beyond"
    )
    what.add_argument(
        "--fail-on", metavar="slower:P%", help="exit code 3 if a row is SLOWER by more than P%%"
    )
    how = parser.add_argument_group("with --interleave")
    how.add_argument("--passes", metavar="N", help="how often both are prepared anew (10)")
    how.add_argument("--budget", metavar="S", help="seconds of sampling per kernel and pass (0.3)")
    how.add_argument("--seed", metavar="N", help="seed of data and order (0)")
    output = parser.add_argument_group("what is shown")
    output.add_argument("--all", action="store_true", help="print all rows, however many")
    for kind in ("json", "md"):
        output.add_argument(f"--{kind}", metavar="FILE", help=f"write {kind}; - is stdout")
    output.add_argument("--quiet", action="store_true", help="no progress and no notes")
    add_store_option(output)


def run(args: argparse.Namespace, open_host: Callable[..., Any] | None = None) -> int:
    """Compare what ``args`` ask for and show it.

    Args:
        args: the command's options.
        open_host: opens a session for a side, with threads and a seed, for ``--interleave``.

    Returns:
        0; 3 if a row is slower than ``--fail-on`` allows; 130 after Ctrl-C.

    Raises:
        UsageError: bad input, no such run, or rows that cannot be matched.
        PydlbenchError: nothing was timed in both.
    """
    from pydlbench.cli.compare_output import Outputs

    outputs = Outputs.from_args(args)
    if args.published:
        from pydlbench.cli.compare_published import run_published

        _refuse(args, _WITH_PUBLISHED, "with --published")
        with reading_files(args.runs):
            return run_published(args, outputs)
    if args.model is not None:
        raise UsageError(f"--model {args.model}: with --published only; nearest: --published")
    if not args.interleave:
        _refuse(args, _WITH_INTERLEAVE, "without --interleave", "--interleave")
    threshold = _threshold(args.fail_on)
    settings = _settings(args.same)
    if len(args.runs) != 2:  # A and B
        raise UsageError(
            f"RUN: {len(args.runs)} given, two are compared; nearest: pydlbench compare last~1 last"
        )
    with without_collection():
        if args.interleave:
            from pydlbench.cli.compare_interleave import interleaved

            found, interrupted = interleaved(args, settings, open_host)
        else:
            with reading_files(args.runs):
                found, interrupted = _stored(args, settings), False
        if not found.rows:
            raise PydlbenchError(_nothing(found))
        with reading_files([] if args.interleave else args.runs):
            outputs.show(found)
        if interrupted:
            return 130
        return 0 if threshold is None else _judged(found, threshold)


def _stored(args: argparse.Namespace, settings: Settings) -> Comparison:
    """Compare two stored runs."""
    from pydlbench.cli.compare_sides import earlier_runs, read_sides
    from pydlbench.cli.store_option import reading_store
    from pydlbench.compare import compare, from_history, match
    from pydlbench.compare.keys import key

    store = reading_store(args)
    try:
        a, b = read_sides(args.runs, store)
        matching = match(a, b)
        past = [] if store is None else earlier_runs(store, a, b)
        return compare(
            a,
            b,
            matching,
            settings,
            lambda assumed, pairs: from_history(assumed, [key(pair.b) for pair in pairs], past),
        )
    finally:
        if store is not None:
            store.close()


def _refuse(
    args: argparse.Namespace, names: tuple[str, ...], where: str, near: str = "leave it out"
) -> None:
    for name in names:
        value = getattr(args, name)
        if value not in (None, False):
            option = f"--{name.replace('_', '-')}"
            text = option if value is True else f"{option} {value}"
            raise UsageError(f"{text}: has no meaning {where}; nearest: {near}")


def _threshold(text: str | None) -> float | None:
    if text is None:
        return None
    from pydlbench.cli.fail_on import read_threshold

    return read_threshold(text)


def _settings(same: str | None) -> Settings:
    from pydlbench.compare import Settings

    if same is None:
        return Settings()
    from pydlbench.cli.values import fraction

    percent = same.removesuffix("%").strip()
    try:
        value = fraction("--same", percent, 0.0, 100.0)
    except UsageError:
        raise UsageError(
            f"--same {same}: expected a percentage between 0 and 100; nearest: 2%"
        ) from None
    return Settings(margin=value / 100)


def _nothing(found: Comparison) -> str:
    untimed = found.matching.untimed
    reason = next((one for one in found.notes), "")
    if not untimed:
        return f"nothing to compare: {reason or 'no row is in both runs'}"
    pair = untimed[0]
    return (
        f"no row was timed in both runs: {pair.b.layer} {pair.b.pass_} is {pair.a.status} in "
        f"{found.a.name} and {pair.b.status} in {found.b.name}"
        f"{f' ({reason})' if reason else ''}; measure it again"
    )


def _judged(found: Comparison, threshold: float) -> int:
    from pydlbench.cli.fail_on import FOUND
    from pydlbench.cli.streams import tell
    from pydlbench.report.compare_words import change, names_of

    slow = found.slower(threshold)
    if not slow:
        return 0
    worst = slow[0]
    count = "1 row is" if len(slow) == 1 else f"{len(slow)} rows are"
    tell(
        f"--fail-on: {count} slower by more than {100 * threshold:g} %: "
        f"{names_of(row.b for row in slow)}; the most: {change(worst.counts.ratio)}"
    )
    sys.stdout.flush()
    return FOUND
