"""A user's kernel in the place of an operator of PyTorch, or a module in the place of another.

An operator is replaced in PyTorch's dispatcher, below autograd and above the kernels of all
devices. So autograd keeps the operator's own gradient, and calls of other operators cost nothing
more. A module is replaced by its function ``forward``. Both pass through :class:`Swap`, which can
make the original run in the same way: that is the control.
"""

import contextlib
import dataclasses
import random
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from typing import Any, Final

import torch
from torch import nn

from pydlbench.backends.frameworks.backend import FrameworkBackend
from pydlbench.backends.host_clock import page_faults
from pydlbench.backends.steps.definition import StepModel
from pydlbench.backends.steps.timed_calls import OperatorsKernel
from pydlbench.backends.steps.user_code import accepts, load_user_object, user_code_errors
from pydlbench.backends.torch import settings
from pydlbench.backends.torch.steps.calls_alone import Operands, copies
from pydlbench.backends.torch.steps.profiled import below_autograd
from pydlbench.backends.torch.steps.signature import signature
from pydlbench.errors import RefusedKernelError, UnsupportedError, UsageError, unknown_word
from pydlbench.records.step import SWAPPED_MODULE, StepSpec
from pydlbench.records.trace import OperatorsFacts, RecordedCall
from pydlbench.verification.verify import tolerance

_KEY: Final = torch._C.DispatchKey.BackendSelect
# Bound before the user's code is imported.
_CLOCK, _DRAW = time.perf_counter, random.SystemRandom().random
# Share of the timed calls whose results are compared.
_COMPARED: Final = 0.5


@dataclasses.dataclass(eq=False)
class Swap:
    """Calls of an operator or module that pass through Python.

    Attributes:
        target: ``aten.relu``, or ``module:NAME``.
        original: makes the call as it is.
        launch: makes the call in the user's way; None to call the original.
        weights: trained tensors of a module.
        operator: PyTorch's operator; None for a module.
        path: path of a module.
        active: makes the next calls; None for the original.
        running: whether a call is being made.
        sums: seconds and page faults of all calls.
    """

    target: str
    original: Callable[..., Any]
    launch: Callable[..., Any] | None
    weights: tuple[torch.Tensor, ...] = ()
    operator: Any = None
    path: tuple[str, ...] = ()
    active: Callable[..., Any] | None = None
    running: bool = False
    sums: list[float] = dataclasses.field(default_factory=lambda: [0.0, 0.0])

    def __call__(self, *arguments: Any, **keywords: Any) -> Any:
        """Make a call."""
        if self.running:
            return self.original(*arguments, **keywords)
        active, self.active = self.active, None  # the kernel's own calls use the original operator
        self.running, begun = True, _clock()
        try:
            return (active or self.original)(*arguments, **keywords)
        finally:
            self.active, self.running = active, False
            for place, (now, then) in enumerate(zip(_clock(), begun, strict=True)):
                self.sums[place] += now - then

    def results(
        self,
        launch: Callable[..., Any] | None,
        operands: Operands,
        context: Callable[[], contextlib.AbstractContextManager[Any]],
    ) -> list[Any]:
        """Make a call in one way; return its results, and a module's gradients if it has any.

        Args:
            launch: makes the call; None for the original.
            operands: arguments by position and by name.
            context: returns a new context for the call, but not for the gradients.
        """
        self.active = launch
        try:
            with context():
                outputs = [*tensors_in(self(*operands[0], **operands[1]))]
        finally:
            self.active = None
        wanted = [x for x in (*self.weights, *tensors_in([*operands])) if x.requires_grad]
        if not (torch.is_grad_enabled() and wanted):
            return outputs
        ends = [tensor for tensor in outputs if tensor.requires_grad]
        seeds = [torch.ones_like(tensor) for tensor in ends]
        if not ends:
            return [*outputs, *(None for _ in wanted)]
        return [*outputs, *torch.autograd.grad(ends, wanted, seeds, allow_unused=True)]


def _clock() -> tuple[float, float]:
    return _CLOCK(), page_faults()


def tensors_in(value: Any) -> Iterator[torch.Tensor]:
    """Yield the tensors in arguments or results of a module, mappings and dataclasses included."""
    if isinstance(value, torch.Tensor):
        yield value
    elif isinstance(value, Mapping):
        for part in value.values():
            yield from tensors_in(part)
    elif isinstance(value, (list, tuple)):
        for part in value:
            yield from tensors_in(part)
    elif dataclasses.is_dataclass(value) and not isinstance(value, type):
        for field in dataclasses.fields(value):
            yield from tensors_in(getattr(value, field.name))


