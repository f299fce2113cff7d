"""Calls of PyTorch's operators, each alone, on a step's operands or on made-up operands.

The time of some calls depends on values: on made-up operands a maximum pooling that compares number
by number was 3/4 as fast as in GoogLeNet, a masked softmax twice as fast. Calls that are compared
with a step therefore get copies of its operands, made while the step runs (:class:`StepOperands`).
A stored row, which stands for the same call in any model, has made-up operands.

Made-up floating-point operands are uniform in [-1, 1), seeded. Operands are consistent with each
other: indices are in the range that they index, and operands of a backward pass that its forward
pass computes (indices of a pooling, statistics of a normalisation, a softmax) come from running
that forward pass. Other integers are zeros, which are valid as an index.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeAlias

import torch

from pydlbench.backends.steps.timed_calls import prepare_operators
from pydlbench.backends.torch.dispatch import DispatchMode
from pydlbench.backends.torch.steps.profiled import below_autograd
from pydlbench.backends.torch.steps.signature import (
    ALIGNMENT,
    ParsedCall,
    first_byte,
    parse,
    signature,
    strided,
)
from pydlbench.calls.meaning import Value
from pydlbench.calls.seen.aten import leaves, map_leaves
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import group_by

_aten: Any = torch.ops.aten
# Number of different random values of a made-up operand; a larger operand repeats them. The number
# divides no usual length, so that the rows of an operand differ.
_DISTINCT: Final = 1_000_003


class CallOperator:
    """A call with its operands; see ``backends.steps.timed_calls.TimedOperator``.

    Before the clock starts, overwritten operands are restored and the first tensor is read, as if
    the call before had just written it.

    Args:
        parsed: the call.
        device: device that the call runs on.
        seed: seed of made-up operands.
        wait: returns when the device has done everything that was called.
        operands: arguments by position and by name; None makes them up.

    Raises:
        UnsupportedError: the operands of the call cannot be made up.
    """

    executions = 1

    def __init__(
        self,
        parsed: ParsedCall,
        device: str,
        seed: int = 0,
        wait: Callable[[], None] = lambda: None,
        operands: Operands | None = None,
    ) -> None:
        self.function, self._wait = parsed.function, wait
        self.arguments, self.keywords = operands or _made_up(parsed, device, seed)
        written = _written(parsed.function, self.arguments, self.keywords)
        self._restored = [
            (tensor, tensor.clone(), (tensor.shape, tensor.stride(), tensor.storage_offset()))
            for tensor in written
        ]
        tensors = leaves([self.arguments, self.keywords], torch.Tensor)
        floats = [tensor for tensor in tensors if tensor.dtype.is_floating_point]
        self._first = floats[0] if floats and floats[0].numel() else None

    def call(self) -> Any:
        """Make the call."""
        return self.function(*self.arguments, **self.keywords)

    def settle(self) -> None:
        """Restore overwritten tensors with their shapes, and read the first tensor."""
        for tensor, values, place in self._restored:
            tensor.as_strided_(*place).copy_(values)
        if self._first is not None:
            self._first.sum()

    def run(self) -> float:
        """Settle, make the call once, and return its seconds."""
        with below_autograd():
            self.settle()
            self._wait()
            start = time.perf_counter()
            results = self.call()
            self._wait()
            seconds = time.perf_counter() - start
            del results
        return seconds


def prepare_calls(
    signatures: Iterable[str],
    device: str,
    seed: int = 0,
    wait: Callable[[], None] = lambda: None,
    operands: Mapping[str, Operands] | None = None,
) -> tuple[dict[str, CallOperator], dict[str, str]]:
    """Prepare calls, and run each once.

    Args:
        signatures: signatures of the calls.
        device: device that the calls run on.
        seed: seed of made-up operands.
        wait: returns when the device has done everything that was called.
        operands: operands by signature; the operands of all other calls are made up.

    Returns:
        The calls that ran, and the reasons why others did not, by signature.
    """

    def make(text: str) -> CallOperator:
        given = (operands or {}).get(text)
        call = CallOperator(parse(text, made_up=given is None), device, seed, wait, given)
        call.run()
        with below_autograd():
            call.settle()  # as before each later run
        return call

    return prepare_operators(signatures, make)


# -----------------------------------------------------------------------------
# Operands of a step.

#: Arguments of a call, by position and by name.
Operands: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

# Autograd accumulates gradients in place, but not while a dispatch mode is active.
_SUM, _SUM_IN_PLACE = "aten.add.Tensor(", "aten.add_.Tensor("
_MAX_ITEM_BYTES: Final = 16


class StepOperands(DispatchMode):
    """A dispatch mode that copies the operands of the first call of each signature.

    Args:
        device: device that the step runs on.
        signatures: signatures of the calls.

    Attributes:
        copied: arguments by signature, as they were before the call.
    """

    def __init__(self, device: str, signatures: Iterable[str]) -> None:
        super().__init__()
        self._device = device
        self._wanted = set(signatures)
        self.copied: dict[str, Operands] = {}

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copy the operands if the signature is wanted, and make the call."""
        kwargs = kwargs or {}
        names = {signature(func, args, kwargs, self._device)}
        if torch._C._current_graph_task_id() != -1:
            names |= {name.replace(_SUM, _SUM_IN_PLACE, 1) for name in names}
        names &= self._wanted - self.copied.keys()
        tensors = list(leaves([args, kwargs], torch.Tensor))
        plain = (strided(each) and not (each.is_conj() or each.is_neg()) for each in tensors)
        if names and all(plain):
            if any(each.is_quantized for each in tensors):
                operands = map_leaves((args, kwargs), _clone)
                self.copied |= dict.fromkeys(names, operands)
            else:
                self.copied |= {name: copies(args, kwargs) for name in names}
        return func(*args, **kwargs)


