"""What a host can ask a framework's process for: steps, operators, fresh memory, logs.

Each operation is a function that the host names and the worker calls with its backend (see
``Worker.build``); its arguments cross as JSON and are read into structs here. Frameworks,
and NumPy with them, are imported where the work is done, so that a host may import this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.backends.steps.registry import worker_of
from pydlbench.records.step import StepPreparation, StepSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.base import Backend
    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.steps.device import DeviceOperators
    from pydlbench.backends.steps.timed_calls import LoggedOperators, OperatorsKernel
    from pydlbench.records.step import StepKernel


def request_framework(
    backend: Backend, tell: Callable[[dict[str, Any]], None], spec: dict[str, Any]
) -> str:
    """Return the framework of a model of the user's own, whose callable is called for it.

    Args:
        backend: not asked.
        tell: likewise.
        spec: a :class:`StepSpec`; its framework is returned where the callable gives no model.
    """
    from pydlbench.backends.steps.user_code import call_user_object, framework_of

    del backend, tell
    step = StepSpec.from_dict(spec)
    made = call_user_object(step.model, step.options)
    first = made[0] if isinstance(made, (tuple, list)) and made else made
    return framework_of(first) or step.framework


def request_step(
    backend: FrameworkBackend, spec: dict[str, Any], preparation: dict[str, Any]
) -> StepKernel:
    """Make a step ready to be timed.

    Args:
        backend: of the worker.
        spec: a :class:`StepSpec`.
        preparation: a :class:`StepPreparation`.

    Raises:
        UsageError: no such model or option, or the worker is another framework's.
        UnsupportedError: the framework has not what is asked for.
    """
    from pydlbench.backends.steps import serving

    return serving.serve_step(backend, StepSpec.from_dict(spec), StepPreparation(**preparation))


def request_call_list(backend: FrameworkBackend, spec: dict[str, Any]) -> OperatorsKernel:
    """List the calls of a step that is not timed; there is nothing to be sampled.

    PyTorch's dispatcher tells them, TensorFlow's and onnxruntime's graphs have them as nodes. Where
    a framework compiles a step, they are the groups of calls that it runs as one
    (``backends.steps.groups``). In PyTorch a step of a model of the catalogue computes nothing
    meanwhile on a CPU; all others run.

    Args:
        backend: of the worker.
        spec: a :class:`StepSpec`.

    Returns:
        A kernel whose facts have ``calls``.

    Raises:
        UnsupportedError: the framework has not what is asked for.
    """
    step = StepSpec.from_dict(spec)
    return worker_of(step.framework).serve_call_list(backend, step)


def request_calls(
    backend: FrameworkBackend, spec: dict[str, Any], signatures: list[str], *, of_step: bool = False
) -> OperatorsKernel | DeviceOperators:
    """Make calls ready, each to be timed alone.

    Each has run once. One that cannot be made ready is in the facts' ``refused`` and costs no
    other; the facts' ``names`` are the signatures of those that are timed.

    Args:
        backend: of the worker.
        spec: a :class:`StepSpec`, of whose step the calls are; of a model of the user's own its
            file may define operators.
        signatures: of :class:`RecordedCall`.
        of_step: on copies of the operands that the step has, which is run for that; else on ones
            made up from their signatures. The facts' ``notes`` name calls that have these
            nevertheless.
    """
    step = StepSpec.from_dict(spec)
    more = {"of_step": True} if of_step else {}
    return worker_of(step.framework).serve_calls(backend, step, signatures, **more)


def request_logged_calls(
    backend: FrameworkBackend, spec: dict[str, Any], signatures: list[str]
) -> LoggedOperators:
    """Make calls of PyTorch ready whose libraries log what they execute, as they are timed.

    The facts' ``executions`` say what was logged of each; ``names`` and ``refused`` are those of
    :func:`request_calls`.

    Args:
        backend: of the worker.
        spec: a :class:`StepSpec`, see :func:`request_calls`.
        signatures: of :class:`RecordedCall`; nothing that is fed.
    """
    step = StepSpec.from_dict(spec)
    return worker_of(step.framework).serve_logged_calls(backend, step, signatures)


def request_blocks(backend: Backend, size: int, count: int, keeps: bool) -> OperatorsKernel:
    """Make writing blocks of memory ready, in any process.

    Args:
        backend: not asked.
        size: bytes of a block.
        count: blocks in a run.
        keeps: whether they have the same pages each time, and not new ones.
    """
    from pydlbench.backends.steps.timed_calls import written_blocks

    del backend
    return written_blocks(size, count, keeps=keeps)


def request_wakeups(backend: Backend) -> OperatorsKernel:
    """Make the waking of a sleeping thread ready, in any process.

    Args:
        backend: not asked.
    """
    from pydlbench.backends.steps.timed_calls import wakeups

    del backend
    return wakeups()
