"""Subjects of a breakdown with parts: traced steps, and the calls of a step alone."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

import msgspec

from pydlbench.analysis.rows import batches
from pydlbench.backends.steps import requests
from pydlbench.backends.steps.timed_calls import LoggedOperators
from pydlbench.errors import UnsupportedError
from pydlbench.records.step import StepFacts, StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.runner.session import Session
from pydlbench.steps.traced import Rounds
from pydlbench.timing.chunk import Chunk, ChunkRequest
from pydlbench.timing.statistics import median, middle_rounds, sum_known
from pydlbench.workers.host import RemoteKernel

# Share of the available memory for the operands of all calls. If they need more, calls are prepared
# in batches, anew in each round. Logged calls have their operands beside these and whole steps.
_MEMORY_SHARE = 1 / 4
_LOGGED_MEMORY_SHARE = 1 / 8
# Visits that tell what tracing costs.
_PLAIN_VISITS = 2


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A traced step as a subject; the parts of a sample are the seconds of its calls.

    Attributes:
        kernel: runs the step traced and untraced in turn.
        way: one of :data:`~pydlbench.records.trace.TRACES`.
        calls: number of calls in a step.
        gaps: on a GPU, number of other parts of a step.
        plain: whether a sample is the untraced step beside the traced one, and calls have their
            shares of it.
        rounds: all rounds so far; the first visits have the untraced step, for the cost of tracing.
    """

    kernel: RemoteKernel[StepFacts]
    way: str
    calls: int
    gaps: int = 0
    plain: bool = False
    rounds: list[Rounds] = field(default_factory=list)

    def sample(self, request: ChunkRequest) -> Chunk:
        """Run the requested steps; a sample has the seconds of its calls as parts.

        On a GPU the parts of a sample are its calls, its gaps, and the host in each call.
        """
        plain = self.plain or self.way == "stamps" or len(self.rounds) < _PLAIN_VISITS
        chunk = self.kernel.sample(
            msgspec.structs.replace(request, timing=self.way, inner=1, touch=False, plain=plain)
        )
        rounds = Rounds.of_seconds(chunk.seconds, self.calls, self.gaps, plain=plain)
        self.rounds.append(rounds)
        # Time stamps are of the calls in a row, not of the step, which ran beside them.
        steps_s = rounds.plain_s if self.way == "stamps" else rounds.traced_s
        parts = rounds.calls_s
        if self.gaps:
            rows = zip(rounds.calls_s, rounds.gaps_s, rounds.host_s, strict=True)
            parts = [[*calls, *gaps, *host] for calls, gaps, host in rows]
        if self.plain:
            scales = [plain / step_s for plain, step_s in zip(rounds.plain_s, steps_s, strict=True)]
            parts = [
                [scale * each for each in row] for scale, row in zip(scales, parts, strict=True)
            ]
            steps_s = rounds.plain_s
        return with_parts(chunk, steps_s, parts)


def with_parts(chunk: Chunk, seconds: Sequence[float], parts: Sequence[Sequence[float]]) -> Chunk:
    """Return a chunk whose samples have parts.

    Args:
        chunk: chunk with the counters around its samples.
        seconds: time of each sample.
        parts: parts of each sample.
    """
    return msgspec.structs.replace(chunk, seconds=tuple(seconds), parts=tuple(map(tuple, parts)))


class ReadyCalls:
    """The distinct calls of a step as a subject, prepared in a process of its framework.

    A sample is a round of all calls, which are its parts. If memory allows it, the operands of all
    calls are in memory. If not, operands are made up, and calls are prepared in batches, anew in
    each visit. On a CPU the process keeps freed pages; on a GPU it is that of the traced step, in
    which cuDNN's benchmark mode has chosen the kernels.

    Args:
        step: the step.
        session: provides the worker.
        calls: the calls of the step; those with the same signature are one.
        logging: use a process of its own, whose libraries log their executions.
        of_step: run the step to get its operands; otherwise operands are made up.
        repeats: executions of each call in a row, see
            :class:`~pydlbench.backends.steps.timed_calls.OperatorsKernel`; on a GPU the number of
            parts of each call, see :class:`~pydlbench.backends.steps.device.DeviceOperators`.

    Attributes:
        kernel: runs all calls; None if they are prepared in batches.
        facts: the worker's facts about the calls.
        notes: a note if operands are made up although those of the step were wanted.
        refused: why a call could not be prepared, by signature.
        executions: logged executions by signature, of the calls prepared so far.
        names: the sampled calls in the order of their parts; empty before the first sample.
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
        # The same call may occur forward and backward.
        distinct = list({call.signature: call for call in calls}.values())
        self._batches = [distinct]
        available = session.room_bytes(step.device)
        if available:
            share = _LOGGED_MEMORY_SHARE if logging else _MEMORY_SHARE
            self._batches = list(batches(distinct, int(share * available)))
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

    def sample(self, request: ChunkRequest) -> Chunk:
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
            # A log belongs to one execution: rounds, not medians of single values.
            row += (
                middle_rounds(chunk.seconds, width)
                if self._logging
                else map(median, zip(*rows, strict=True))
            )
        if not chunks:
            raise UnsupportedError("no call could be prepared to run alone")
        if self.names and self.names != names:
            raise UnsupportedError("other calls could be made ready than in the first round")
        self.names = names
        chunk = chunks[0]
        if len(chunks) > 1:  # each batch had its own rounds and counters
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

    def visit(self, request: ChunkRequest) -> Iterator[tuple[tuple[str, ...], Chunk]]:
        """Sample all calls; yield the names of each batch with its chunk.

        Args:
            request: request for each batch.
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
            # Feeding the images is a call of its own.
            spec=msgspec.structs.replace(step, feed="resident").to_dict(),
            signatures=[each.signature for each in self._batches[number]],
            **self._more,
        )
        self.refused |= kernel.facts.refused
        self.executions |= kernel.facts.executions
        self.facts = kernel.facts
        return kernel
