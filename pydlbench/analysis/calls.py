"""The calls of a step as a subject, each alone, with what libraries log of them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pydlbench.analysis.rows import batches
from pydlbench.analysis.subjects import with_parts
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.timed_calls import LoggedOperators
from pydlbench.errors import UnsupportedError
from pydlbench.records.operator import OperatorsFacts
from pydlbench.timing.statistics import median, middle_rounds, sum_known

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
    """Distinct calls of a step, made ready in a process of its framework.

    They are a subject: a sample is a round of all of them, whose parts they are. Operands of all
    calls lie in memory together where they have room; else they are made up, and as many calls as
    have room are made ready at a time, anew in each visit. On a CPU freed pages are kept; on a GPU
    calls are in the process of the traced step, in which cuDNN's benchmark mode has chosen their
    kernels.

    Args:
        step: how the step runs.
        session: whose worker is asked.
        calls: those of one signature are one.
        logging: in a process of its own, whose libraries log what they execute in each call.
        of_step: on the operands that the step has, which is run for that; else on made-up ones.
        repeats: how often each runs in a row, see
            :class:`~pydlbench.backends.steps.timed_calls.OperatorsKernel`; on a GPU how many parts
            each has, see :class:`~pydlbench.backends.steps.device.DeviceOperators`.

    Attributes:
        kernel: of all calls; None where they have no room together.
        facts: what the worker says of calls.
        notes: which operands are made up although the step's were wanted.
        refused: by signature, why a call could not be made ready.
        executions: by signature, what was logged; of those that were made ready so far.
        names: of the calls, once they were sampled, in the order of their parts.
    """

    def __init__(
        self,
        step: StepSpec,
        session: Session,
        calls: Sequence[RecordedCall],
        *,
        logging: bool = False,
        of_step: bool = False,
        repeats: int = 1,
    ) -> None:
        self._step, self._session, self._logging = step, session, logging
        self._repeats = repeats
        self.names: list[str] = []
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

    def sample(self, request: Request) -> Chunk:
        """Run rounds of all calls."""
        names: list[str] = []
        row: list[float] = []
        rows: list[tuple[float, ...]] = []
        chunks: list[Chunk] = []
        per_call = LoggedOperators.PARTS if self._logging else self._repeats
        for some, chunk in self.visit(msgspec.structs.replace(request, inner=self._repeats)):
            chunks.append(chunk)
            names += some
            width = per_call * len(some)
            rows = [
                tuple(chunk.seconds[begin : begin + width])
                for begin in range(0, len(chunk.seconds), width)
            ]
            # Logs are of the very execution that they explain.
            if self._logging:
                row += middle_rounds(chunk.seconds, width)
            else:
                row += map(median, zip(*rows, strict=True))
        if not chunks:
            raise UnsupportedError("no call could be prepared to run alone")
        if self.names and self.names != names:
            raise UnsupportedError("other calls could be made ready than in the first round")
        self.names = names
        chunk = chunks[0]
        if len(chunks) > 1:  # each of them had rounds of its own, and counters
            rows = [tuple(row)]
            chunk = msgspec.structs.replace(
                chunk,
                faults=None,
                voluntary=None,
                involuntary=None,
                others_s=sum_known(each.others_s for each in chunks),
                cpu_s=sum_known(each.cpu_s for each in chunks),
                **{
                    name: sum(getattr(each, name) for each in chunks)
                    for name in ("run_delay_s", "steal_s", "wall_s")
                },
            )
        return with_parts(chunk, [sum(row[::per_call]) for row in rows], rows)

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
        step = self._step
        worker = self._session.worker(
            step.framework, step.device, warm=not step.on_gpu, logging=self._logging
        )
        kernel = worker.build(
            requests.request_logged_calls if self._logging else requests.request_calls,
            OperatorsFacts,
            # What is fed is an operator of its own.
            spec=msgspec.structs.replace(step, feed="resident").to_dict(),
            signatures=[each.signature for each in self._batches[number]],
            **self._more,
        )
        self.refused |= kernel.facts.refused
        self.executions |= kernel.facts.executions
        self.facts = kernel.facts
        return kernel
