"""A model of the user's own in PyTorch: built by the user's code, fed, run and recorded.

Its step is what a script of the user's would do in a loop: forward, loss, backward, optimizer, on
inputs that lie there already. Nothing is known of it but what it does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import inspect
import operator
import time
from collections.abc import Mapping
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch.utils import _pytree as pytree

from pydlbench.backends import base
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.settings import DTYPES
from pydlbench.errors import UnsupportedError, UsageError, nearest
from pydlbench.records.own import FUSED, OwnSpec
from pydlbench.records.step import Check, StepFacts
from pydlbench.steps.definition import Guarded
from pydlbench.steps.device import step_kernel
from pydlbench.steps.own import (
    batch_of,
    call_own,
    chosen_loss,
    input_texts,
    loss_of,
    own_code,
    own_line,
    parts_of,
)
from pydlbench.steps.torch.recording import RecordedStep, by_module, record
from pydlbench.steps.torch.step import autocast

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.backends.frameworks.backend import FrameworkBackend
    from pydlbench.records.own import OwnInput
    from pydlbench.records.step import StepKernel, StepPreparation, StepSpec
    from pydlbench.steps.torch.recording import Recording

__all__ = ["OwnModel", "prepare_step"]

#: Learning rate: thousands of steps on one batch leave the numbers where they are.
_RATE: Final = 1e-6
_MU: Final = 0.9


class OwnModel(Guarded):
    """A user's model with its inputs, loss and optimizer.

    A context manager: within it PyTorch computes in the case's precision, and what the user's code
    raises names the user's file and line.

    Args:
        case: the step, of a model of the user's own.

    Raises:
        UsageError: the callable is none, returns something else, or lacks inputs or a loss.
        UnsupportedError: PyTorch has no such precision on this device.
        ModelError: the user's code has raised.
    """

    def __init__(self, case: StepSpec) -> None:
        super().__init__()
        base.check_precision(case.precision, case.on_gpu)
        settings.check_precision(case.precision, case.on_gpu)
        if case.precision == "fp8-tc":
            raise UnsupportedError("torch runs no whole models in fp8-tc; nearest: bf16-tc")
        if case.feed == "host":
            raise UnsupportedError(f"{case.model}: --feed host is for models of the catalogue")
        self.case = case
        self.own = case.own or OwnSpec()
        #: What a reader has to know.
        self.notes: list[str] = []
        self._name = case.model
        torch.manual_seed(case.seed)
        with _own_settings(self.notes), own_code(self._name):
            made = call_own(self._name, case.options)
            module, given, self._criterion = parts_of(self._name, made, case.framework)
            whole = case.cast == "whole" and case.precision not in ("fp32", "tf32")
            self._dtype = DTYPES[case.precision] if whole else None
            self.module = module.to(case.device, self._dtype)
            given = self._made_inputs() if self.own.inputs else given
            if given is None:
                raise UsageError(
                    f"{self._name}: returns no inputs; nearest: --input 8x3x224x224, or return "
                    "(module, inputs)"
                )
            self.arguments, self.keywords = self._placed(given)
            if self.own.inputs:
                self._check_names()
            if case.layout == "nhwc":
                self._to_channels_last()
            trains = case.backward if self.own.train is None else self.own.train
            try:
                self.module.train(trains)
            except NotImplementedError:  # of torch.export's programs
                self.notes.append("an exported program: it trains or not as it was exported")
            if self.own.loss is not None and ":" in self.own.loss:
                self._criterion = loss_of(self.own.loss)
        self.parameters = [one for one in self.module.parameters() if one.requires_grad]
        self._leaves = self._differentiated()
        #: Of the output.
        self._loss: Callable[[Any], torch.Tensor] = self._first_loss
        self._optimizer = self._made_optimizer()
        self._called: Callable[..., Any] = self.module
        if case.mode == "compiled":
            self._called = torch.compile(self.module, dynamic=False)

    def guards(self) -> tuple[contextlib.AbstractContextManager[Any], ...]:
        """Tell what the user's code raises; compute in TF32 where that is the precision."""
        return own_code(self._name), settings.tf32(self.case.precision)

    @property
    def batch(self) -> int:
        """The first number of the first input's shape; 1 without any."""
        first = next(_tensors([self.arguments, self.keywords]), None)
        return batch_of(self._name, None if first is None else tuple(first.shape))

    @property
    def inputs(self) -> tuple[str, ...]:
        """The inputs as ``--input`` takes them; empty where they are no such tensors."""
        given = [(None, one) for one in self.arguments] + list(self.keywords.items())
        if not all(isinstance(one, torch.Tensor) for _, one in given):
            return ()
        return input_texts(
            (name, tuple(one.shape), str(one.dtype).removeprefix("torch.")) for name, one in given
        )

    def run(self) -> tuple[Any, torch.Tensor | None]:
        """Run the step once and return output and loss, as the loop of a script would hold them."""
        if not self.case.backward:
            with torch.no_grad(), autocast(self.case):
                return self._called(*self.arguments, **self.keywords), None
        for one in self._leaves:
            one.grad = None
        with autocast(self.case):
            output = self._called(*self.arguments, **self.keywords)
            loss = self._loss(output)
        loss.backward()
        if self._optimizer is not None:
            self._optimizer.step()
        return output, loss

    def step(self) -> list[torch.Tensor]:
        """Run the step once and return the tensors that it computes."""
        return list(_tensors(self.run()))

    def synchronize(self) -> None:
        """Return when the device has done everything that was called."""
        if self.case.on_gpu:
            torch.cuda.synchronize(self.case.device)

    def record(self) -> RecordedStep:
        """Record a step that is not the first one; its calls are named after the modules."""
        self.run()  # makes what later steps find: gradients to drop, an optimizer's state
        return RecordedStep(step=self.step, parameters=self._names(), recording=self._recording())

    def record_twice(self) -> tuple[Recording, tuple[str, ...]]:
        """Record two steps; return the second, and a note where they are not the same calls."""
        first = self.record().recording
        second = self._recording()
        one, other = (
            [(call.signature, call.direction) for call in each.calls] for each in (first, second)
        )
        if one != other:
            self.notes.append(
                f"two steps made other calls ({len(one)} and {len(other)}): the model's control "
                "flow depends on data or chance; the second was taken"
            )
        return second, tuple(self.notes)

    # -------------------------------------------------------------------------
    # From what the user's code gives to what is run.

    def _made_inputs(self) -> Any:
        """Return the tensors that ``--input`` asks for."""
        stream = torch.Generator().manual_seed(self.case.seed)
        made = [(one.name, _random(one, stream)) for one in self.own.inputs]
        return (
            tuple(value for name, value in made if name is None),
            {name: value for name, value in made if name is not None},
        )

    def _check_names(self) -> None:
        """Refuse ``--input`` by a name that the module does not know."""
        try:
            known = inspect.signature(self.module.forward).parameters
        except (TypeError, ValueError):  # of code that is not Python's: it says so itself
            return
        if any(one.kind is one.VAR_KEYWORD for one in known.values()):
            return
        for name in self.keywords:
            if name not in known:
                near = nearest(name, known) or list(known)[:3]
                words = ", ".join(f"--input {one}=SHAPE" for one in near) or "an input without name"
                raise UsageError(
                    f"--input {name}: {type(self.module).__name__}.forward of {self._name} has no "
                    f"argument {name}; nearest: {words}"
                )

    def _placed(self, given: Any) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Return inputs on the device: a tuple by place, a mapping by name, else one alone."""
        arguments: tuple[Any, ...] = ()
        keywords: dict[str, Any] = {}
        if isinstance(given, Mapping):
            keywords = dict(given)
        elif self.own.inputs:
            arguments, keywords = given
        else:
            arguments = given if isinstance(given, tuple) else (given,)

        def put(value: torch.Tensor) -> torch.Tensor:
            narrow = self._dtype if value.is_floating_point() else None
            return value.detach().to(self.case.device, narrow)

        found: tuple[tuple[Any, ...], dict[str, Any]]
        found = pytree.tree_map_only(torch.Tensor, put, (arguments, keywords))
        return found

    def _to_channels_last(self) -> None:
        """Let images and the weights of convolutions lie with their channels last."""
        self.module.to(memory_format=torch.channels_last)

        def turned(value: torch.Tensor) -> torch.Tensor:
            return value.to(memory_format=torch.channels_last) if value.ndim == 4 else value

        self.arguments, self.keywords = pytree.tree_map_only(
            torch.Tensor, turned, (self.arguments, self.keywords)
        )

    def _differentiated(self) -> list[torch.Tensor]:
        """Return what has a gradient: the weights; without any the inputs."""
        if self.parameters or not self.case.backward:
            return list(self.parameters)
        if self.case.phase == "training":
            raise UsageError(
                f"{self._name}: has no weights to train; nearest: --phase forward-backward"
            )
        found = [
            one for one in _tensors([self.arguments, self.keywords]) if one.is_floating_point()
        ]
        for one in found:
            one.requires_grad_()
        self.notes.append("no weights: the gradients are those of the inputs")
        return found

    def _made_optimizer(self) -> torch.optim.Optimizer | None:
        if self.case.phase != "training":
            return None
        # PyTorch's own default is chosen where it is not asked to fuse.
        how: dict[str, Any] = {"lr": _RATE, "fused": self.own.fused or None}
        match self.own.optimizer.removesuffix(FUSED):
            case "sgd":
                return torch.optim.SGD(self.parameters, **how)
            case "momentum":
                return torch.optim.SGD(self.parameters, momentum=_MU, **how)
            case "adam":
                return torch.optim.Adam(self.parameters, **how)
            case "adamw":
                return torch.optim.AdamW(self.parameters, **how)
        raise AssertionError("no step is trained without an optimizer")

    def _names(self) -> dict[torch.Tensor, str]:
        """Return what has a gradient by the module that it is of."""
        named = {
            one: name.rpartition(".")[0]
            for name, one in self.module.named_parameters()
            if one.requires_grad
        }
        return named or dict.fromkeys(self._leaves, "input")

    def _recording(self) -> Recording:
        """Record a step; the optimizer counts it as none, so that the next one is the same."""
        states = self._optimizer.state.values() if self._optimizer is not None else ()
        counts = [(state["step"], state["step"].clone()) for state in states if "step" in state]
        recording = record(
            self.step,
            naming=by_module(self.module),
            parameters=self._names(),
            optimizer=self._optimizer,
            device=self.case.device,
            line=own_line(self._name),
        )
        for count, before in counts:
            count.copy_(before)
        return recording

    def _first_loss(self, output: Any) -> torch.Tensor:
        """Choose the loss by the first output; return it, made sure that it has a gradient."""
        kind = self.own.loss
        function, how = chosen_loss(self._name, kind, self._criterion, output, _Losses())
        loss = function(output)
        if not isinstance(loss, torch.Tensor) or loss.numel() != 1:
            shape = f" {tuple(loss.shape)}" if isinstance(loss, torch.Tensor) else ""
            raise UsageError(
                f"{self._name}: its loss ({how}) is a {type(loss).__name__}{shape} and no single "
                "number; nearest: --loss sum"
            )
        if not loss.requires_grad:
            raise UsageError(
                f"{self._name}: its loss ({how}) has no gradient: nothing that it is computed from "
                "has one, or torch.no_grad is on; nearest: --phase forward"
            )
        self._loss = function
        self.notes.append(f"loss: {how}")
        return loss


# -----------------------------------------------------------------------------
# What a worker is asked for.


def prepare_step(
    backend: FrameworkBackend, case: StepSpec, preparation: StepPreparation
) -> StepKernel:
    """Make the step of a user's model ready; see :func:`pydlbench.steps.operations.prepare_step`.

    Its checks are that output and gradients are finite: there is no graph to hold them against.
    """
    begin = time.perf_counter()
    made = OwnModel(case)
    with made:
        found = made.step()
        made.synchronize()
        setup_s = time.perf_counter() - begin
        begin = time.perf_counter()
        checks = _checks(made, found) if preparation.checks else ()
        shape = tuple(found[0].shape) if found else ()
        del found
    facts = StepFacts(
        library=backend.library,
        timing="host-sync" if case.on_gpu else "steady",
        batch=made.batch,
        output=shape,
        parameters=sum(one.numel() for one in made.parameters),
        inputs=made.inputs,
        setup_s=setup_s,
        checks=checks,
        checks_s=time.perf_counter() - begin,
        notes=tuple(made.notes),
        environment={**backend.describe(), "module": type(made.module).__name__},
    )
    # It has no outputs by role, which the clock never asks for.
    timed: Any = SimpleNamespace(call=made.run, wait=made.synchronize)
    return step_kernel(backend, timed, lambda: made, facts, graph=preparation.graph)


def _checks(made: OwnModel, found: list[torch.Tensor]) -> tuple[Check, ...]:
    """Say whether what a step has computed is finite."""
    checks = [_finite("output", {f"tensor {n}": one for n, one in enumerate(found, start=1)})]
    if made.case.backward:
        named = {name: one.grad for name, one in made.module.named_parameters()}
        known = {name: one for name, one in named.items() if one is not None}
        unused = sum(one.grad is None for one in made.parameters)
        if unused:
            made.notes.append(f"{unused} of {len(made.parameters)} weights have no gradient")
        checks.append(_finite("gradients", known))
    return tuple(checks)


def _finite(name: str, tensors: Mapping[str, torch.Tensor]) -> Check:
    wrong = [
        f"{key} is not finite"
        for key, one in tensors.items()
        if one.is_floating_point() and not bool(one.isfinite().all())
    ]
    text = "; ".join(wrong[:3]) or f"{len(tensors)} of {len(tensors)} tensors are finite"
    return Check(name=name, status="failed" if wrong else "ok", detail=text)


# -----------------------------------------------------------------------------
# The loss, and tensors in what a module takes or gives.


class _Losses:
    """See :class:`pydlbench.steps.own.LossTensors`."""

    def tensors(self, output: Any) -> list[torch.Tensor]:
        return [one for one in _tensors(output) if one.is_floating_point()]

    def is_tensor(self, value: Any) -> bool:
        return isinstance(value, torch.Tensor)

    def is_loss(self, value: torch.Tensor) -> bool:
        return bool(value.numel() == 1 and value.requires_grad)

    def number(self, value: torch.Tensor) -> torch.Tensor:
        return value.reshape(())

    def total(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return _sum(one.float().sum() for one in tensors)

    def mean_squares(self, tensors: Sequence[torch.Tensor]) -> torch.Tensor:
        return _sum(one.float().square().mean() for one in tensors)

    def cross_entropy(self, logits: torch.Tensor) -> Callable[[torch.Tensor], torch.Tensor]:
        """Classes are the second of images' dimensions, and the last of sequences'."""

        def rows(found: torch.Tensor) -> torch.Tensor:
            return found.flatten(0, 1) if found.ndim == 3 else found

        first = rows(logits)
        shape = first.shape[0], *first.shape[2:]
        stream = torch.Generator().manual_seed(0)
        labels = torch.randint(0, first.shape[1], shape, generator=stream).to(first.device)
        return lambda found: F.cross_entropy(rows(found).float(), labels)


def _sum(parts: Iterable[torch.Tensor]) -> torch.Tensor:
    return functools.reduce(operator.add, parts)


def _tensors(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in what a module takes or gives, mappings and dataclasses included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for one in value.values():
            yield from _tensors(one)
    elif isinstance(value, (list, tuple)):
        for one in value:
            yield from _tensors(one)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from _tensors(getattr(value, field.name))


def _random(wanted: OwnInput, stream: torch.Generator) -> torch.Tensor:
    """Return an input: floating-point values uniform in [-1, 1), others 0 or 1.

    Whole numbers most often count rows of a table, which has two at the least.
    """
    dtype: torch.dtype = getattr(torch, wanted.dtype)
    if dtype.is_floating_point:
        return torch.rand(wanted.shape, generator=stream).mul_(2).sub_(1).to(dtype)
    return torch.randint(0, 2, wanted.shape, generator=stream).to(dtype)


@contextlib.contextmanager
def _own_settings(notes: list[str]) -> Iterator[None]:
    """Undo what the user's code sets for the whole process: threads, and having no gradients.

    Args:
        notes: gets one on threads, which are what a row says.
    """
    threads, graded = torch.get_num_threads(), torch.is_grad_enabled()
    try:
        yield
    finally:
        torch.set_grad_enabled(graded)
        if torch.get_num_threads() != threads:
            notes.append(
                f"its code asks for {torch.get_num_threads()} threads; it runs with {threads} "
                "(--threads)"
            )
            torch.set_num_threads(threads)
