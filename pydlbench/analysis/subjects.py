"""Traced steps as subjects, and samples with parts."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from pydlbench.steps.traced import Rounds

if TYPE_CHECKING:
    from collections.abc import Sequence

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


def with_parts(chunk: Chunk, seconds: Sequence[float], parts: Sequence[Sequence[float]]) -> Chunk:
    """Return a chunk whose samples have parts.

    Args:
        chunk: with the counters around them.
        seconds: of each sample.
        parts: of each sample.
    """
    return msgspec.structs.replace(chunk, seconds=tuple(seconds), parts=tuple(map(tuple, parts)))
