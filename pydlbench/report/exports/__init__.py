"""Results in the formats of other tools, one file a format.

A format is a function from runs with their entries to a file's text, and notes on what is not in
it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

from pydlbench.report.exports import perfetto, tracking, tritonbench

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from pydlbench.records.run import RunRecord
    from pydlbench.store.entry import Entry

    Runs = Sequence[tuple[RunRecord, Sequence[Entry]]]

#: By the name that ``export --format`` knows them by.
EXPORTS: Final[Mapping[str, Callable[[Runs], tuple[str, list[str]]]]] = {
    "trace": perfetto.write,
    "bencher": tracking.write_bencher,
    "github-action-benchmark": tracking.write_github,
    "tritonbench": tritonbench.write,
}
