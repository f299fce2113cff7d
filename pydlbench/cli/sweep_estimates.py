"""The estimate of a sweep's row: its kernels, from wherever they are, and their sum."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.errors import PydlbenchError

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.case import Case
    from pydlbench.results import Measurement
    from pydlbench.sweep import Job, Row

__all__ = ["EstimateRow"]


class EstimateRow:
    """Sums the kernels of a step.

    Args:
        job: with a ``ModelRequest``.
        row: of it.
        cache_bytes: of the device's last cache: what is smaller has no cold time of its own.
    """

    def __init__(self, job: Job, row: Row, cache_bytes: int) -> None:
        self._job = job
        self._row = row
        self._cache_bytes = cache_bytes

    def document(
        self, kernel: Callable[[Job, Row, Case, str, float], Measurement]
    ) -> dict[str, Any]:
        """Return the JSON object.

        Args:
            kernel: gives a kernel's row for job, row, case, a label, and the share that is done.

        Raises:
            PydlbenchError: none of the layers could be measured.
        """
        from pydlbench.cli.model_running import summed
        from pydlbench.compose import plan

        job, asked = self._job, self._job.request
        wanted = plan(asked.model, asked.phase, asked.precision, asked.device, self._cache_bytes)
        count = len(wanted.cases)
        rows: dict[Case, Measurement] = {}
        for number, case in enumerate(wanted.cases):
            label = f"{self._row.label}: {case.label}, {number} of {count} kernels"
            rows[case] = kernel(job, self._row, case, label, number / count)
        found = summed(asked, wanted, rows, self._cache_bytes)
        if not found.estimate.layers:
            reasons = dict.fromkeys(one.reason for one in rows.values() if one.reason)
            raise PydlbenchError(f"no layer could be measured: {next(iter(reasons), 'no layers')}")
        return found.document
