"""What a host can ask a framework's process for: steps, operators, fresh memory, logs.

Each operation is a function that the host names and the worker calls with its backend (see
``Worker.build``); its arguments cross as JSON and are read into structs here. Frameworks,
and NumPy with them, are imported where the work is done, so that a host may import this module.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydlbench.backends.steps.registry import worker_of
from pydlbench.errors import UnsupportedError
from pydlbench.models import build_model
from pydlbench.records.step import StepPreparation, StepSpec

if TYPE_CHECKING:
    from collections.abc import Callable

    from pydlbench.backends.base import Backend
    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.native.cpu import CpuBackend, CpuKernel
    from pydlbench.backends.steps.device import DeviceOperators
    from pydlbench.backends.steps.timed_calls import LoggedOperators, OperatorsKernel
    from pydlbench.records.chain import ChainFacts
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


def prepare_native_chain(
    backend: CpuBackend,
    spec: dict[str, Any],
    choices: dict[str, str],
    save: str | None,
    listed: str | None = None,
) -> CpuKernel[ChainFacts]:
    """Make the native kernels of a step ready, to be run in order on each other's outputs.

    Args:
        backend: of the native worker of CPUs.
        spec: a :class:`StepSpec`; framework, mode and feed are not looked at.
        choices: ``<algorithm> <layout>`` of the fastest kernels alone, by problem.
        save: folder to write output and gradients into, dropout off; None writes nothing.
        listed: folder with what :func:`list_links` has written; None for the graph's kernels.

    Raises:
        UnsupportedError: an operation of which there is no native kernel, or another precision.
    """
    from pydlbench.backends.native.listing import Listing
    from pydlbench.backends.native.model_chain import prepare_listed, prepare_model

    step = StepSpec.from_dict(spec)
    folder = None if save is None else Path(save)
    if listed is not None:
        listing = Listing.load(Path(listed))
        normalises = any(link.step_pass.layer.op == "batchnorm" for link in listing.links)
        checked = listing.before_updates() if listing.gradients and normalises else None
        return prepare_listed(backend, listing, step, choices, folder, checked=checked)
    model = build_model(step.model, batch=step.batch, **step.options)
    return prepare_model(backend, model, step, choices, folder)


def list_links(
    backend: FrameworkBackend,
    tell: Callable[[dict[str, Any]], None],
    spec: dict[str, Any],
    listed: str,
    saved: str,
) -> list[str]:
    """Record a step and list native kernels of the same, with the values that it was given.

    Args:
        backend: of the worker.
        tell: not called.
        spec: a :class:`StepSpec`.
        listed: folder that the list is written into, see :func:`prepare_native_chain`.
        saved: folder that the step's output is written into.

    Returns:
        Notes.

    Raises:
        UnsupportedError: the step calls something of which there is no native kernel, or the
            framework's recordings do not say what reads what.
    """
    del tell
    step = StepSpec.from_dict(spec)
    make = getattr(worker_of(step.framework), "list_links", None)
    if make is None:
        raise UnsupportedError(
            f"{step.framework}: its recorded steps do not say what reads what, so there is no "
            "native chain of them"
        )
    folders = Path(listed), Path(saved)
    for folder in folders:
        folder.mkdir(exist_ok=True)
    names: list[str] = make(backend, step, *folders)
    return names


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
