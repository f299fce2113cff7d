"""The calls of a step made ready, each to be timed alone, with what libraries log of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pydlbench.analysis.rows import batches
from pydlbench.backends.steps import operations
from pydlbench.records.operator import OperatorsFacts

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from pydlbench.records.operator import RecordedCall
    from pydlbench.records.step import StepSpec
    from pydlbench.runner.session import Session
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.workers.host import RemoteKernel

# Operands of all calls lie in memory together if they take no more than this share of what is
# available; else calls are made ready anew in each round, as many as there is room for. Those of
# the log are there besides, beside whole steps.
_ROOM = 1 / 4
_ROOM_LOGGED = 1 / 8


class ReadyCalls:
    """Distinct calls of a step made ready in a process of its framework.

    Operands of all calls lie in memory together where they have room; else they are made up, and
    as many calls as have room are made ready at a time, anew in each visit. Freed pages are kept.

    Args:
        step: how the step runs.
        session: whose worker is asked.
        calls: those of one signature are one.
        logging: in a process of its own, whose libraries log what they execute in each call.
        of_step: on the operands that the step has, which is run for that; else on made-up ones.

    Attributes:
        kernel: of all calls; None where they have no room together.
        facts: what the worker says of calls.
        notes: which operands are made up although the step's were wanted.
        refused: by signature, why a call could not be made ready.
        executions: by signature, what was logged; of those that were made ready so far.
    """

    def __init__(
        self,
        step: StepSpec,
        session: Session,
        calls: Sequence[RecordedCall],
        *,
        logging: bool = False,
        of_step: bool = False,
    ) -> None:
        self._step, self._session, self._logging = step, session, logging
        # Forwards and backwards a call may be the same.
        once = list({call.signature: call for call in calls}.values())
        self._batches = [once]
        available = session.room_bytes(step.device)
        if available:
            room = _ROOM_LOGGED if logging else _ROOM
            self._batches = list(batches(once, int(room * available)))
        self.refused: dict[str, str] = {}
        self.executions: dict[str, Mapping[str, int]] = {}
        self.facts = OperatorsFacts()
        together = len(self._batches) == 1
        self._more = {"of_step": True} if of_step and together else {}
        self.kernel = self._prepare(0) if together else None
        self.notes = self.facts.notes
        if of_step and not together:
            self.notes = (
                "calls alone on values that are made up: there is no room for those of the step",
            )

    def visit(self, request: Request) -> Iterator[tuple[tuple[str, ...], Chunk]]:
        """Sample all calls; yields those of a batch with their chunk, call by call.

        Args:
            request: of each batch.
        """
        for number in range(len(self._batches)):
            kernel = self.kernel or self._prepare(number)
            try:
                if kernel.facts.names:
                    yield kernel.facts.names, kernel.sample(request)
            finally:
                if self.kernel is None:
                    kernel.release()

    def _prepare(self, number: int) -> RemoteKernel[OperatorsFacts]:
        worker = self._session.worker(
            self._step.framework, self._step.device, warm=True, logging=self._logging
        )
        kernel = worker.build(
            operations.prepare_logged_calls if self._logging else operations.prepare_calls,
            OperatorsFacts,
            # What is fed is an operator of its own.
            spec=msgspec.structs.replace(self._step, feed="resident").to_dict(),
            signatures=[each.signature for each in self._batches[number]],
            **self._more,
        )
        self.refused |= kernel.facts.refused
        self.executions |= kernel.facts.executions
        self.facts = kernel.facts
        return kernel
