"""A model of the user's own in PyTorch: built by the user's code, fed, run and recorded.

Its step is what a script of the user's would do in a loop: forward, loss, backward, optimizer, on
inputs that lie there already. Nothing is known of it but what it does.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import operator
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Final

import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch.utils import _pytree as pytree

from pydlbench.backends.steps.own import (
    batch_of,
    call_own,
    chosen_loss,
    input_texts,
    loss_of,
    own_code,
    own_line,
    parts_of,
)
from pydlbench.backends.torch.recording import by_module
from pydlbench.backends.torch.settings import DTYPES
from pydlbench.backends.torch.step import TorchStep, TorchSubject, tensors_in
from pydlbench.errors import UnsupportedError, UsageError, nearest
from pydlbench.records.own import FUSED, OwnSpec
from pydlbench.records.step import Check

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from pydlbench.backends.steps.definition import LossKind, StepDefinition
    from pydlbench.backends.steps.inputs import Batch
    from pydlbench.backends.torch.recording import Naming
    from pydlbench.records.own import OwnInput
    from pydlbench.records.step import StepSpec

__all__ = ["OwnModel"]

#: Learning rate: thousands of steps on one batch leave the numbers where they are.
_RATE: Final = 1e-6
_MU: Final = 0.9


class OwnModel(TorchSubject):
    """A user's model with its inputs, loss and optimizer.

    A context manager: within it PyTorch computes in the case's precision, and what the user's code
    raises names the user's file and line. Its checks are that output and gradients are finite:
    there is no graph to hold them against.

    Args:
        case: the step, of a model of the user's own.

    Raises:
        UsageError: the callable is none, returns something else, or lacks inputs or a loss.
        UnsupportedError: PyTorch has no such precision on this device.
        ModelError: the user's code has raised.
    """

    def __init__(self, case: StepSpec) -> None:
        if case.feed == "host":
            raise UnsupportedError(f"{case.model}: --feed host is for models of the catalogue")
        super().__init__(case)
        self.own = case.own or OwnSpec()
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
        self._weights = [one for one in self.module.parameters() if one.requires_grad]
        self.parameters = self._differentiated()
        self.resident = self.arguments, self.keywords
        #: Of the output.
        self._loss: Callable[[Any], torch.Tensor] | None = None
        self.line = own_line(self._name)
        self.step = TorchStep(self, self.definition)

    def guards(self) -> tuple[contextlib.AbstractContextManager[Any], ...]:
        """Tell what the user's code raises; compute in TF32 where that is the precision."""
        return own_code(self._name), *super().guards()

    def set_layers(self, definition: StepDefinition) -> None:
        """Leave them as they are: the user says how they work."""

    def fed(self, batch: Batch | None = None) -> tuple[Any, ...]:
        """Return the inputs, which lie on the device."""
        del batch
        return self.resident

    def computation(self, kind: LossKind, keeps: bool, eager: bool) -> Callable[..., Any]:
        """Return the function of inputs to output and loss; the module is compiled."""
        del keeps
        called: Callable[..., Any] = self.module
        if self.case.mode == "compiled" and not eager:
            called = torch.compile(self.module, dynamic=False)

        def computed(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> tuple[Any, Any]:
            output = called(*arguments, **keywords)
            return output, None if kind == "none" else (self._loss or self._first_loss)(output)

        return computed

    @property
    def names(self) -> dict[torch.Tensor, str]:
        """What has a gradient, by the module that it is of."""
        named = {
            one: name.rpartition(".")[0]
            for name, one in self.module.named_parameters()
            if one.requires_grad
        }
        return named or dict.fromkeys(self.parameters, "input")

    @property
    def naming(self) -> Naming:
        """Names calls after the user's modules."""
        return by_module(self.module)

    def run(self) -> tuple[Any, torch.Tensor | None]:
        """Run the step once and return output and loss."""
        return self.step.run()

    def checks(self, result: Any) -> tuple[Check, ...]:
        """Say whether what a step has computed is finite."""
        results = {f"tensor {n}": one for n, one in enumerate(tensors_in(result), start=1)}
        checks = [_finite("output", results)]
        if self.case.backward:
            named = {name: one.grad for name, one in self.module.named_parameters()}
            known = {name: one for name, one in named.items() if one is not None}
            unused = sum(one.grad is None for one in self._weights)
            if unused:
                self.notes.append(f"{unused} of {len(self._weights)} weights have no gradient")
            checks.append(_finite("gradients", known))
        return tuple(checks)

    def facts(self, result: Any) -> dict[str, Any]:
        """Return what is known of the model; see ``steps.definition.StepModel``."""
        first = next(tensors_in(result), None)
        return {
            "batch": self.batch,
            "output": () if first is None else tuple(first.shape),
            "parameters": sum(one.numel() for one in self._weights),
            "inputs": self.inputs,
            "environment": {"module": type(self.module).__name__},
        }

    @property
    def batch(self) -> int:
        """The first number of the first input's shape; 1 without any."""
        first = next(tensors_in([self.arguments, self.keywords]), None)
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
        if self._weights or not self.case.backward:
            return list(self._weights)
        if self.case.phase == "training":
            raise UsageError(
                f"{self._name}: has no weights to train; nearest: --phase forward-backward"
            )
        found = [
            one for one in tensors_in([self.arguments, self.keywords]) if one.is_floating_point()
        ]
        for one in found:
            one.requires_grad_()
        self.notes.append("no weights: the gradients are those of the inputs")
        return found

    def made_optimizer(self, weights: list[Any]) -> torch.optim.Optimizer:
        """Return the optimizer that was asked for."""
        # PyTorch's own default is chosen where it is not asked to fuse.
        how: dict[str, Any] = {"lr": _RATE, "fused": self.own.fused or None}
        match self.own.optimizer.removesuffix(FUSED):
            case "sgd":
                return torch.optim.SGD(weights, **how)
            case "momentum":
                return torch.optim.SGD(weights, momentum=_MU, **how)
            case "adam":
                return torch.optim.Adam(weights, **how)
            case "adamw":
                return torch.optim.AdamW(weights, **how)
        raise AssertionError("no step is trained without an optimizer")

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
    """See ``backends.steps.own.LossTensors``."""

    def tensors(self, output: Any) -> list[torch.Tensor]:
        return [one for one in tensors_in(output) if one.is_floating_point()]

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
