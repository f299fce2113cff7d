"""``compare --published``: own results beside published figures, or the figures alone."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Any

from pydlbench.errors import UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Sequence

    from pydlbench.cli.compare_output import Outputs
    from pydlbench.published import Beside, Figure, Own

__all__ = ["run_published"]


def run_published(args: argparse.Namespace, outputs: Outputs) -> int:
    """Show the figures of ``--model``, each with the results of the given runs.

    Args:
        args: the command's options.
        outputs: where to.

    Returns:
        0; 1 if runs were given and no figure has a result of them beside it.

    Raises:
        UsageError: no such run, no such model.
    """
    from pydlbench.published import beside, find_figures
    from pydlbench.report.published_table import published_markdown, render_published
    from pydlbench.report.style import Style
    from pydlbench.results.export_json import dump

    figures = find_figures(args.model)
    own = _own(args)
    found = beside(figures, own)
    given = bool(args.runs)
    outputs.write(
        {
            "json": lambda: dump(_document(found, args.runs, given)),
            "md": lambda: published_markdown(found, own=given),
        },
        lambda: render_published(found, Style.of(sys.stdout), own=given),
    )
    return 1 if given and not any(ours for _, ours in found) else 0


def _own(args: argparse.Namespace) -> list[Own]:
    from pydlbench.cli.store_option import reading_store
    from pydlbench.published import own_figures
    from pydlbench.results.store import load

    if not args.runs:
        return []
    store = reading_store(args)
    try:
        return [
            one for name in args.runs for one in own_figures(name, load(name, store), _script_batch)
        ]
    finally:
        if store is not None:
            store.close()


def _script_batch(protocol: str, model: str) -> int | None:
    """Return the batch that a script gives a model by itself."""
    from pydlbench.endtoend.protocols import find_protocol

    try:
        return find_protocol(protocol).settings(model).batch
    except UsageError:  # of a pydlbench that knows more protocols
        return None


def _document(
    found: Sequence[tuple[Figure, Sequence[Beside]]], runs: Sequence[str], given: bool
) -> dict[str, Any]:
    return {
        "runs": list(runs),
        "published": [
            {**figure.to_dict(), "own": [one.to_dict() for one in ours]}
            for figure, ours in found
            if ours or not given
        ],
    }
