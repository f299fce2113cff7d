"""Two installations of this package, interleaved, each measured by workers of its own interpreter.

Anything that is installed may differ: the framework, oneDNN, a compiler's flags, pydlbench itself.
Interference in a round affects both and cancels.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import Any

from pydlbench.compare.comparison import MARGIN, Comparison
from pydlbench.compare.interleaved import compare_interleaved
from pydlbench.compare.match import Matching, Pair
from pydlbench.compare.rerun import RerunPair, RerunSide
from pydlbench.compare.rows import Side, SideRow, row_of_step
from pydlbench.errors import PydlbenchError
from pydlbench.records.specs import KernelSpec
from pydlbench.records.step import StepSpec
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session
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
        RunnerOptions(threads=threads, seed=seed, keep_probes=False, python=installation.python)
    )


def compare_installations(
    installations: Installations,
    pairs: Sequence[RerunPair],
    device: Mapping[str, Any],
    margin: float = MARGIN,
    finished: int | None = None,
) -> Comparison:
    """Compare two installations.

    Args:
        installations: A and B.
        pairs: pairs that :func:`pydlbench.compare.rerun.take_pass` has measured.
        device: device of a run's record.
        margin: ratios within 1 +- this count as the same.
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
    compared = compare_interleaved(a, b, matching, pairs, margin, finished)
    if not compared.rows:
        reason = next(iter(compared.notes), "no pass was finished")
        raise PydlbenchError(f"nothing to compare: {reason}")
    return dataclasses.replace(compared, installations=True)


def _row(side: RerunSide) -> SideRow:
    """Return the row of a side, without a time."""
    spec = side.spec
    threads = side.threads if spec.device == "cpu" else None
    if not isinstance(spec, KernelSpec):
        return row_of_step(spec.to_dict())._replace(threads=threads, status="ok")
    layer = spec.layer
    values: dict[str, Any] = dict.fromkeys(SideRow._fields)
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
    return SideRow(**values)