def clock(swaps: list[Swap]) -> Callable[[], list[float]]:
    """Return the function for seconds and page faults of swapped calls since its last call."""

    def taken() -> list[float]:
        sums = [sum(parts) for parts in zip(*(swap.sums for swap in swaps), strict=True)]
        for swap in swaps:
            swap.sums = [0.0, 0.0]
        return sums

    return taken


# -----------------------------------------------------------------------------
# In a model.

_libraries: list[Any] = []


def install(spec: StepSpec, module: nn.Module) -> list[Swap]:
    """Make a step's swaps: of operators for this process, and of modules in a model.

    Raises:
        UsageError: no such operator or module, or a function that returns no module in its place.
        UnsupportedError: an operator draws random numbers.
    """
    while _libraries:
        _libraries.pop()._destroy()
    swaps: list[Swap] = []
    for text in spec.swaps or ():
        target, _, name = text.partition("=")
        word = target.removeprefix(SWAPPED_MODULE)
        if word == target:
            swaps.append(_swapped_operator(target, name, spec.device))
            continue
        inner = {path: part for path, part in module.named_modules() if path}
        classes = {path: type(part).__name__ for path, part in inner.items()}
        chosen = [path for path in inner if word in (path, classes[path])]
        if not chosen:
            choices = {*inner, *classes.values()}
            raise unknown_word(f"--swap {target}: no module has this name or class", word, choices)
        for path in chosen:
            _check_apart(target, path, [other for swap in swaps for other in swap.path])
            swaps.append(_swapped_module(target, name, path, inner[path]))
    for swap in swaps:
        swap.active = swap.launch
    return swaps


def _check_apart(target: str, path: str, others: list[str]) -> None:
    """Refuse a module that contains another swapped module, or is part of one."""
    for other in others:
        if f"{path}.".startswith(f"{other}.") or f"{other}.".startswith(f"{path}."):
            raise UsageError(
                f"--swap {target}: module {path} overlaps the swapped module {other}; nearest: "
                f"{SWAPPED_MODULE}{min(path, other, key=len)} alone"
            )


def _swapped_operator(target: str, name: str, device: str) -> Swap:
    known = {each.replace("::", ".", 1) for each in torch._C._dispatch_get_all_op_names()}
    if not target.startswith("aten."):
        raise UsageError(
            f"--swap {target}: no operator of PyTorch's aten; nearest: aten.NAME of a call that "
            f"pydlbench step lists, or {SWAPPED_MODULE}NAME=FILE.py:CALLABLE"
        )
    if target not in known:
        choices = [each for each in sorted(known) if each.startswith(f"{target}.")]
        raise unknown_word(f"--swap {target}: no operator", target, choices or known)
    _, packet, overload = f"{target}.default".split(".")[:3]
    operator = getattr(getattr(torch.ops.aten, packet), overload)
    if torch._C._dispatch_has_kernel_for_dispatch_key(operator.name(), "CompositeImplicitAutograd"):
        raise UsageError(
            f"--swap {target}: consists of other calls, and its gradient would be lost; nearest: a "
            f"call that pydlbench step lists, or {SWAPPED_MODULE}NAME=FILE.py:CALLABLE"
        )
    if torch.Tag.nondeterministic_seeded in operator.tags:
        raise UnsupportedError(f"--swap {target}: draws random numbers, so it is not compared")
    keys = torch._C._dispatch_keys(torch.empty(0, device=device))
    below = keys & torch._C._dispatch_keyset_full_after(_KEY)
    launch = _launcher(name, operator) if name else None
    swap = Swap(target, partial(operator.redispatch, below), launch, operator=operator)
    _libraries.append(torch.library.Library("aten", "IMPL"))
    hook = partial(_call_with_tensors, swap) if overload == "Tensor" else swap.__call__
    _libraries[-1].impl(operator, hook, _KEY.name)
    return swap


def _call_with_tensors(swap: Swap, *arguments: Any, **keywords: Any) -> Any:
    """Call a swap of an operator such as ``aten.add.Tensor``, whose operands may be numbers.

    PyTorch passes such an operand to Python as a number, which ``redispatch`` does not take. It
    becomes a tensor without dimensions, of a type that leaves the type of the result as it is.
    """
    tensors = [each for each in arguments if isinstance(each, torch.Tensor)]
    if len(tensors) == len(arguments):
        return swap(*arguments, **keywords)
    kept = tensors[0].ndim > 0 and tensors[0].is_floating_point()
    given = []
    for argument in arguments:
        if isinstance(argument, (bool, int, float)):
            dtype = torch.float64 if kept else torch.result_type(tensors[0], argument)
            given.append(torch.tensor(argument, dtype=dtype, device="cpu"))
        else:
            given.append(argument)
    return swap(*given, **keywords)


