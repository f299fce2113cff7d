"""Steps as recorded calls: listed, timed one by one, and as a chain."""

from __future__ import annotations

import contextlib
import time
from collections import Counter
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import torch
from torch import fx, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from pydlbench.backends.frameworks.verbose import parse
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.trace import library_output
from pydlbench.errors import UnsupportedError
from pydlbench.steps import device
from pydlbench.steps.definition import definition_of
from pydlbench.steps.inputs import make_batch, make_weights, weight_shapes
from pydlbench.steps.operations import OperatorsFacts
from pydlbench.steps.operators import LoggedOperators, OperatorsKernel
from pydlbench.steps.own import load_own
from pydlbench.steps.torch import chain, replay
from pydlbench.steps.torch.operators import fed_operator
from pydlbench.steps.torch.own import OwnModel
from pydlbench.steps.torch.recording import RecordedStep, record
from pydlbench.steps.torch.step import TorchModel, TorchStep
from pydlbench.timing.statistics import median

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.backends.frameworks.verbose import Execution
    from pydlbench.models.graph import Model
    from pydlbench.records.step import StepSpec
    from pydlbench.steps.device import DeviceCall, DeviceChain, DeviceOperators
    from pydlbench.steps.operators import TimedOperator
    from pydlbench.steps.torch.net import Net
    from pydlbench.steps.torch.recording import Naming, Recorder, Recording


# -----------------------------------------------------------------------------
# A step of a model of the catalogue, recorded.


def record_model(made: TorchModel) -> RecordedStep:
    """Record the step that a model's case defines, its calls named after our nodes.

    Args:
        made: the model, in eager mode.
    """
    case = made.case
    definition = definition_of(case, made.model)
    made.set_layers(definition)
    step = TorchStep(made, definition)
    returned: list[Any] = []
    computed = step.computed

    def seen(*batch: Any) -> Any:
        returned[:] = computed(*batch)
        return tuple(returned)

    step.computed = seen

    def run() -> Any:
        step()
        found = tuple(returned)
        returned.clear()
        return found

    run()  # makes what later steps find: gradients to drop, an optimizer's state
    parameters = {
        tensor: name.rpartition("/")[0]
        for name, tensor in made.net.tensors().items()
        if tensor.requires_grad
    }
    recording = record(
        run,
        naming=_by_node(made.net),
        parameters=parameters,
        optimizer=step.optimizer,
        device=case.device,
    )
    return RecordedStep(step=run, parameters=parameters, recording=recording)


def _by_node(net: Net) -> Naming:
    """Name calls after nodes of ours: the network is run node by node meanwhile."""

    @contextlib.contextmanager
    def naming(recorder: Recorder) -> Iterator[None]:
        following = _Following(net, recorder)
        plain = net.module.forward
        net.module.forward = following.run
        try:
            yield
        finally:
            net.module.forward = plain

    return naming


class _Following(fx.Interpreter):  # type: ignore[misc]  # an unknown class to mypy
    """Runs a network as its module does, and tells a recorder which node of ours it is at.

    Args:
        net: the network.
        recorder: that is told.
    """

    def __init__(self, net: Net, recorder: Recorder) -> None:
        super().__init__(net.module)
        self._recorder = recorder
        # Paddings belong to what follows them.
        self._names: dict[fx.Node, str] = {}
        waiting: list[fx.Node] = []
        for node in net.module.graph.nodes:
            waiting.append(node)
            if node.name in net.outputs:
                self._names |= dict.fromkeys(waiting, net.outputs[node.name])
                waiting.clear()

    def run_node(self, n: fx.Node) -> Any:
        """Run a node under its name; behind the last one comes the loss."""
        last = n.op == "output"
        if last:
            self._recorder.at("loss", "loss")
        else:
            self._recorder.at(self._names.get(n, ""), "forward")
        return super().run_node(n)


# -----------------------------------------------------------------------------
# What a worker is asked for.


