"""Requests of the host to a worker process: steps, calls, logged calls, probes.

Each request is a function that the host names and the worker calls with its backend (see
``Worker.build``). Its arguments cross the channel as JSON and are read into structs here.
Frameworks and NumPy are imported inside the functions, so that the host can import this module.
"""

from collections.abc import Callable
from typing import Any

from pydlbench.backends.base import Backend
from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.steps.device import DeviceOperators
from pydlbench.backends.steps.registry import worker_of
from pydlbench.backends.steps.timed_calls import LoggedOperators, OperatorsKernel
from pydlbench.records.step import StepKernel, StepPreparation, StepSpec


def request_framework(
    backend: Backend,  # noqa: ARG001 - as all requests
    tell: Callable[[dict[str, Any]], None],  # noqa: ARG001 - as all requests
    spec: dict[str, Any],
) -> str:
    """Call the callable of a user model and return the framework of its model.

    Args:
        backend: unused.
        tell: unused.
        spec: a :class:`StepSpec`; its framework is the answer if the callable returns no model.
    """
    from pydlbench.backends.steps.user_code import call_user_object, framework_of

    step = StepSpec.from_dict(spec)
    reference = None if step.own is None else step.own.reference
    result = call_user_object(step.model, step.options, reference)
    first = result[0] if isinstance(result, (tuple, list)) and result else result
    return framework_of(first) or step.framework


def request_step(
    backend: FrameworkBackend, spec: dict[str, Any], preparation: dict[str, Any]
) -> StepKernel:
    """Prepare a step to be timed.

    Args:
        backend: the worker's backend.
        spec: a :class:`StepSpec`.
        preparation: a :class:`StepPreparation`.

    Raises:
        UsageError: no such model or option, or the worker runs another framework.
        UnsupportedError: the framework does not support the step.
    """
    from pydlbench.backends.steps import serving

    return serving.serve_step(backend, StepSpec.from_dict(spec), StepPreparation(**preparation))


def request_call_list(backend: FrameworkBackend, spec: dict[str, Any]) -> OperatorsKernel:
    """List the calls of a step without timing it; the kernel has nothing to sample.

    PyTorch's calls are recorded at the dispatcher; calls of TensorFlow and onnxruntime are
    nodes of a graph. In a compiled step a call is a group that runs as one kernel
    (``calls.groups``). On a CPU, PyTorch records a step of the catalogue on fake tensors; all other
    steps run.

    Args:
        backend: the worker's backend.
        spec: a :class:`StepSpec`.

    Returns:
        A kernel whose facts have ``calls``.

    Raises:
        UnsupportedError: the framework cannot list the calls of such a step.
    """
    step = StepSpec.from_dict(spec)
    return worker_of(step.framework).serve_call_list(backend, step)


def request_calls(
    backend: FrameworkBackend, spec: dict[str, Any], signatures: list[str], *, of_step: bool = False
) -> OperatorsKernel | DeviceOperators:
    """Prepare calls to be timed alone.

    Each call has run once. The facts' ``names`` are the signatures of the calls that are timed, and
    ``refused`` has the reason for each call that could not be prepared.

    Args:
        backend: the worker's backend.
        spec: a :class:`StepSpec`, the step of the calls; the file of a user model may define
            operators.
        signatures: signatures of calls, see :class:`RecordedCall`.
        of_step: run the step and use copies of its operands; otherwise operands are made up from
            the signatures. The facts' ``notes`` name calls whose operands are made up anyway.
    """
    step = StepSpec.from_dict(spec)
    keywords = {"of_step": True} if of_step else {}
    return worker_of(step.framework).serve_calls(backend, step, signatures, **keywords)


def request_swaps(backend: FrameworkBackend, spec: dict[str, Any]) -> OperatorsKernel:
    """Prepare the swapped calls of a step to be timed alone, on the step's operands.

    Each distinct call has two operators: the original, called through the same Python hook, and the
    user's kernel, whose results are compared with the original's. The facts' ``calls`` have the
    numbers of calls in a step.

    Args:
        backend: the worker's backend.
        spec: a :class:`StepSpec` with ``swaps``.

    Raises:
        UsageError: a swap names no operator or module, or no function for it.
        ModelError: the user's code has raised an exception.
    """
    step = StepSpec.from_dict(spec)
    return worker_of(step.framework).serve_swaps(backend, step)


def request_logged_calls(
    backend: FrameworkBackend, spec: dict[str, Any], signatures: list[str]
) -> LoggedOperators:
    """Prepare calls of PyTorch to be timed with and without the logs of its libraries.

    The facts' ``executions`` count the logged primitives of each call; for ``names`` and
    ``refused`` see :func:`request_calls`.

    Args:
        backend: the worker's backend.
        spec: a :class:`StepSpec`, see :func:`request_calls`.
        signatures: signatures of calls (see :class:`RecordedCall`) that do not feed the step.
    """
    step = StepSpec.from_dict(spec)
    return worker_of(step.framework).serve_logged_calls(backend, step, signatures)


def request_blocks(
    backend: Backend,  # noqa: ARG001 - as all requests
    size: int,
    count: int,
    keeps: bool,
) -> OperatorsKernel:
    """Prepare the probe that writes blocks of memory; any process can run it.

    Args:
        backend: unused.
        size: size of a block in bytes.
        count: number of blocks in a run.
        keeps: whether all blocks use the same pages, instead of fresh memory.
    """
    from pydlbench.backends.steps.probes import written_blocks

    return written_blocks(size, count, keeps=keeps)


def request_wakeups(backend: Backend) -> OperatorsKernel:  # noqa: ARG001 - as all requests
    """Prepare the probe that wakes a sleeping thread; any process can run it.

    Args:
        backend: unused.
    """
    from pydlbench.backends.steps.probes import wakeups

    return wakeups()
