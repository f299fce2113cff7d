"""Two installations of this package, interleaved, each measured by workers of its own interpreter.

Anything that is installed may differ: the framework, oneDNN, a compiler's flags, pydlbench itself.
What the machine does in a round affects both and cancels.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from typing import TYPE_CHECKING, Any

from pydlbench.compare.interleaved import compare_interleaved
from pydlbench.compare.match import Matching, Pair
from pydlbench.compare.rerun import RerunPair, RerunSide, measured_sides
from pydlbench.compare.rows import Row, Side, row_of_step
from pydlbench.errors import PydlbenchError
from pydlbench.records.specs import KernelSpec
from pydlbench.runner.options import Options
from pydlbench.runner.session import Session

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from pydlbench.compare.comparison import Comparison, Settings
    from pydlbench.records.step import StepSpec
    from pydlbench.workers.installation import Installation

#: A and B.
Installations = tuple["Installation", "Installation"]


def pairs_of(
    specs: Sequence[KernelSpec | StepSpec], threads: int | None = None
) -> tuple[RerunPair, ...]:
    """Return the pairs that both installations measure.

    Args:
        specs: layers and steps.
        threads: threads of each; None for one per physical core.
    """
    sides = (RerunSide(spec=spec, threads=threads) for spec in specs)
    return tuple(RerunPair(sides=(side, side)) for side in sides)


def open_session(installation: Installation, threads: int | None, seed: int) -> Session:
    """Open a session whose workers are those of an installation.

    Stored kernels of this installation are not used.
    """
    return Session(
        Options(threads=threads, seed=seed, keep_probes=False, python=installation.python)
    )


def compare_installations(
    installations: Installations,
    pairs: Sequence[RerunPair],
    device: Mapping[str, Any],
    settings: Settings | None = None,
    finished: int | None = None,
) -> Comparison:
    """Compare two installations.

    Args:
        installations: A and B.
        pairs: pairs that :func:`pydlbench.compare.rerun.take_pass` has measured.
        device: device of a run's record.
        settings: settings of the verdicts.
        finished: number of passes; None for the largest number of any pair.

    Raises:
        PydlbenchError: nothing was measured in both.
    """
    rows = [_row(pair.sides[0]) for pair in pairs]
    a, b = (
        Side(
            name=installation.name,
            rows=rows,
            device=device,
            environment=installation.environment,
        )
        for installation in installations
    )
    matching = Matching(pairs=[Pair(row, row) for row in rows], only_a=[], only_b=[], untimed=[])
    first, second, matched = measured_sides(a, b, matching, pairs)
    measured = [pair.passes for pair in pairs if pair.passes.logs]
    notes = lost(pairs)
    if not measured:
        raise PydlbenchError(f"nothing to compare: {notes[0] if notes else 'no pass was finished'}")
    compared = compare_interleaved(first, second, matched, measured, settings, finished, notes)
    return dataclasses.replace(compared, installations=True)


def lost(pairs: Sequence[RerunPair]) -> tuple[str, ...]:
    """Return notes on what could not be measured."""
    reasons = Counter(pair.passes.reason for pair in pairs if not pair.passes.logs)
    return tuple(
        f"{count} {'row' if count == 1 else 'rows'} could not be measured: {reason}"
        for reason, count in reasons.items()
        if reason is not None
    )


def _row(side: RerunSide) -> Row:
    """Return the row of a side, without a time."""
    spec = side.spec
    threads = side.threads if spec.device == "cpu" else None
    if not isinstance(spec, KernelSpec):
        return row_of_step(spec.to_dict())._replace(threads=threads, status="ok")
    layer = spec.layer
    values: dict[str, Any] = dict.fromkeys(Row._fields)
    values.update(
        layer=layer.name or layer.problem,
        kind=layer.kind,
        problem=layer.problem,
        batch=layer.batch,
        threads=threads,
        layout_request=spec.layout,
        status="ok",
    )
    shared = ("pass_", "precision", "device", "backend", "mode", "cache", "timing", "fuse")
    values.update({name: getattr(spec, name) for name in (*shared, "propagation")})
    return Row(**values)