def list_calls(backend: FrameworkBackend, model: Model | None, case: StepSpec) -> OperatorsKernel:
    """List the calls of a step that is not timed; see ``operations.record_calls``.

    Args:
        backend: of the worker.
        model: the graph; None of a model of the user's own, whose step is run for it.
        case: the step.
    """
    _check_eager(case)
    begin = time.perf_counter()
    notes: tuple[str, ...] = ()
    if model is None:
        with OwnModel(case) as own:
            recording, notes = own.record_twice()
        batch = own.batch
    else:
        recording, batch = _listed(model, case), model.batch
    facts = OperatorsFacts(
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        calls=recording.distinct(),
        order=recording.order(),
        blocks=() if case.on_gpu else recording.blocks(),
        batch=batch,
        lines=recording.lines,
        notes=notes,
    )
    return OperatorsKernel([], facts, backend.cpus)


def _listed(model: Model, case: StepSpec) -> Recording:
    """Record a step that computes nothing.

    All tensors are fake ones, which have shapes and strides and no memory. What is fetched for the
    host has no values then, so that it is left out. On a GPU a step is run: optimizers join what
    they do with real tensors there, and not with fake ones.
    """
    unfetched = msgspec.structs.replace(case, fetch=False)
    if case.on_gpu:
        batch = make_batch(model, case.seed)
        with TorchModel(model, make_weights(model, case.seed), unfetched, batch) as real:
            return record_model(real).recording
    weights = {
        f"{node.name}/{role}": np.empty(shape, np.float32)
        for node in model
        for role, shape in weight_shapes(node).items()
    }
    made = TorchModel(model, weights, unfetched, make_batch(model, case.seed))
    with FakeTensorMode(allow_non_fake_inputs=True) as mode:
        _empty(made, mode.from_tensor)
        with made:
            return record_model(made).recording


def _empty(made: TorchModel, fake: Callable[[torch.Tensor], torch.Tensor]) -> None:
    """Put fake tensors in the place of all of a model's."""
    for module in made.net.module.modules():
        for name, one in module._parameters.items():
            if one is not None:
                plain = fake(one.detach())
                module._parameters[name] = nn.Parameter(plain, requires_grad=one.requires_grad)
        for name, one in module._buffers.items():
            module._buffers[name] = None if one is None else fake(one)
    made.parameters = [one for one in made.net.module.parameters() if one.requires_grad]
    images, labels = made.resident
    made.resident = fake(images), None if labels is None else fake(labels)


def prepare_calls(
    backend: FrameworkBackend, case: StepSpec, signatures: list[str]
) -> OperatorsKernel | DeviceOperators:
    """Make calls ready; see :func:`pydlbench.steps.operations.prepare_calls`."""
    _check_eager(case)
    begin = time.perf_counter()
    # What is fed is no call of PyTorch's, and has a subgraph's signature.
    fed = [one for one in signatures if one.startswith("{")]
    recorded = [one for one in signatures if one not in fed]
    calls, refused = _made_ready(case, recorded)
    feeding = {one: fed_operator(one, case) for one in fed}
    if case.on_gpu:
        facts = OperatorsFacts(
            names=(*feeding, *calls),
            how=device.HOW,
            setup_s=time.perf_counter() - begin,
            library=backend.library,
            refused=refused,
        )
        every: list[DeviceCall] = [*feeding.values(), *calls.values()]
        runtime = device.runtime_of(backend)
        return device.DeviceOperators(every, facts, runtime, _guard(case), backend.watcher)
    ready: dict[str, TimedOperator] = {**feeding, **calls}
    dispatch = chain.call_cost(case.device)
    facts = OperatorsFacts(
        names=tuple(ready),
        dispatch_s=median(dispatch),
        dispatch_samples=dispatch,
        how=f"{replay.HOW}; dispatch: {chain.HOW}",
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        refused=refused,
    )
    return OperatorsKernel(list(ready.values()), facts, backend.cpus)


def _made_ready(
    case: StepSpec, signatures: list[str]
) -> tuple[dict[str, replay.CallOperator], dict[str, str]]:
    """Return the calls that ran, and why others did not, by signature."""
    if case.own is not None:
        load_own(case.model)  # its file may define operators
    with settings.tf32(case.precision):
        return replay.make_ready(signatures, case.device, case.seed, _waiting(case))


