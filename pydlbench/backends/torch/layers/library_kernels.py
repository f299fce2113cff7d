"""What is to be seen of a call from below: the kernels that PyTorch's libraries ran for it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import sys
import tempfile
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import torch

from pydlbench.backends.frameworks import verbose

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.backends.torch.layers.operator import TorchOperator


@dataclass(frozen=True, slots=True, kw_only=True)
class Behind:
    """A call seen from below.

    Attributes:
        kernels: the library's names of what computes; None where it does not tell.
        remarks: what a reader has to know about them.
        evidence: for the causes of a slow row, see ``KernelFacts``.
    """

    kernels: str | None
    remarks: tuple[str, ...]
    evidence: dict[str, Any] = field(default_factory=dict)


# The times of single calls differ by more than what they are asked to explain.
_TURNS = 7
# Of calls that take long a few tell as much, and writing the log is nothing beside them.
_FEW_TURNS, _LONG_S = 3, 0.01


def behind_on_cpu(operator: TorchOperator, *, threads: int, inference: bool) -> Behind:
    """Ask oneDNN and MKL what they did in a call; of several, the one in the middle.

    Args:
        operator: what is called.
        threads: how many there are.
        inference: whether nothing is kept for a backward pass.
    """
    with operator.guard():
        operator.call()  # threads have fallen asleep, and caches hold something else
        turns = [logged_turn(operator.call, plain=False)]
        plain = turns[0].logged_s < _LONG_S
        if plain:
            turns.clear()
        while len(turns) < (_TURNS if plain else _FEW_TURNS):
            turns.append(logged_turn(operator.call, plain=plain))
    executions, call_s = verbose.middle_turn(turns)
    return Behind(
        kernels=verbose.kernels(executions),
        remarks=verbose.remarks(executions, threads=threads, inference=inference),
        evidence=verbose.evidence(executions, call_s),
    )


# -----------------------------------------------------------------------------
# What libraries print while a function runs: oneDNN and MKL write to file descriptor 1.


def library_output(call: Callable[[], Any]) -> str:
    """Call once with oneDNN's and MKL's reports switched on, and return what they printed.

    Of oneDNN the creation of primitives is in it too. Empty where PyTorch was built without them.
    """
    with printed() as lines, _reports("VERBOSE_ON_CREATION"):
        call()
    return "".join(lines)


def logged_turn(call: Callable[[], Any], *, plain: bool) -> verbose.Turn:
    """Call with the reports switched on, right after the same call without them.

    Args:
        call: what is called.
        plain: whether there is one without.
    """
    with printed() as lines:
        if plain:
            call()  # warm again after the log was read
        plain_s = _seconds(call) if plain else None
        with _reports():
            logged_s = _seconds(call)
    executions = verbose.parse("".join(lines))
    return verbose.Turn(executions=executions, logged_s=logged_s, plain_s=plain_s)


def _seconds(call: Callable[[], Any]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


@contextlib.contextmanager
def _reports(level: str = "VERBOSE_ON") -> Iterator[None]:
    with contextlib.ExitStack() as stack:
        for library in (torch.backends.mkldnn, torch.backends.mkl):
            # Without the library its switch is missing, or says that it failed.
            with contextlib.suppress(AssertionError, AttributeError, RuntimeError):
                stack.enter_context(library.verbose(getattr(library, level, library.VERBOSE_ON)))
        yield


@contextlib.contextmanager
def printed() -> Iterator[list[str]]:
    """Divert file descriptor 1 into a file; the list is filled at the end."""
    lines: list[str] = []
    _flush()
    with tempfile.TemporaryFile() as file:
        kept = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            yield lines
        finally:
            _flush()
            os.dup2(kept, 1)
            os.close(kept)
            file.seek(0)
            lines.append(file.read().decode(errors="replace"))


def _flush() -> None:
    sys.stdout.flush()
    ctypes.CDLL(None).fflush(None)  # the C library's own buffer
