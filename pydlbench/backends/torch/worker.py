"""PyTorch's worker: models, recorded steps, and calls; see ``steps.registry.FrameworkWorker``.

Calls are listed, and timed one by one, or in groups that a compiler runs as one.
"""

import contextlib
import gc
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from typing import Final

import msgspec
import numpy as np
import torch
from torch import nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.steps import device
from pydlbench.backends.steps.device import DeviceCall, DeviceOperators
from pydlbench.backends.steps.inputs import make_batch, make_weights, weight_shapes
from pydlbench.backends.steps.serving import model_of
from pydlbench.backends.steps.timed_calls import (
    LoggedOperators,
    OperatorsKernel,
    TimedCall,
    TimedOperator,
    check_on_cpu,
    one_line,
)
from pydlbench.backends.steps.user_code import load_user_object
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.layers.library_kernels import library_output
from pydlbench.backends.torch.steps import calls_alone, swapped
from pydlbench.backends.torch.steps.compiled_trace import groups_of, prepare_groups
from pydlbench.backends.torch.steps.profiled import below_autograd, call_cost
from pydlbench.backends.torch.steps.recording import Recording
from pydlbench.backends.torch.steps.step import TorchModel, TorchSubject, autocast
from pydlbench.backends.torch.steps.user_model import UserTorchModel
from pydlbench.calls.groups import is_feed, is_group
from pydlbench.calls.seen import meaning_of
from pydlbench.errors import UnsupportedError
from pydlbench.models import build_model
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall, operator_of
from pydlbench.units import quantity

#: PyTorch's models are modules, not files.
runs_files: Final = False
catalogue_model: Final = TorchModel
user_model: Final = UserTorchModel


def serve_call_list(backend: FrameworkBackend, spec: StepSpec) -> OperatorsKernel:
    """List the calls of a step without timing it; see ``requests.request_call_list``.

    A compiled step has groups of the calls that the eager mode makes.
    """
    if spec.on_gpu:
        _check_eager(spec)
    notes: tuple[str, ...] = ()
    if spec.own is None:
        recording, batch = _record_catalogue_step(spec)
    else:
        with UserTorchModel(backend, spec) as model:
            recording, notes = model.record().twice()
        batch, notes = model.batch, (*model.notes, *notes)
    facts = recording.facts(batch, notes)
    if spec.mode != "eager":
        facts = msgspec.structs.replace(facts, calls=groups_of(recording), order=())
    return OperatorsKernel([], facts, backend.cpus)


def _record_catalogue_step(spec: StepSpec) -> tuple[Recording, int]:
    """Record a step of the catalogue; return the recording and the batch.

    On a CPU all tensors are fake: they have shapes and strides, but no memory. Fetching is left
    out, because fake tensors have no values. On a GPU a real step runs, because optimizers fuse
    their calls on real tensors only.
    """
    model = build_model(spec.model, batch=spec.batch, **spec.options)
    unfetched = msgspec.structs.replace(spec, fetch=False)
    if spec.on_gpu:
        batch = make_batch(model, spec.seed)
        with TorchModel(model, make_weights(model, spec.seed), unfetched, batch) as real:
            return real.record().recording, model.batch
    weights = {
        f"{node.name}/{role}": np.empty(shape, np.float32)
        for node in model
        for role, shape in weight_shapes(node).items()
    }
    built = TorchModel(model, weights, unfetched, make_batch(model, spec.seed))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        _make_fake(built, mode.from_tensor)
        with built:
            return built.record().recording, model.batch