def prepare_logged_calls(
    backend: FrameworkBackend, case: StepSpec, signatures: list[str]
) -> LoggedOperators:
    """Make logged calls ready; see :func:`pydlbench.steps.operations.prepare_logged_calls`."""
    _check_eager(case)
    begin = time.perf_counter()
    calls, refused = _made_ready(case, signatures)
    executions = {
        name: Counter(f"{one.library} {one.primitive}" for one in _logged(call.run))
        for name, call in calls.items()
    }
    facts = OperatorsFacts(
        names=tuple(calls),
        executions={name: dict(one) for name, one in executions.items()},
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        refused=refused,
    )
    return LoggedOperators(list(calls.values()), _logged, facts, backend.cpus)


def _logged(run: Callable[[], float]) -> list[Execution]:
    """Run something and return what PyTorch's libraries logged of it."""
    return parse(library_output(run))


def prepare_chain(
    backend: FrameworkBackend, model: Model | None, case: StepSpec
) -> OperatorsKernel | DeviceChain:
    """Make the chain of a step ready; see :func:`pydlbench.steps.operations.prepare_chain`.

    Args:
        backend: of the worker.
        model: the graph; None of a model of the user's own.
        case: the step.
    """
    _check_eager(case)
    begin = time.perf_counter()
    made: TorchModel | OwnModel
    if model is None:
        made = OwnModel(case)
    else:
        made = TorchModel(model, make_weights(model, case.seed), case, make_batch(model, case.seed))
    with made:
        recorded = made.record() if isinstance(made, OwnModel) else record_model(made)
        recording = recorded.recording
        checks = chain.verify(recording, recorded.step, recorded.parameters, case.seed)
    for one in recorded.parameters:
        one.grad = None  # the chain has its own
    number = f"{sum(not one.implied for one in recording.calls)} calls"
    facts = OperatorsFacts(
        names=("chain",),
        # On a GPU the device's time counts, in which nothing is started from Python.
        dispatch_s=0.0 if case.on_gpu else median(chain.call_cost(case.device)),
        how=number if case.on_gpu else f"{number}; dispatch: {chain.HOW}",
        setup_s=time.perf_counter() - begin,
        library=backend.library,
        calls=recording.distinct(),
        blocks=() if case.on_gpu else recording.blocks(),
        allocates=not case.on_gpu,
        checks=checks,
        batch=made.batch if isinstance(made, OwnModel) else made.model.batch,
    )
    chained = chain.Chain(recording, _waiting(case))
    if not case.on_gpu:
        return OperatorsKernel([chained], facts, backend.cpus)
    operator: Any = SimpleNamespace(call=chained.call, wait=_waiting(case))
    runtime = device.runtime_of(backend)
    clock = device.StepClock(operator, runtime, backend.cpus, _guard(case), backend.watcher)
    return device.DeviceChain(clock, msgspec.structs.replace(facts, ungraphed=clock.ungraphed()))


def _check_eager(case: StepSpec) -> None:
    """Refuse modes whose calls are not the dispatcher's.

    Raises:
        UnsupportedError: a compiled mode.
    """
    if case.mode != "eager":
        raise UnsupportedError(
            f"torch {case.mode}: its kernels are the compiler's own, which PyTorch's dispatcher "
            "does not see; nearest: --mode eager"
        )


def _guard(case: StepSpec) -> Callable[[], contextlib.AbstractContextManager[None]]:
    """Return what makes the context of calls: in the step's precision, below autograd."""

    @contextlib.contextmanager
    def context() -> Iterator[None]:
        with settings.tf32(case.precision), chain.below_autograd():
            yield

    return context


def _waiting(case: StepSpec) -> Callable[[], None]:
    """Return what waits for the case's device."""
    if not case.on_gpu:
        return lambda: None
    return lambda: torch.cuda.synchronize(case.device)
