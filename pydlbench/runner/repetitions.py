"""Repetitions of all rows of a run, each in a new random order.

The repetitions of one row are spread over the run, so that a few disturbed seconds affect one
repetition of many rows and not all repetitions of one. Between repetitions processes are replaced:
the next ones have other addresses and other memory pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pydlbench.runner.kernels import memory_held
from pydlbench.runner.problem import Problem, is_quick
from pydlbench.study.loop import random_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.kernels import Kernels
    from pydlbench.runner.machine import Workers

    #: See :class:`Repetitions`.
    Effort = Callable[[Sequence[KernelSpec], Mapping[KernelSpec, Measurement]], str | None]

# The largest share of the free memory for kernels that stay prepared between repetitions.
_KEPT_SHARE = 0.25


class Repetitions:
    """The repetitions of all rows of a run; the caller decides when the next one begins.

    Native kernels get a new process in each repetition, in which the variant that the first one
    chose is prepared again. The processes of frameworks take seconds to start, and compilers take
    seconds for a kernel: they are replaced once, after half of the repetitions, and their kernels
    stay prepared until then where memory allows it.

    Args:
        kernels: kernels of the session.
        workers: workers of the session.
        groups: specs by problem, see :func:`pydlbench.runner.problem.by_problem`.
        count: repetitions of each row.
        renew: whether processes are replaced. Otherwise repetitions differ in time and in memory
            only: each kernel is prepared beside those of earlier repetitions.
        memory_bytes: free memory.
        effort: called before each repetition of a problem, with its specs and all rows so far;
            returns the reason why it is not worth it, or None. Without it all problems are repeated
            until they are finished.
    """

    def __init__(
        self,
        kernels: Kernels,
        workers: Workers,
        groups: Sequence[Sequence[KernelSpec]],
        count: int,
        *,
        renew: bool = True,
        memory_bytes: int | None = None,
        effort: Effort | None = None,
    ) -> None:
        self.number = 0
        self._workers = workers
        self._count = count
        self._renew = renew
        self._effort = effort
        self._order = random_order(kernels.seed)
        room = _KEPT_SHARE * (memory_bytes or 0)
        self._problems: list[Problem] = []
        for group in groups:
            held = _held_bytes(spec for spec in kernels.processes(group) if not is_quick(spec))
            keep = 0 < held <= room
            room -= held if keep else 0
            once = _held_bytes(spec for spec in group if spec.pass_ in spec.layer.passes)
            in_place = not renew and count * once <= room
            self._problems.append(Problem(kernels, group, count, keep=keep, in_place=in_place))
        self._rows: dict[KernelSpec, Measurement] = {}

    @property
    def finished(self) -> bool:
        """Whether all rows are finished."""
        return all(problem.finished for problem in self._problems)

    @property
    def share(self) -> float:
        """The share of all repetitions that have been taken."""
        taken = [
            1.0 if problem.finished else problem.taken / self._count for problem in self._problems
        ]
        return sum(taken) / max(len(taken), 1)

    def repeat(self, progress: Callable[[str], None]) -> Iterator[Problem]:
        """Take one repetition of every unfinished problem, and yield each problem after its own.

        Args:
            progress: called with what is measured next.
        """
        if self.number and self._renew:
            self._workers.renew(others=self.number == (self._count + 1) // 2)
        waiting = [problem for problem in self._problems if not problem.finished]
        self._workers.start(
            (spec.backend, spec.device) for problem in waiting for spec in problem.unmade
        )
        if self.number:  # at first in the given order: hot caches before cold ones
            self._order.shuffle(waiting)
        for problem in waiting:
            reason = self._effort and self._effort(problem.specs, self._rows)
            if reason is None:
                turn = f", repetition {problem.taken + 1} of {self._count}"
                progress(label(problem.specs) + (turn if self._count > 1 else ""))
                problem.repeat()
            else:
                problem.conclude(reason)
            self._rows |= problem.results
            yield problem
        self.number += 1

    def close(self) -> None:
        """Free all kernels that are still prepared."""
        for problem in self._problems:
            problem.release()


def _held_bytes(specs: Iterable[KernelSpec]) -> int:
    """Return the memory of prepared kernels."""
    return sum(memory_held(spec, spec.layer, 0) for spec in specs)


def label(group: Sequence[KernelSpec]) -> str:
    """Return the text for a group in progress lines: ``conv3 forward fp32, 6 rows``."""
    problem = msgspec.structs.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"