def _launcher(name: str, operator: Any) -> Callable[..., Any]:
    """Return a user's function that takes and returns what the operator does.

    One for ``layers --kernel``, which fills a tensor ``dst``, can be used for products and for
    operators with a single operand.
    """
    launch: Callable[..., Any] = load_user_object(name)
    given = [each.name for each in operator._schema.arguments if not each.has_default_value()]
    operator_name = operator.overloadpacket.__name__
    is_product = operator_name in ("mm", "bmm")
    adds_batch = operator_name == "mm"
    roles: tuple[str, ...] = ()
    if is_product:
        roles = ("src", "weights")
    elif len(given) == 1:
        roles = ("src",)
    if not roles or not accepts(launch, **dict.fromkeys((*roles, "dst"))):
        if callable(launch) and accepts(launch, *given):
            return launch
        raise UsageError(
            f"{name}: cannot be called with {', '.join(given)}, the operands of {operator}; "
            "nearest: a function of them that returns the result"
        )

    def filled(*operands: torch.Tensor, **_: Any) -> torch.Tensor:
        tensors = [tensor.detach().contiguous() for tensor in operands[: len(roles)]]
        result = torch.empty_like(tensors[0])
        if is_product:
            result = result.new_empty((*tensors[0].shape[:-1], tensors[1].shape[-1]))
        views = [*tensors, result]
        if adds_batch:
            views = [each[None] for each in views]
        launch(**dict(zip((*roles, "dst"), views, strict=True)))
        return result

    return filled


def _swapped_module(target: str, name: str, path: str, module: nn.Module) -> Swap:
    weights = tuple(module.parameters())
    launch = None
    if name:
        function = load_user_object(name)
        with user_code_errors(name):
            launch = function(module)
        if not isinstance(launch, nn.Module) or {*launch.parameters()} != {*weights}:
            raise UsageError(
                f"{name}: returns a {type(launch).__name__}; nearest: a torch.nn.Module with the "
                "weights of the module that it is called with: self.weight = module.weight"
            )
        launch.train(module.training)
    trained = tuple(weight for weight in weights if weight.requires_grad)
    swap = Swap(target, module.forward, launch, trained, path=(path,))
    object.__setattr__(module, "forward", swap)  # the new module is no part of the old one
    return swap


# -----------------------------------------------------------------------------
# The calls alone: the original and the user's, on the operands of the step.


@dataclasses.dataclass(eq=False)
class JudgedCall:
    """A call in one of two ways; the user's is compared with the original's after some samples.

    Attributes:
        swap: the swap.
        launch: makes the call; None for the original.
        operands: arguments by position and by name; each sample has other values in their memory.
        wait: returns when the device is done.
        spec: the step.
        autocast: returns a new context for the forward phase of the step.
    """

    swap: Swap
    launch: Callable[..., Any] | None
    operands: Operands
    wait: Callable[[], None]
    spec: StepSpec
    autocast: Callable[[], contextlib.AbstractContextManager[Any]]

    def run(self) -> float:
        """Change the operands, make the call, and return its seconds.

        Raises:
            RefusedKernelError: it computes something else, or changes an operand.
        """
        tensors = [*tensors_in([*self.operands])]
        values = [tensor.detach().clone() for tensor in tensors]
        for tensor, value in zip(tensors, values, strict=True):
            if not tensor.is_floating_point() or not all(tensor.stride()) or value.numel() < 2:
                continue
            # A mask's infinite values have their places.
            if bool(value.isfinite().all()):
                tensor.data.copy_(value.roll(1 + int(_DRAW() * (value.numel() - 1))))
        before = copies(*self.operands, graded=True)
        # Operands of operators are those below autocast.
        context = contextlib.nullcontext if self.swap.operator else self.autocast
        seed = int(_DRAW() * (1 << 31))  # both calls draw the same numbers
        enabled = partial(torch.set_grad_enabled, self.spec.backward)
        mode: Callable[[], Any] = below_autograd if self.swap.operator else enabled
        with settings.tf32(self.spec.precision), mode():
            torch.manual_seed(seed)
            self.wait()
            start = _CLOCK()
            results = self.swap.results(self.launch, self.operands, context)
            self.wait()
            seconds = _CLOCK() - start
            if self.launch is not None and _DRAW() < _COMPARED:
                torch.manual_seed(seed)
                expected = self.swap.results(None, before, context)
                self._judge([*results, *tensors], [*expected, *tensors_in([*before])])
        for tensor, value in zip(tensors, values, strict=True):
            if all(tensor.stride()):
                tensor.data.copy_(value)  # an operator may work in place
        return seconds

    def _judge(self, given: list[Any], expected: list[Any]) -> None:
        if len(given) != len(expected):
            raise RefusedKernelError(
                f"{self.swap.target}: {len(given)} results, gradients and operands, not "
                f"{len(expected)}"
            )
        sizes = [tensor.numel() for tensor in expected if tensor is not None]
        allowed = tolerance(self.spec.precision, max([1, *sizes]))
        for number, (own, other) in enumerate(zip(given, expected, strict=True), start=1):
            kinds = _kind(own), _kind(other)
            if kinds[0] != kinds[1]:
                raise RefusedKernelError(
                    f"{self.swap.target}: tensor {number} of its results, gradients and operands "
                    f"is {kinds[0]}, not {kinds[1]}; nearest, for a lost gradient: a "
                    "torch.autograd.Function"
                )
            if own is None or not own.numel():
                continue
            error = _error(own.detach().double(), other.detach().double())
            if not error <= allowed:
                raise RefusedKernelError(
                    f"{self.swap.target}: wrong result in a timed sample, relative error "
                    f"{error:.2g}, tolerance {allowed:.2g}; each call must compute it from its own "
                    "operands, and leave them as they are"
                )


