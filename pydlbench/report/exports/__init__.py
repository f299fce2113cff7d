"""Results in the formats of other tools, one module for each format.

A format is a function that takes runs with their entries, and returns a file's text and notes on
entries that are not in it.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Final

from pydlbench.records.run import RunRecord
from pydlbench.report.exports import perfetto, tracking, tritonbench
from pydlbench.store.entry import Entry

Runs = Sequence[tuple[RunRecord, Sequence[Entry]]]

#: Formats by their name in ``export --format``.
EXPORTS: Final[Mapping[str, Callable[[Runs], tuple[str, list[str]]]]] = {
    "trace": perfetto.write,
    "bencher": tracking.write_bencher,
    "github-action-benchmark": tracking.write_github,
    "tritonbench": tritonbench.write,
}