def copies(
    arguments: tuple[Any, ...], keywords: dict[str, Any], *, graded: bool = False
) -> Operands:
    """Return arguments whose tensors are copies, which share memory where the tensors do.

    Args:
        arguments: positional arguments of a call.
        keywords: its other arguments.
        graded: whether copies require a gradient where the tensors do; a call that writes into
            such a tensor is refused.
    """
    tensors = list(leaves([arguments, keywords], torch.Tensor))
    memory: dict[int, tuple[int, torch.Tensor]] = {}
    for storage, sharing in group_by(
        tensors, lambda tensor: tensor.untyped_storage()._cdata
    ).items():
        begin, end = min(map(first_byte, sharing)), max(map(_end, sharing))
        begin -= begin % ALIGNMENT
        whole = sharing[0].untyped_storage()
        size = -(-(end - begin) // _MAX_ITEM_BYTES) * _MAX_ITEM_BYTES
        block = torch.empty(size, dtype=torch.uint8, device=sharing[0].device)
        source = torch.empty(0, dtype=torch.uint8, device=block.device)
        source.set_(whole, begin, (end - begin,), (1,))
        block[: end - begin].copy_(source)
        memory[storage] = begin, block

    def copy(value: Any) -> Any:
        if not isinstance(value, torch.Tensor):
            return value
        begin, block = memory[value.untyped_storage()._cdata]
        start = (first_byte(value) - begin) // value.element_size()
        made = block.view(value.dtype).as_strided(value.shape, value.stride(), start)
        return made.requires_grad_(graded and value.requires_grad)

    return map_leaves(arguments, copy), map_leaves(keywords, copy)


def _clone(value: Any) -> Any:
    return value.clone() if isinstance(value, torch.Tensor) else value


def _end(tensor: torch.Tensor) -> int:
    """Return the end of a tensor in its memory: the byte after its last element."""
    if not tensor.numel():
        return first_byte(tensor)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last: int = sum((size - 1) * stride for size, stride in steps)
    return first_byte(tensor) + (last + 1) * int(tensor.element_size())


# -----------------------------------------------------------------------------
# Operands that are made up: memory, and values.


def _made_up(parsed: ParsedCall, device: str, seed: int) -> Operands:
    """Return the arguments of a call, with tensors for the values that stand for them."""
    tensors = _tensors(list(leaves([parsed.arguments, parsed.keywords], Value)), device, seed)

    def operand(value: Any) -> Any:
        return tensors[value.number] if isinstance(value, Value) else value

    arguments = map_leaves(parsed.arguments, operand)
    keywords = map_leaves(parsed.keywords, operand)
    with torch.no_grad():
        _fit(parsed.function, arguments, keywords)
    return arguments, keywords


def _tensors(values: Sequence[Value], device: str, seed: int) -> list[torch.Tensor]:
    """Return the tensors of a call, in the order of their numbers."""
    stream = torch.Generator().manual_seed(seed)
    memory: dict[int, torch.Tensor] = {}
    tensors = []
    for value in values:
        if value.storage not in memory:
            size = max(other.end for other in values if other.storage == value.storage)
            memory[value.storage] = _block(value, size, value.device or device, stream)
        block = memory[value.storage].view(getattr(torch, value.dtype))
        start, rest = divmod(value.offset, value.itemsize)
        if rest:
            raise UnsupportedError(
                f"a tensor of {value.dtype} at byte {value.offset} of its memory"
            )
        tensors.append(block.as_strided(value.shape, value.strides, start))
    return tensors


def _block(value: Value, size: int, device: str, stream: torch.Generator) -> torch.Tensor:
    """Return memory of at least ``size`` bytes, filled with values of a tensor's type."""
    dtype: torch.dtype = getattr(torch, value.dtype)
    count = max(1, -(-size // dtype.itemsize))
    if dtype.is_floating_point:
        values = _random(count, stream).mul_(2).sub_(1).to(dtype)
    elif dtype.is_complex:
        values = torch.view_as_complex(_random(2 * count, stream).view(count, 2)).to(dtype)
    elif dtype == torch.bool:
        values = _random(count, stream) < 0.5
    else:
        values = torch.zeros(count, dtype=dtype)
    return values.to(device)


def _random(count: int, stream: torch.Generator) -> torch.Tensor:
    """Return numbers that are uniform in [0, 1); many of them repeat."""
    values = torch.rand(min(count, _DISTINCT), generator=stream)
    return values.repeat(-(-count // _DISTINCT))[:count] if count > _DISTINCT else values


def _written(function: Any, arguments: Any, keywords: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator writes into, by its schema."""
    bound = _bound(function, arguments, keywords)
    written = [
        bound.get(argument.name)
        for argument in function._schema.arguments
        if argument.alias_info is not None and argument.alias_info.is_write
    ]
    return list(leaves(written, torch.Tensor))


def _bound(function: Any, arguments: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by the names that the operator's schema gives them."""
    names = [argument.name for argument in function._schema.arguments]
    return {**dict(zip(names, arguments, strict=False)), **keywords}


# -----------------------------------------------------------------------------
# Consistent values, by operator. A rule changes the operands of a call, which it gets by name.

_Rule: TypeAlias = "Callable[[dict[str, Any]], None]"


def _fit(function: Any, arguments: Any, keywords: dict[str, Any]) -> None:
    """Give operands the values without which an operator would fail, or compute another thing."""
    rule = _RULES.get(str(function.overloadpacket).removeprefix("aten."))
    if rule is not None:
        rule(_bound(function, arguments, keywords))


def _fill_below(indices: torch.Tensor | None, limit: int) -> None:
    """Fill a tensor with random indices that are below a limit."""
    if indices is None or indices.dtype == torch.bool:
        return
    stream = torch.Generator().manual_seed(limit)
    for dim, stride in enumerate(indices.stride()):
        if stride == 0:  # an expanded dimension: its memory has room for one
            indices = indices[(slice(None),) * dim + (slice(1),)]
    indices.copy_(torch.randint(0, max(1, limit), indices.shape, generator=stream))


def _labels(call: dict[str, Any]) -> None:
    """Keep the labels of a negative log-likelihood below the number of classes."""
    scores = call["self"]
    _fill_below(call["target"], scores.shape[1] if scores.ndim > 1 else scores.shape[0])


def _labels_backward(call: dict[str, Any]) -> None:
    _labels(call)
    call["total_weight"].fill_(float(call["target"].numel()))


def _along(call: dict[str, Any]) -> None:
    """Keep indices within the dimension that they index."""
    shape = call["self"].shape
    _fill_below(call["index"], shape[call["dim"]] if shape else 1)


def _by_dimension(call: dict[str, Any]) -> None:
    """Keep each index tensor within its dimension."""
    for index, size in zip(call["indices"], call["self"].shape, strict=False):
        _fill_below(index, size)


def _positive(*names: str) -> _Rule:
    """Return the rule that makes operands positive."""

    def rule(call: dict[str, Any]) -> None:
        for tensor in leaves([call.get(name) for name in names], torch.Tensor):
            tensor.abs_().add_(0.1)

    return rule


def _computed(names: Sequence[str], forward: Callable[[dict[str, Any]], Any]) -> _Rule:
    """Return the rule for operands of a backward pass that its forward pass computes.

    Args:
        names: names of the operands.
        forward: runs the forward pass on the operands of a call, and returns their values.
    """

    def rule(call: dict[str, Any]) -> None:
        for name, value in zip(names, forward(call), strict=True):
            call[name].copy_(value)

    return rule


def _batch_statistics(call: dict[str, Any]) -> Any:
    operands = call["input"], call["weight"], None, None, None
    return _aten.native_batch_norm(*operands, True, 0.1, call["eps"])[1:]


def _batch_normalised(call: dict[str, Any]) -> None:
    """Use the statistics of the batch; without training no operator reads them."""
    _positive("running_var")(call)
    if call["train"]:
        _computed(("save_mean", "save_invstd"), _batch_statistics)(call)


def _cudnn_statistics(call: dict[str, Any]) -> Any:
    weight = call["weight"]
    operands = (call["input"], weight, weight.new_zeros(weight.shape), None, None)
    return _aten.cudnn_batch_norm(*operands, True, 0.1, call["epsilon"])[1:]


def _softmax(forward: Callable[..., torch.Tensor]) -> _Rule:
    """Return the rule that makes an output the result of a softmax."""
    return _computed(("output",), lambda call: [forward(call["output"].float(), call["dim"])])


def _attention(kernel: str, *options: str) -> _Rule:
    """Return the rule for the output and logarithms of sums of an attention.

    Args:
        kernel: kernel of the forward pass.
        options: operands of that kernel between the three tensors and the rate of dropout.
    """

    def forward(call: dict[str, Any]) -> Any:
        operands = [call[name] for name in ("query", "key", "value")]
        operands += [call.get(name, True) for name in options]
        keywords = {name: call[name] for name in ("attn_mask", "scale") if name in call}
        attend = getattr(_aten, kernel)
        return attend(*operands, call["dropout_p"], call["is_causal"], **keywords)[:2]

    return _computed(("out", "logsumexp"), forward)


# Some kernels take a bias, or None, and whether to compute the logarithms of sums: here they do.
_BIASED: Final = ("attn_bias", "compute_log_sumexp")


_RULES: Final[dict[str, _Rule]] = {
    "nll_loss_forward": _labels,
    "nll_loss_backward": _labels_backward,
    "nll_loss2d_forward": _labels,
    "nll_loss2d_backward": _labels_backward,
    "embedding": lambda call: _fill_below(call["indices"], call["weight"].shape[0]),
    "embedding_dense_backward": lambda call: _fill_below(call["indices"], call["num_weights"]),
    **dict.fromkeys(("gather", "scatter", "scatter_", "scatter_add", "scatter_add_"), _along),
    **dict.fromkeys(("index_select", "index_add", "index_add_"), _along),
    **dict.fromkeys(("index", "index_put", "index_put_", "_index_put_impl_"), _by_dimension),
    "max_pool2d_with_indices_backward": _computed(
        ("indices",),
        lambda call: _aten.max_pool2d_with_indices(
            call["self"],
            *[call[name] for name in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")],
        )[1:],
    ),
    "adaptive_max_pool2d_backward": _computed(
        ("indices",),
        lambda call: _aten.adaptive_max_pool2d(call["self"], call["grad_output"].shape[-2:])[1:],
    ),
    "native_batch_norm": _positive("running_var"),
    "_native_batch_norm_legit": _positive("running_var"),
    "_native_batch_norm_legit_no_training": _positive("running_var"),
    "native_batch_norm_backward": _batch_normalised,
    "cudnn_batch_norm": _positive("running_var"),
    "cudnn_batch_norm_backward": _computed(
        ("save_mean", "save_var", "reserveSpace"),
        _cudnn_statistics,
    ),
    "native_layer_norm_backward": _computed(
        ("mean", "rstd"),
        lambda call: _aten.native_layer_norm(
            *[call[name] for name in ("input", "normalized_shape", "weight", "bias")], 1e-5
        )[1:],
    ),
    "native_group_norm_backward": _computed(
        ("mean", "rstd"),
        lambda call: _aten.native_group_norm(
            call["input"],
            call["weight"],
            None,
            *[call[name] for name in ("N", "C", "HxW", "group")],
            1e-5,
        )[1:],
    ),
    "_softmax_backward_data": _softmax(torch.softmax),
    "_log_softmax_backward_data": _softmax(torch.log_softmax),
    **{
        f"{kernel}_backward": _attention(kernel, *options)
        for kernel, options in {
            "_scaled_dot_product_flash_attention_for_cpu": (),
            "_scaled_dot_product_flash_attention": (),
            "_scaled_dot_product_efficient_attention": _BIASED,
            "_scaled_dot_product_cudnn_attention": _BIASED,
        }.items()
    },
    **dict.fromkeys(("sqrt", "sqrt_", "rsqrt", "log", "log_"), _positive("self")),
}
