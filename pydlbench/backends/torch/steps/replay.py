"""Calls of PyTorch's operators, each alone, on a step's operands or on ones that are made up.

Some calls take as long as their values say: a maximum pooling that compares number by number was
3/4 as fast on made-up ones as in GoogLeNet, a masked softmax twice as fast. So what is compared
with a step has the operands of it, copied in a step that is run for that
(:class:`StepOperands`). A row that stands for the same call of any model has made-up ones.

Of these, floating-point operands are uniform in [-1, 1), seeded. What must fit together does:
indices lie in the range that they index, and what a backward pass reads of its forward pass
(indices of a pooling, statistics of a normalisation, a softmax) is made by running that forward
pass. Other integers are zeros, which are valid wherever there is an element.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any, Final, TypeAlias

import torch
from torch.utils._python_dispatch import TorchDispatchMode

from pydlbench.backends.steps.repeated import made_ready
from pydlbench.backends.torch.steps.replayed_step import below_autograd
from pydlbench.backends.torch.steps.signature import (
    ALIGNMENT,
    first_byte,
    parse,
    signature,
    strided,
)
from pydlbench.calls.seen.aten import leaves, map_leaves
from pydlbench.calls.value import Value
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import grouped

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    from pydlbench.backends.torch.steps.signature import ParsedCall

_aten: Any = torch.ops.aten


class CallOperator:
    """A call with its operands; see ``backends.steps.timed_calls.TimedOperator``.

    What it overwrites is restored and its first tensor read before the clock starts, as if the call
    before had just written it.

    Args:
        parsed: the call.
        device: that it runs on.
        seed: of operands that are made up.
        wait: returns when the device has done everything that was called.
        operands: arguments by position and by name; None has them made up.

    Raises:
        UnsupportedError: its operands cannot be made up.
    """

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
            (each, each.clone(), (each.shape, each.stride(), each.storage_offset()))
            for each in written
        ]
        tensors = leaves([self.arguments, self.keywords], torch.Tensor)
        floats = [each for each in tensors if each.dtype.is_floating_point]
        self._first = floats[0] if floats and floats[0].numel() else None

    def call(self) -> Any:
        """Make the call."""
        return self.function(*self.arguments, **self.keywords)

    def settle(self) -> None:
        """Restore what it overwrites, the shape that it turns too, and read its first tensor."""
        for each, values, place in self._restored:
            each.as_strided_(*place).copy_(values)
        if self._first is not None:
            self._first.sum()

    def run(self) -> float:
        """Make it once and return the seconds, :meth:`settle` before."""
        with below_autograd():
            self.settle()
            self._wait()
            start = time.perf_counter()
            results = self.call()
            self._wait()
            seconds = time.perf_counter() - start
            del results
        return seconds


def make_ready(
    signatures: Iterable[str],
    device: str,
    seed: int = 0,
    wait: Callable[[], None] = lambda: None,
    operands: Mapping[str, Operands] | None = None,
) -> tuple[dict[str, CallOperator], dict[str, str]]:
    """Make calls ready and run each once.

    Args:
        signatures: of the calls.
        device: that they run on.
        seed: of operands that are made up.
        wait: returns when the device has done everything that was called.
        operands: by signature; those of others are made up.

    Returns:
        The calls that ran, and the reasons of those that did not, by signature.
    """

    def make(text: str) -> CallOperator:
        made = CallOperator(parse(text), device, seed, wait, (operands or {}).get(text))
        made.run()
        made.settle()  # as before each later run
        return made

    return made_ready(signatures, make)


# -----------------------------------------------------------------------------
# Operands of a step.

#: Arguments of a call, by position and by name.
Operands: TypeAlias = tuple[tuple[Any, ...], dict[str, Any]]

# Autograd adds gradients in place, but not beside a mode of the dispatcher.
_SUM, _SUM_IN_PLACE = "aten.add.Tensor(", "aten.add_.Tensor("
_BYTES: Final = 16  # of the largest number


class StepOperands(TorchDispatchMode):  # type: ignore[misc]  # an unknown class to mypy
    """While it is entered, copies the operands of the first call of each signature.

    Args:
        device: that the step runs on.
        signatures: of the calls.

    Attributes:
        copied: arguments by signature, as they were before the call.
    """

    def __init__(self, device: str, signatures: Iterable[str]) -> None:
        super().__init__()
        self._device = device
        self._wanted = set(signatures)
        self.copied: dict[str, Operands] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Return False; see ``recording.DispatchRecorder``."""
        return False

    def __torch_dispatch__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        """Copy what is wanted, and make the call."""
        del types
        kwargs = kwargs or {}
        names = {signature(func, args, kwargs, self._device)}
        if torch._C._current_graph_task_id() != -1:
            names |= {name.replace(_SUM, _SUM_IN_PLACE, 1) for name in names}
        names &= self._wanted - self.copied.keys()
        if names and all(map(_is_plain, leaves([args, kwargs], torch.Tensor))):
            self.copied |= {name: _copies(args, kwargs) for name in names}
        return func(*args, **kwargs)


