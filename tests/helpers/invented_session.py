"""An invented session: what the command line opens, without a worker behind it."""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from invented_rows import row_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.run import RunRecord


def stop_after(count: int, error: BaseException | None = None) -> Callable[[int], None]:
    """What ends a session once it has measured so many: Ctrl-C, or an error."""

    def before(measured: int) -> None:
        if measured == count:
            raise error or KeyboardInterrupt

    return before


class InventedSession:
    """Gives an invented row for each case.

    Args:
        run: its record.
        row: makes the row of a case.
        before: called ahead of each thing that is measured, with how many were.

    Attributes:
        opened: the options of each opening.
        cases: those that were measured.
        measured: labels of all that was measured.
        how: further keywords of the measuring, each time.
        remembered: what it was told of kernels that are known already.
        errors: raised where the label of what is to be measured has this word in it.
    """

    def __init__(
        self,
        run: RunRecord,
        row: Callable[[Any], Measurement] = row_of,
        before: Callable[[int], None] | None = None,
    ) -> None:
        self.run = run
        self.row = row
        self.before = before or (lambda _: None)
        self.opened: list[dict[str, Any]] = []
        self.cases: list[Any] = []
        self.measured: list[str] = []
        self.how: list[dict[str, Any]] = []
        self.remembered: list[tuple[str, str, str]] = []
        self.errors: dict[str, BaseException] = {}

    @property
    def layers(self) -> list[str]:
        """Names of the measured layers, without their model's."""
        return [case.layer.name.partition("/")[2] for case in self.cases]

    @contextmanager
    def open(self, **options: Any) -> Iterator[InventedSession]:
        self.opened.append(options)
        yield self

    def check_room(self, cases: Any) -> None:
        """There is always enough."""

    def cache_bytes(self, device: str) -> int:
        assert device == "cpu"
        return 1 << 40

    def remember(self, case: Any, algorithm: str, layout: str) -> None:
        self.remembered.append((case.label, algorithm, layout))

    def begin(self, label: str) -> None:
        """Note what is measured next, or raise what ends it."""
        for word, error in self.errors.items():
            if word in label:
                raise error
        self.before(len(self.measured))
        self.measured.append(label)

    def measure(self, cases: Any, progress: Any, **how: Any) -> Iterator[tuple[Any, Measurement]]:
        self.how.append(how)
        for number, case in enumerate(cases):
            progress(number, len(cases), case.label)
            self.begin(case.label)
            self.cases.append(case)
            yield case, self.row(case)
