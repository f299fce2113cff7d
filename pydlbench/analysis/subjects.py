"""What a breakdown samples: traced steps and calls alone, as samples with parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pydlbench.errors import UnsupportedError
from pydlbench.steps.traced import Rounds
from pydlbench.timing.statistics import median, middle_rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

    from pydlbench.analysis.calls import ReadyCalls
    from pydlbench.records.step import StepFacts
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.workers.host import RemoteKernel


@dataclass(frozen=True, slots=True)
class TracedStep:
    """A traced step as a subject: samples with the seconds of their calls.

    Attributes:
        kernel: runs the step traced and untraced in turn.
        way: it is traced, see :data:`~pydlbench.records.trace.TRACES`.
        calls: in a step.
        gaps: on a GPU, how many things a step has besides.
        plain: a sample is the step that ran untraced beside it, and its calls have their shares.
        rounds: all that were sampled, each with the step beside it: what tracing costs.
    """

    kernel: RemoteKernel[StepFacts]
    way: str
    calls: int
    gaps: int = 0
    plain: bool = False
    rounds: list[Rounds] = field(default_factory=list)

    def sample(self, request: Request) -> Chunk:
        """Run the requested steps; a sample is the step that its calls' seconds are of.

        On a GPU the parts of a sample are its calls, its gaps, and the host in each call.
        """
        chunk = self.kernel.sample(
            msgspec.structs.replace(request, timing=self.way, inner=1, touch=False)
        )
        rounds = Rounds.of_seconds(chunk.seconds, self.calls, self.gaps)
        self.rounds.append(rounds)
        # Time stamps time a chain of the same calls, which is not the step: that ran beside it.
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


@dataclass(frozen=True, slots=True)
class CallsAlone:
    """Distinct calls as a subject: a sample is a round of all of them, whose parts they are.

    Attributes:
        ready: made ready, all at a time or as many as have room.
        names: of the calls, once they were sampled, in the order of their parts.
        width: values of a call in a round.
        repeats: how often each runs in a row, see
            :class:`~pydlbench.backends.steps.operators.OperatorsKernel`.
    """

    ready: ReadyCalls
    names: list[str]
    width: int = 1
    repeats: int = 1

    def sample(self, request: Request) -> Chunk:
        """Run rounds of all calls."""
        names: list[str] = []
        row: list[float] = []
        rows: list[tuple[float, ...]] = []
        chunks: list[Chunk] = []
        request = msgspec.structs.replace(request, inner=self.repeats)
        for some, chunk in self.ready.visit(request):
            chunks.append(chunk)
            names += some
            width = self.width * len(some)
            rows = [
                tuple(chunk.seconds[begin : begin + width])
                for begin in range(0, len(chunk.seconds), width)
            ]
            # Logs are of the very execution that they explain.
            if self.width > self.repeats:
                row += middle_rounds(chunk.seconds, width)
            else:
                row += map(median, zip(*rows, strict=True))
        if not chunks:
            raise UnsupportedError("no call could be prepared to run alone")
        if self.names and self.names != names:
            raise UnsupportedError("other calls could be made ready than in the first round")
        self.names[:] = names
        chunk = chunks[0]
        if len(chunks) > 1:  # each of them had rounds of its own, and counters
            rows = [tuple(row)]
            chunk = msgspec.structs.replace(chunk, faults=None, voluntary=None, involuntary=None)
        return with_parts(chunk, [sum(row[:: self.width]) for row in rows], rows)


def with_parts(chunk: Chunk, seconds: Sequence[float], parts: Sequence[Sequence[float]]) -> Chunk:
    """Return a chunk whose samples have parts.

    Args:
        chunk: with the counters around them.
        seconds: of each sample.
        parts: of each sample.
    """
    return msgspec.structs.replace(chunk, seconds=tuple(seconds), parts=tuple(map(tuple, parts)))
