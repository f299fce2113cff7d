"""Repetitions of all rows of a run, each in a new random order.

The repetitions of one row are spread over the run, so that a few disturbed seconds affect one
repetition of many rows and not all repetitions of one. Between repetitions processes are replaced:
the next ones have other addresses and other memory pages.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence

import msgspec

from pydlbench.records.measurement import KernelSpec, Measurement
from pydlbench.runner.kernels import SessionKernels, user_kernel_of
from pydlbench.runner.machine import Workers
from pydlbench.runner.memory import memory_held
from pydlbench.runner.problem import RowProblem, is_quick
from pydlbench.study.loop import random_order

#: See :func:`repeated_problems`.
Effort = Callable[[Sequence[KernelSpec], Mapping[KernelSpec, Measurement]], str | None]

# Maximum share of the free memory for kernels that stay prepared between repetitions.
_KEPT_SHARE = 0.25


def repeated_problems(
    kernels: SessionKernels,
    workers: Workers,
    groups: Sequence[Sequence[KernelSpec]],
    count: int,
    progress: Callable[[float, str], None],
    *,
    renew: bool = True,
    memory_bytes: int | None = None,
    effort: Effort | None = None,
) -> Generator[RowProblem, None, None]:
    """Repeat all unfinished problems of a run, and yield each after each of its repetitions.

    Native kernels get a new process in each repetition, which prepares the variant that the first
    one chose. The processes of frameworks take seconds to start, and compilers take seconds for a
    kernel: they are replaced once, after half of the repetitions, and their kernels stay prepared
    until then if memory allows it. Kernels that are still prepared are freed when the iterator is
    closed.

    Args:
        kernels: kernels of the session.
        workers: workers of the session.
        groups: specs by problem, see :func:`pydlbench.runner.problem.by_problem`.
        count: repetitions of each row.
        progress: called with the share of all repetitions that have been taken, and with what is
            measured next.
        renew: whether processes are replaced. If not, each kernel is prepared in new memory beside
            those of earlier repetitions.
        memory_bytes: free memory; for a GPU, all of its memory.
        effort: called before each repetition of a problem, with its specs and all rows so far;
            returns the reason why it is not worth it, or None. Without it all problems are repeated
            until they are finished.
    """
    problems = _problems(kernels, groups, count, renew, _KEPT_SHARE * (memory_bytes or 0))
    order = random_order(kernels.seed)
    rows: dict[KernelSpec, Measurement] = {}
    try:
        for number in itertools.count():
            waiting = [problem for problem in problems if not problem.finished]
            if not waiting:
                return
            if number and renew:
                workers.renew(others=number == (count + 1) // 2)
            workers.start(
                (spec.backend, spec.device)
                for problem in waiting
                for spec in problem.unmade
                if user_kernel_of(spec) is None
            )
            if number:  # at first in the given order: hot caches before cold ones
                order.shuffle(waiting)
            for problem in waiting:
                reason = effort and effort(problem.specs, rows)
                if reason is None:
                    turn = f", repetition {problem.taken + 1} of {count}" if count > 1 else ""
                    progress(_share(problems, count), label(problem.specs) + turn)
                    problem.repeat()
                else:
                    problem.conclude(reason)
                rows |= problem.results
                yield problem
    finally:
        for problem in problems:
            problem.release()


def _problems(
    kernels: SessionKernels,
    groups: Sequence[Sequence[KernelSpec]],
    count: int,
    renew: bool,
    room: float,
) -> list[RowProblem]:
    """Return the problems of groups; prepared kernels take at most ``room`` bytes."""
    problems = []
    for group in groups:
        held = _held_bytes(spec for spec in kernels.processes(group) if not is_quick(spec))
        keep = 0 < held <= room
        room -= held if keep else 0
        once = _held_bytes(spec for spec in group if spec.pass_ in spec.layer.passes)
        in_place = not renew and count * once <= room
        problems.append(RowProblem(kernels, group, count, keep=keep, in_place=in_place))
    return problems


def _share(problems: Sequence[RowProblem], count: int) -> float:
    """Return the share of all repetitions that have been taken."""
    taken = [1.0 if problem.finished else problem.taken / count for problem in problems]
    return sum(taken) / len(taken)


def _held_bytes(specs: Iterable[KernelSpec]) -> int:
    """Return the memory of prepared kernels."""
    return sum(memory_held(spec, spec.layer, 0) for spec in specs)


def label(group: Sequence[KernelSpec]) -> str:
    """Return the text for a group in progress lines: ``conv3 forward fp32, 6 rows``."""
    problem = msgspec.structs.replace(group[0], backend="native", mode=None)
    return group[0].label if len(group) == 1 else f"{problem.label}, {len(group)} rows"