def _is_plain(tensor: torch.Tensor) -> bool:
    """Whether a tensor is what its memory and strides say."""
    return strided(tensor) and not (tensor.is_conj() or tensor.is_neg() or tensor.is_quantized)


def _copies(arguments: tuple[Any, ...], keywords: dict[str, Any]) -> Operands:
    """Return arguments whose tensors are copies, which share memory where the tensors do."""
    tensors = list(leaves([arguments, keywords], torch.Tensor))
    memory: dict[int, tuple[int, torch.Tensor]] = {}
    for storage, sharing in grouped(
        tensors, lambda tensor: tensor.untyped_storage()._cdata
    ).items():
        begin, end = min(map(first_byte, sharing)), max(map(_end, sharing))
        begin -= begin % ALIGNMENT
        whole = sharing[0].untyped_storage()
        size = -(-(end - begin) // _BYTES) * _BYTES
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
        return block.view(value.dtype).as_strided(value.shape, value.stride(), start)

    return map_leaves(arguments, copy), map_leaves(keywords, copy)


def _end(tensor: torch.Tensor) -> int:
    """Return the byte of its memory behind a tensor's last one."""
    if not tensor.numel():
        return first_byte(tensor)
    steps = zip(tensor.shape, tensor.stride(), strict=True)
    last: int = sum((size - 1) * stride for size, stride in steps)
    return first_byte(tensor) + (last + 1) * int(tensor.element_size())


# -----------------------------------------------------------------------------
# Operands that are made up: memory, and values.


def _made_up(parsed: ParsedCall, device: str, seed: int) -> Operands:
    """Return the arguments of a call, with tensors for the values that stand for them."""
    made = _tensors(list(leaves([parsed.arguments, parsed.keywords], Value)), device, seed)

    def put(value: Any) -> Any:
        return made[value.number] if isinstance(value, Value) else value

    arguments, keywords = map_leaves(parsed.arguments, put), map_leaves(parsed.keywords, put)
    with torch.no_grad():
        _fit(parsed.function, arguments, keywords)
    return arguments, keywords


def _tensors(texts: Sequence[Value], device: str, seed: int) -> list[torch.Tensor]:
    """Return the tensors of a call, in the order of their numbers."""
    stream = torch.Generator().manual_seed(seed)
    memory: dict[int, torch.Tensor] = {}
    tensors = []
    for each in texts:
        if each.storage not in memory:
            sharing = [other for other in texts if other.storage == each.storage]
            size = max(other.end for other in sharing)
            memory[each.storage] = _filled(each, size, each.device or device, stream)
        block = memory[each.storage].view(getattr(torch, each.dtype))
        start, rest = divmod(each.offset, each.itemsize)
        if rest:
            raise UnsupportedError(f"a tensor of {each.dtype} at byte {each.offset} of its memory")
        tensors.append(block.as_strided(each.shape, each.strides, start))
    return tensors


def _filled(text: Value, size: int, device: str, stream: torch.Generator) -> torch.Tensor:
    """Return memory of at least so many bytes, filled with values of a tensor's type."""
    dtype: torch.dtype = getattr(torch, text.dtype)
    count = max(1, -(-size // dtype.itemsize))
    if dtype.is_floating_point:
        values = torch.rand(count, generator=stream).mul_(2).sub_(1).to(dtype)
    elif dtype.is_complex:
        values = torch.view_as_complex(torch.rand(count, 2, generator=stream)).to(dtype)
    elif dtype == torch.bool:
        values = torch.rand(count, generator=stream) < 0.5
    else:
        values = torch.zeros(count, dtype=dtype)
    return values.to(device)


def _written(function: Any, arguments: Any, keywords: dict[str, Any]) -> list[torch.Tensor]:
    """Return the tensors that an operator says it writes into."""
    schema = function._schema.arguments
    bound = _bound(function, arguments, keywords)
    names = [
        each.name for each in schema if each.alias_info is not None and each.alias_info.is_write
    ]
    return list(leaves([bound.get(name) for name in names], torch.Tensor))


def _bound(function: Any, arguments: Any, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return all arguments by the names that the operator's schema gives them."""
    names = [each.name for each in function._schema.arguments]
    return {**dict(zip(names, arguments, strict=False)), **keywords}


# -----------------------------------------------------------------------------
# Values that must fit together, by operator.


def _fit(function: Any, arguments: Any, keywords: dict[str, Any]) -> None:
    """Give operands the values without which an operator would fail, or compute another thing."""
    rule = _RULES.get(str(function.overloadpacket).removeprefix("aten."))
    if rule is not None:
        rule(_bound(function, arguments, keywords))


def _below(indices: torch.Tensor | None, limit: int) -> None:
    """Fill with random indices from 0 on, each below a limit."""
    if indices is None or indices.dtype == torch.bool:
        return
    stream = torch.Generator().manual_seed(limit)
    for dim, stride in enumerate(indices.stride()):
        if stride == 0:  # repeated: its memory has room for one
            indices = indices[(slice(None),) * dim + (slice(1),)]
    indices.copy_(torch.randint(0, max(1, limit), indices.shape, generator=stream))


def _labels(call: dict[str, Any]) -> None:
    """Labels of a negative log-likelihood lie below the number of classes."""
    scores = call["self"]
    _below(call["target"], scores.shape[1] if scores.ndim > 1 else scores.shape[0])


def _labels_backward(call: dict[str, Any]) -> None:
    _labels(call)
    call["total_weight"].fill_(float(call["target"].numel()))


def _along(call: dict[str, Any]) -> None:
    """Indices lie within the dimension that they index."""
    shape = call["self"].shape
    _below(call["index"], shape[call["dim"]] if shape else 1)


def _by_each(call: dict[str, Any]) -> None:
    """Index tensors lie within a dimension each."""
    for index, size in zip(call["indices"], call["self"].shape, strict=False):
        _below(index, size)


def _positive(*names: str) -> Callable[[dict[str, Any]], None]:
    """Return what makes operands positive."""

    def rule(call: dict[str, Any]) -> None:
        for each in leaves([call.get(name) for name in names], torch.Tensor):
            each.abs_().add_(0.1)

    return rule


def _pooled(call: dict[str, Any]) -> None:
    """The indices of a maximum pooling are those of its forward pass."""
    window = [call[name] for name in ("kernel_size", "stride", "padding", "dilation", "ceil_mode")]
    call["indices"].copy_(_aten.max_pool2d_with_indices(call["self"], *window)[1])


def _pooled_to_size(call: dict[str, Any]) -> None:
    size = call["grad_output"].shape[-2:]
    call["indices"].copy_(_aten.adaptive_max_pool2d(call["self"], size)[1])


def _batch_normalised(call: dict[str, Any]) -> None:
    """Statistics are those of the batch; without training nothing reads them."""
    _positive("running_var")(call)
    if call["train"]:
        weight = call["weight"]
        _, mean, scale = _aten.native_batch_norm(
            call["input"], weight, None, None, None, True, 0.1, call["eps"]
        )
        call["save_mean"].copy_(mean)
        call["save_invstd"].copy_(scale)


def _batch_normalised_by_cudnn(call: dict[str, Any]) -> None:
    """Statistics are those of the batch, and cuDNN has left a mask in reserved memory."""
    weight = call["weight"]
    operands = (call["input"], weight, weight.new_zeros(weight.shape), None, None)
    made = _aten.cudnn_batch_norm(*operands, True, 0.1, call["epsilon"])
    for name, value in zip(("save_mean", "save_var", "reserveSpace"), made[1:], strict=True):
        call[name].copy_(value)


def _layer_normalised(call: dict[str, Any]) -> None:
    _, mean, scale = _aten.native_layer_norm(
        call["input"], call["normalized_shape"], call["weight"], call["bias"], 1e-5
    )
    call["mean"].copy_(mean)
    call["rstd"].copy_(scale)


def _group_normalised(call: dict[str, Any]) -> None:
    sizes = [call[name] for name in ("N", "C", "HxW", "group")]
    _, mean, scale = _aten.native_group_norm(call["input"], call["weight"], None, *sizes, 1e-5)
    call["mean"].copy_(mean)
    call["rstd"].copy_(scale)


def _softmax(forward: Callable[..., torch.Tensor]) -> Callable[[dict[str, Any]], None]:
    """Return what makes an output one of a softmax."""

    def rule(call: dict[str, Any]) -> None:
        call["output"].copy_(forward(call["output"].float(), call["dim"]))

    return rule


def _attended(kernel: str, *between: str) -> Callable[[dict[str, Any]], None]:
    """Return what makes output and sums of an attention those of its forward pass.

    Args:
        kernel: the forward pass's.
        between: its operands between the three tensors and the rate of dropout.
    """

    def rule(call: dict[str, Any]) -> None:
        operands = [call[name] for name in ("query", "key", "value")]
        operands += [call.get(name, True) for name in between]
        more = {name: call[name] for name in ("attn_mask", "scale") if name in call}
        forward = getattr(_aten, kernel)
        output, sums = forward(*operands, call["dropout_p"], call["is_causal"], **more)[:2]
        call["out"].copy_(output)
        call["logsumexp"].copy_(sums)

    return rule


# What some are given besides: a bias, or None, and whether sums are wanted, which they are here.
_BIASED: Final = ("attn_bias", "compute_log_sumexp")


_RULES: Final[dict[str, Callable[[dict[str, Any]], None]]] = {
    "nll_loss_forward": _labels,
    "nll_loss_backward": _labels_backward,
    "nll_loss2d_forward": _labels,
    "nll_loss2d_backward": _labels_backward,
    "embedding": lambda call: _below(call["indices"], call["weight"].shape[0]),
    "embedding_dense_backward": lambda call: _below(call["indices"], call["num_weights"]),
    "gather": _along,
    "scatter": _along,
    "scatter_": _along,
    "scatter_add": _along,
    "scatter_add_": _along,
    "index_select": _along,
    "index_add": _along,
    "index_add_": _along,
    "index": _by_each,
    "index_put": _by_each,
    "index_put_": _by_each,
    "_index_put_impl_": _by_each,
    "max_pool2d_with_indices_backward": _pooled,
    "adaptive_max_pool2d_backward": _pooled_to_size,
    "native_batch_norm": _positive("running_var"),
    "_native_batch_norm_legit": _positive("running_var"),
    "_native_batch_norm_legit_no_training": _positive("running_var"),
    "native_batch_norm_backward": _batch_normalised,
    "cudnn_batch_norm": _positive("running_var"),
    "cudnn_batch_norm_backward": _batch_normalised_by_cudnn,
    "native_layer_norm_backward": _layer_normalised,
    "native_group_norm_backward": _group_normalised,
    "_softmax_backward_data": _softmax(torch.softmax),
    "_log_softmax_backward_data": _softmax(torch.log_softmax),
    **{
        f"{kernel}_backward": _attended(kernel, *between)
        for kernel, between in {
            "_scaled_dot_product_flash_attention_for_cpu": (),
            "_scaled_dot_product_flash_attention": (),
            "_scaled_dot_product_efficient_attention": _BIASED,
            "_scaled_dot_product_cudnn_attention": _BIASED,
        }.items()
    },
    "sqrt": _positive("self"),
    "sqrt_": _positive("self"),
    "rsqrt": _positive("self"),
    "log": _positive("self"),
    "log_": _positive("self"),
}
