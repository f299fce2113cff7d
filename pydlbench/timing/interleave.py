"""Round by round through several kernels, so that what is compared saw the same drift."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import random
    from collections.abc import Callable, Sequence

    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.timing.procedure import Sampling

__all__ = ["interleave"]


def interleave(
    samplings: Sequence[Sampling],
    sample: Callable[[int, Request], Chunk | None],
    rng: random.Random,
    on_round: Callable[[int], None] | None = None,
) -> None:
    """Drive all samplings to their end.

    Every kernel is calibrated and warmed up before the first round, so that equal round numbers
    mean the same moment. Each pass visits the kernels in a new order: with a fixed one, each would
    always follow the same neighbour and inherit its caches and temperature.

    Args:
        samplings: one per kernel.
        sample: runs a request on kernel ``i``; None gives the kernel up (its worker died, say),
            the others go on.
        rng: seeded source of the order.
        on_round: called with the round's number after each full round.
    """
    live = set(range(len(samplings)))

    def visit(indexes: list[int], round_index: int | None) -> None:
        rng.shuffle(indexes)
        for i in indexes:
            request = samplings[i].next_request()
            chunk = None if request is None else sample(i, request)
            if chunk is None:
                live.discard(i)
            else:
                samplings[i].feed(chunk, round_index)

    while cold := [i for i in sorted(live) if samplings[i].phase in ("calibrate", "warm-up")]:
        visit(cold, None)
    round_index = 0
    while ready := [i for i in sorted(live) if not samplings[i].done]:
        visit(ready, round_index)
        if on_round is not None:
            on_round(round_index)
        round_index += 1
