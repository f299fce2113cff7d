"""Rounds: all parts, then the prediction is written down, then the step, twice."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Protocol

from pydlbench.crosscheck.prediction import by_piece, predict
from pydlbench.crosscheck.record import RoundRow
from pydlbench.side_by_side import REST_S
from pydlbench.timing.chunk import Request
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pydlbench.crosscheck.pieces import Piece
    from pydlbench.crosscheck.prediction import Calibration
    from pydlbench.timing.chunk import Chunk

__all__ = ["Rounds", "Sampled"]

#: Fewer rounds have no interval, and no median to speak of.
LEAST = 5
# Samples of a kernel in a round together take so long, in seconds; one at least, so many at most.
_CHUNK_S = 0.1
_MOST = 20
# What is slower has replaced all that the caches held before its first tenth is over.
_SETTLE_S = 0.1


class Sampled(Protocol):
    """A prepared kernel."""

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples."""


class Rounds:
    """Takes rounds one after another.

    Args:
        found: the parts.
        parts: runs all of them, and what is to be known besides, in this order.
        calibration: what calls cost.
        replay: plays a step's allocations; None where the framework keeps its pages itself.
        step: the step with the default allocator.
        kept: the step with an allocator that keeps its pages.
        order: in which the two steps run.
        besides: parts that are timed too, and in no prediction.
        rest: called between processes, so that the last one's threads fall asleep.
    """

    def __init__(
        self,
        found: Sequence[Piece],
        parts: Sampled,
        calibration: Calibration,
        replay: Sampled | None,
        step: Sampled,
        kept: Sampled,
        order: random.Random,
        besides: Sequence[Piece] = (),
        rest: Callable[[], None] = lambda: time.sleep(REST_S),
    ) -> None:
        self._found = tuple(found)
        self._timed = (*self._found, *besides)
        self._calibration = calibration
        self._kernels: dict[str, Sampled | None] = {
            "parts": parts,
            "replay": replay,
            "step": step,
            "kept": kept,
        }
        self._order = order
        self._rest = rest
        self._requests = dict.fromkeys(self._kernels, Request(samples=1, untimed=1))
        self.rows: list[RoundRow] = []
        self.times: list[dict[str, float]] = []
        self.faults: dict[str, list[float]] = {name: [] for name in self._kernels}

    def warm_up(self) -> None:
        """Take a round that is not kept, and set how many samples the others take."""
        for name, kernel in self._kernels.items():
            if kernel is None:
                continue
            self._rest()
            chunk = kernel.sample(self._requests[name])
            once = sum(chunk.seconds)
            samples = min(_MOST, max(1, int(_CHUNK_S / max(once, 1e-6))))
            untimed = 1 if once < _SETTLE_S else 0
            self._requests[name] = Request(samples=samples, untimed=untimed)

    def take(self) -> RoundRow:
        """Take one round and return it."""
        chunk = self._sample("parts")
        times = by_piece(chunk.seconds, self._timed, self._calibration)
        pieces_s = predict(times, self._found, self._calibration)
        faults_s = 0.0
        if self._kernels["replay"] is not None:
            faults_s = median(self._sample("replay").seconds)
        estimate_s = pieces_s + faults_s  # nothing below can change it any more
        steps = ["step", "kept"]
        self._order.shuffle(steps)
        seconds = {name: median(self._sample(name).seconds) for name in steps}
        row = RoundRow(
            pieces_s=pieces_s,
            faults_s=faults_s,
            estimate_s=estimate_s,
            measured_s=seconds["step"],
            kept_s=seconds["kept"],
        )
        self.rows.append(row)
        self.times.append(times)
        return row

    def median_times(self) -> dict[str, float]:
        """Return each part's seconds: the median over the rounds."""
        return {one.name: median(t[one.name] for t in self.times) for one in self._timed}

    def median_faults(self, name: str) -> float | None:
        """Return a kernel's faults per execution: the median over the rounds."""
        return median(self.faults[name]) if self.faults[name] else None

    def _sample(self, name: str) -> Chunk:
        kernel = self._kernels[name]
        if kernel is None:
            raise ValueError(f"no {name} to sample")
        self._rest()
        chunk = kernel.sample(self._requests[name])
        if chunk.faults is not None:
            self.faults[name].append(chunk.faults)
        return chunk
