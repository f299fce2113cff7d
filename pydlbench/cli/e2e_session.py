"""What ``e2e`` needs of a session; the tests of the command line invent one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol, Self

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from types import TracebackType

    from pydlbench.endtoend import Agreement, StepCase, StepRecord
    from pydlbench.endtoend.playing import Played, ProtocolCase
    from pydlbench.results import RunRecord

__all__ = ["StepSession", "open_session"]


class StepSession(Protocol):
    """Times steps, compares frameworks, plays protocols."""

    @property
    def run(self) -> RunRecord:
        """The record of the run."""

    @property
    def memory_bytes(self) -> int | None:
        """Bytes of memory that are available."""

    def steps(
        self,
        cases: Sequence[StepCase],
        *,
        checks: bool,
        progress: Callable[[int, int, str], None],
    ) -> list[StepRecord]:
        """Check steps and time them in turn."""

    def agreement(self, case: StepCase) -> Agreement:
        """Hold the two frameworks' numbers against each other."""

    def play(
        self, case: ProtocolCase, write: Callable[[str], None], note: Callable[[str], None]
    ) -> Played:
        """Play a protocol."""


class _Session:
    """The real one."""

    def __init__(self, options: dict[str, Any]) -> None:
        from pydlbench.measure import Options, Session

        self._session = Session(Options(**options))

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._session.close()

    @property
    def run(self) -> RunRecord:
        return self._session.run

    @property
    def memory_bytes(self) -> int | None:
        return self._session.facts.memory_available_bytes

    def steps(
        self,
        cases: Sequence[StepCase],
        *,
        checks: bool,
        progress: Callable[[int, int, str], None],
    ) -> list[StepRecord]:
        from pydlbench.endtoend import StepPreparation, run_in_turn

        how = StepPreparation(checks=checks)
        return run_in_turn(cases, self._session, preparation=how, progress=progress)

    def agreement(self, case: StepCase) -> Agreement:
        from pydlbench.endtoend import agree

        return agree(case, self._session)

    def play(
        self, case: ProtocolCase, write: Callable[[str], None], note: Callable[[str], None]
    ) -> Played:
        from pydlbench.endtoend.playing import play

        return play(case, self._session, write, note)


def open_session(**options: Any) -> _Session:
    """Open a session for the options of ``measure.Options``."""
    return _Session(options)
