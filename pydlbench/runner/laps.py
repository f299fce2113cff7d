"""Laps over all rows of a run: each visits every row once, in a new random order.

So the visits of a row lie apart in time, and what the machine does for some seconds meets a visit
of many rows rather than all visits of one. Between laps processes are replaced: the next visits
have other addresses and other pages.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from pydlbench.runner.kernels import memory_held
from pydlbench.runner.problem import Problem
from pydlbench.study.loop import random_order

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from pydlbench.records.measurement import Measurement
    from pydlbench.records.specs import KernelSpec
    from pydlbench.runner.kernels import Kernels
    from pydlbench.runner.machine import Workers

    #: See :class:`Laps`.
    Effort = Callable[[Sequence[KernelSpec], Mapping[KernelSpec, Measurement]], str | None]

# Kernels that stay prepared between laps take so much of the memory that is free, at the most.
_KEPT_SHARE = 0.25


class Laps:
    """The rows of a run, visited lap by lap; whoever has them takes the next lap when it suits.

    Native kernels get a new process in each lap, and are made ready anew by the name of the kernel
    that the first visit has found. Frameworks, whose processes take seconds to start and whose
    compilers take seconds for a kernel, get new ones once, after half of the laps, and keep their
    kernels until then, where memory allows.

    Args:
        kernels: of the session.
        workers: that the kernels live in, likewise.
        groups: the specs, see :func:`pydlbench.runner.problem.by_problem`.
        visits: of each row.
        renew: take new processes; else visits differ in time and in memory only, each kernel
            beside those of the visits before.
        memory_bytes: that is free.
        effort: called before a problem is visited, with its specs and all rows so far; returns why
            that is not worth while, or None where it is. Without, all are visited until they are
            finished.
    """

    def __init__(
        self,
        kernels: Kernels,
        workers: Workers,
        groups: Sequence[Sequence[KernelSpec]],
        visits: int,
        *,
        renew: bool = True,
        memory_bytes: int | None = None,
        effort: Effort | None = None,
    ) -> None:
        self.number = 0
        self._workers = workers
        self._visits = visits
        self._renew = renew
        self._effort = effort
        self._order = random_order(kernels.seed)
        room = _KEPT_SHARE * (memory_bytes or 0)
        self._problems: list[Problem] = []
        for group in groups:
            held = _kept_bytes(kernels, group)
            keep = 0 < held <= room
            room -= held if keep else 0
            in_place = not renew and visits * _quick_bytes(group) <= room
            self._problems.append(Problem(kernels, group, visits, keep=keep, in_place=in_place))
        self._rows: dict[KernelSpec, Measurement] = {}

    @property
    def finished(self) -> bool:
        """Whether no row wants another visit."""
        return all(problem.finished for problem in self._problems)

    @property
    def share(self) -> float:
        """Which part of the visits has been made."""
        made = [
            1.0 if problem.finished else problem.taken / self._visits for problem in self._problems
        ]
        return sum(made) / max(len(made), 1)

    def lap(self, progress: Callable[[str], None] | None = None) -> Iterator[Problem]:
        """Visit every problem that wants it, and yield it after that visit.

        Args:
            progress: called with what is visited next.
        """
        if self.number:
            self._take_new_processes()
        waiting = [problem for problem in self._problems if not problem.finished]
        self._workers.start(
            (spec.backend, spec.device) for problem in waiting for spec in problem.unmade
        )
        if self.number:  # at first as given: hot caches before cold ones
            self._order.shuffle(waiting)
        for problem in waiting:
            reason = self._effort and self._effort(problem.specs, self._rows)
            if reason is None:
                if progress:
                    progress(label(problem.specs) + self._which(problem))
                problem.visit(self.number)
            else:
                problem.conclude(reason)
            self._rows |= problem.results
            yield problem
        self.number += 1

    def close(self) -> None:
        """Free what is still prepared."""
        for problem in self._problems:
            problem.release()

    def _which(self, problem: Problem) -> str:
        if self._visits == 1:
            return ""
        return f", repetition {problem.taken + 1} of {self._visits}"

    def _take_new_processes(self) -> None:
        if self._renew:
            half = (self._visits + 1) // 2
            self._workers.renew(others=self.number == half)


def _kept_bytes(kernels: Kernels, group: Sequence[KernelSpec]) -> int:
    """The memory that the kernels of a problem take which would stay prepared."""
    kept = [spec for spec in kernels.processes(group) if spec.backend != "native" or spec.on_gpu]
    return sum(memory_held(spec, spec.layer, 0) for spec in kept)


def _quick_bytes(group: Sequence[KernelSpec]) -> int:
    """The memory that the native kernels of a problem take, each once."""
    there = [spec for spec in group if spec.pass_ in spec.layer.passes]
    return sum(memory_held(spec, spec.layer, 0) for spec in there)


def label(group: Sequence[KernelSpec]) -> str:
    """What the progress says of a group: ``conv3 forward fp32, 6 rows``."""
    problem = msgspec.structs.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"
