"""The kernels that oneDNN and MKL run in a call of PyTorch, by the logs of these libraries."""

import contextlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch

from pydlbench.backends.frameworks import verbose
from pydlbench.backends.frameworks.verbose import printed
from pydlbench.backends.steps.timed_calls import TimedCall
from pydlbench.backends.torch.layers.operator import TorchOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class LibraryKernels:
    """The kernels that libraries ran in a call.

    Attributes:
        kernels: the library's names of the kernels; None if it does not log.
        remarks: notes on the kernels for the reader.
        evidence: measurements for the causes of a slow row, see ``KernelFacts``.
    """

    kernels: str | None
    remarks: tuple[str, ...]
    evidence: dict[str, Any] = field(default_factory=dict)


# Times of single calls differ by more than the effects that they have to explain.
_SHORT_CALL_TURNS = 7
# Long calls need fewer turns, and the time to write the log does not matter.
_LONG_CALL_TURNS, _LONG_CALL_S = 3, 0.01


def library_kernels(operator: TorchOperator, *, threads: int, inference: bool) -> LibraryKernels:
    """Log the kernels of oneDNN and MKL in several calls; return the kernels of the median call.

    Args:
        operator: the call.
        threads: number of threads.
        inference: whether nothing is kept for a backward pass.
    """
    with operator.guard():
        operator.call()  # wakes the threads, and fills the caches
        turns = [logged_turn(operator.call, plain=False)]
        short = turns[0].logged_s < _LONG_CALL_S
        if short:
            turns.clear()
        while len(turns) < (_SHORT_CALL_TURNS if short else _LONG_CALL_TURNS):
            turns.append(logged_turn(operator.call, plain=short))
    executions, call_s = verbose.middle_turn(turns)
    return LibraryKernels(
        kernels=verbose.kernels(executions),
        remarks=verbose.remarks(executions, threads=threads, inference=inference),
        evidence=verbose.evidence(executions, call_s),
    )


# -----------------------------------------------------------------------------
# The logs of oneDNN and MKL, switched on for one call.


def library_output(call: Callable[[], Any]) -> str:
    """Call once with the logs of oneDNN and MKL switched on, and return their text.

    The log of oneDNN includes the creation of primitives. The text is empty if PyTorch is built
    without them.
    """
    with printed() as lines, _reports("VERBOSE_ON_CREATION"):
        call()
    return "".join(lines)


def logged_turn(call: Callable[[], Any], *, plain: bool) -> verbose.Turn:
    """Call with the logs switched on, right after the same call without them.

    Args:
        call: the function.
        plain: whether there is a call without logs.
    """
    with printed() as lines:
        if plain:
            call()  # warms up again after the log was read
        timed = TimedCall(call)
        plain_s = timed.run() if plain else None
        with _reports():
            logged_s = timed.run()
    executions = verbose.parse("".join(lines))
    return verbose.Turn(executions=executions, logged_s=logged_s, plain_s=plain_s)


@contextlib.contextmanager
def _reports(level: str = "VERBOSE_ON") -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            # Without the library its switch is missing, or fails.
            with contextlib.suppress(AssertionError, AttributeError, RuntimeError):
                stack.enter_context(library.verbose(getattr(library, level, library.VERBOSE_ON)))
        yield
