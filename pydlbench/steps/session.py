"""A session that times whole steps of frameworks as well as kernels."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydlbench.runner.session import Session

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from pydlbench.protocols.runner import ProtocolResult, ProtocolSpec
    from pydlbench.records.agreement import Agreement
    from pydlbench.records.step import StepRecord, StepSpec


class StepSession(Session):
    """Times steps, holds frameworks against each other, runs published protocols."""

    def steps(
        self,
        steps: Sequence[StepSpec],
        *,
        visits: int | None = None,
        checks: bool,
        trace: bool,
        progress: Callable[[int, int, str], None],
    ) -> list[StepRecord]:
        """Check steps, unless ``checks`` is off, time them in turn, and trace each.

        ``visits`` is how many fresh processes each has; None is as the session's options say.
        """
        from pydlbench.records.step import StepPreparation
        from pydlbench.steps.run import run_in_turn

        how = StepPreparation(checks=checks)
        return run_in_turn(
            steps, self, visits=visits, preparation=how, trace=trace, progress=progress
        )

    def agreement(self, step: StepSpec, frameworks: tuple[str, str]) -> Agreement:
        """Hold two frameworks' numbers of a step against each other."""
        from pydlbench.steps.agreement import agree

        return agree(step, self, frameworks)

    def protocol(
        self, spec: ProtocolSpec, write: Callable[[str], None], note: Callable[[str], None]
    ) -> ProtocolResult:
        """Run a published protocol; ``write`` takes what it prints, ``note`` what is to be said."""
        from pydlbench.protocols.runner import run_in_worker

        return run_in_worker(spec, self, write, note)