def _make_fake(model: TorchModel, fake: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Replace all tensors of a model by fake tensors."""
    for module in model.net.module.modules():
        for name, tensor in module._parameters.items():
            if tensor is not None:
                plain = fake(tensor.detach())
                module._parameters[name] = nn.Parameter(plain, requires_grad=tensor.requires_grad)
        for name, tensor in module._buffers.items():
            module._buffers[name] = None if tensor is None else fake(tensor)
    model.parameters = [weight for weight in model.net.module.parameters() if weight.requires_grad]
    images, labels = model.resident
    model.resident = fake(images), None if labels is None else fake(labels)


def serve_calls(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str], *, of_step: bool = False
) -> OperatorsKernel | DeviceOperators:
    """Prepare calls; see ``requests.request_calls``."""
    if spec.mode != "eager":
        check_on_cpu(spec)
    feeding = {text: TimedCall(_subject(backend, spec).fed) for text in signatures if is_feed(text)}
    groups = [text for text in signatures if is_group(text)]
    single = [text for text in signatures if text not in feeding and not is_group(text)]
    operands: dict[str, calls_alone.Operands] = {}
    notes: list[str] = []
    if of_step:
        try:
            operands = _operands(backend, spec, single)
        except Exception as error:  # noqa: BLE001 - a user's step raises anything
            notes.append(f"no operands of the step: {one_line(error)}")
    calls, refused = _prepare_single(spec, single, operands)
    if spec.on_gpu:
        runtime = device.runtime_of(backend)
        with _guard(spec)():
            computing = {text: call for text, call in calls.items() if not _is_view(text)}
            kernels, uncaptured = device.kernels_of(computing, runtime)
            untimed = device.refused_calls(calls, runtime)
        refused |= untimed
        calls = {text: call for text, call in calls.items() if text not in untimed}
        facts = OperatorsFacts(
            names=(*feeding, *calls), kernels=kernels, refused=refused, notes=tuple(uncaptured)
        )
        on_device: list[DeviceCall] = [*feeding.values(), *calls.values()]
        return device.DeviceOperators(on_device, facts, runtime, _guard(spec), backend.watcher)
    grouped, refused_groups = prepare_groups(groups, spec.seed)
    refused |= refused_groups
    ready: dict[str, TimedOperator] = {**feeding, **calls, **grouped}
    if unknown := calls.keys() - operands.keys() if of_step else ():
        names = ", ".join(sorted({text.partition("(")[0] for text in unknown}))
        notes.append(
            f"{quantity(len(unknown), 'distinct call')} alone on values that are made up: {names}"
        )
    facts = OperatorsFacts(
        names=tuple(ready), dispatch_s=call_cost(), refused=refused, notes=tuple(notes)
    )
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)


def _is_view(text: str) -> bool:
    """Whether a call only makes a view, so that it launches no kernel."""
    return meaning_of(RecordedCall(signature=text, operator=operator_of(text))).kind == "view"


def _operands(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str]
) -> dict[str, calls_alone.Operands]:
    """Return copies of the operands of a step's calls, and free the step."""
    with _subject(backend, spec) as model:
        operands = model.operands(signatures)
    del model
    gc.collect()  # a step and its model refer to each other
    return operands


def _subject(backend: FrameworkBackend, spec: StepSpec) -> TorchSubject:
    model = model_of(backend, spec)
    assert isinstance(model, TorchSubject), "all models of this worker are"
    return model


def _prepare_single(
    spec: StepSpec,
    signatures: Sequence[str],
    operands: Mapping[str, calls_alone.Operands] | None = None,
) -> tuple[dict[str, calls_alone.CallOperator], dict[str, str]]:
    """Prepare single calls; return those that ran, and why others did not, by signature."""
    if spec.own is not None:
        load_user_object(spec.model)  # its file may define operators
    with settings.tf32(spec.precision):
        return calls_alone.prepare_calls(
            signatures, spec.device, spec.seed, _waiting(spec), operands
        )


def serve_logged_calls(
    backend: FrameworkBackend, spec: StepSpec, signatures: Sequence[str]
) -> LoggedOperators:
    """Prepare logged calls; see ``requests.request_logged_calls``."""
    _check_eager(spec)
    calls, refused = _prepare_single(spec, signatures)
    return LoggedOperators(calls, refused, library_output, backend.cpus)


def serve_swaps(backend: FrameworkBackend, spec: StepSpec) -> OperatorsKernel:
    """Prepare the calls of a step's swaps; see ``requests.request_swaps``."""
    model = _subject(backend, spec)
    return swapped.serve_swaps(backend, model, model.swaps, spec, partial(autocast, spec))


def _check_eager(spec: StepSpec) -> None:
    """Refuse compiled modes, whose calls do not pass the dispatcher.

    Raises:
        UnsupportedError: the step runs in a compiled mode.
    """
    if spec.mode != "eager":
        raise UnsupportedError(
            f"torch {spec.mode}: its kernels are the compiler's own, which PyTorch's dispatcher "
            "does not see; nearest: --mode eager"
        )


def _guard(spec: StepSpec) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return a factory of contexts for calls: in the step's precision, below autograd."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with settings.tf32(spec.precision), below_autograd():
            yield

    return context


def _waiting(spec: StepSpec) -> Callable[[], None]:
    """Return the function that waits for the case's device."""
    if not spec.on_gpu:
        return lambda: None
    return lambda: torch.cuda.synchronize(spec.device)