def _kind(tensor: torch.Tensor | None) -> str:
    return "missing" if tensor is None else f"{tensor.dtype} {tuple(tensor.shape)}"


def _error(own: torch.Tensor, expected: torch.Tensor) -> float:
    """Return the largest relative error; values that are not finite must be the same."""
    finite = expected.isfinite()
    same = (own == expected) | (own.isnan() & expected.isnan())
    if not (finite | same).all():
        return float("inf")
    if not finite.any():
        return 0.0
    scale = float(expected[finite].abs().max()) or 1.0
    return float((own - expected)[finite].abs().max()) / scale


def serve_swaps(
    backend: FrameworkBackend,
    model: StepModel,
    swaps: list[Swap],
    spec: StepSpec,
    autocast: Callable[[], contextlib.AbstractContextManager[Any]],
) -> OperatorsKernel:
    """Prepare the swapped calls alone; see ``requests.request_swaps``.

    Args:
        backend: the worker's backend.
        model: the model.
        swaps: the swaps that are installed in it.
        spec: the step.
        autocast: returns a new context for the forward phase of the step.

    Raises:
        UsageError: the step does not call a swap's target, or calls it inside a swapped module.
    """
    counts: Counter[str] = Counter()
    found: dict[str, tuple[Swap, Operands]] = {}
    running: list[Swap] = []
    nested: list[tuple[str, str]] = []

    def noted(swap: Swap, *arguments: Any, **keywords: Any) -> Any:
        if running:
            nested.append((swap.target, running[-1].target))
        words = "".join((swap.target, *(f" {path}" for path in swap.path)))
        key = signature(words, arguments, keywords, spec.device)
        counts[key] += 1
        if key not in found:
            found[key] = swap, copies(arguments, keywords, graded=True)
        running.append(swap)
        try:
            return swap.original(*arguments, **keywords)
        finally:
            running.pop()

    with model:
        for swap in swaps:
            swap.active = partial(noted, swap)
        model.run()
        counts.clear()
        model.run()  # later steps have the state of the first one
        for swap in swaps:
            swap.active = None
        if nested:
            inner, outer = nested[0]
            raise UsageError(
                f"--swap {inner}: called inside the swapped {outer}, so its time would count "
                "twice; nearest: one of the two swaps"
            )
        if unseen := {swap.target for swap in swaps} - {swap.target for swap, _ in found.values()}:
            raise UsageError(
                f"--swap {min(unseen)}: the step does not call it; nearest: a call or module that "
                "pydlbench step lists, such as aten.relu_ for one that works in place"
            )
        calls = [
            JudgedCall(swap, launch, operands, model.synchronize, spec, autocast)
            for swap, operands in found.values()
            for launch in (None, swap.launch)
        ]
    facts = OperatorsFacts(
        names=tuple(found),
        calls=tuple(
            RecordedCall(signature=key, operator=swap.target, names=swap.path, count=counts[key])
            for key, (swap, _) in found.items()
        ),
    )
    return OperatorsKernel(calls, facts, backend.cpus)
