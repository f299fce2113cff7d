"""PyTorch's forward function of each op, from which everything else is derived.

An entry of :data:`FORWARD` takes a layer and options. It returns a function of the layer's tensors,
in the order of the roles that its forward pass reads. Gradients are autograd's, see
:mod:`pydlbench.backends.torch.layers.gradients`; a network calls its layers the same way.
"""

import functools
import operator
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch.nn.attention import SDPBackend, sdpa_kernel

from pydlbench.backends.frameworks.operands import Function, always
from pydlbench.backends.torch.layers.operator import TorchOperands
from pydlbench.errors import UnsupportedError
from pydlbench.ops.axis import extent
from pydlbench.ops.fused import NOTHING_FUSED, FusedOp, fused_ops, operand_roles
from pydlbench.ops.op import IN_PLACE
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import kept_elements


@dataclass(frozen=True, slots=True, kw_only=True)
class TorchForwardOptions:
    """Options of a forward function, besides the sizes of the layer.

    Attributes:
        training: whether normalisations use the minibatch's statistics.
        transposed: whether the weights of a product have the layout of ``torch.nn.Linear``.
        on_gpu: whether the function runs on a GPU, where optimizers update all tensors in one call.
        dtype: type of the result of an op without operands.
        device: device of the result of an op without operands.
        kernel: one of :func:`kernels_of` the case; None leaves the choice to PyTorch.
    """

    training: bool = False
    transposed: bool = True
    on_gpu: bool = False
    dtype: torch.dtype = torch.float32
    device: torch.device = field(default_factory=lambda: torch.device("cpu"))
    kernel: str | None = None


# -----------------------------------------------------------------------------
# Windows. PyTorch pads both ends of a side equally, and poolings by at most half a window. Other
# layers are first padded by a separate operator (with minus infinity for a maximum).


@dataclass(frozen=True, slots=True)
class Window:
    """The window of a convolution or pooling, one number for each side.

    Attributes:
        kernel: number of taps.
        stride: distance from one output to the next.
        padding: padding by the operator itself, at both ends of each side.
        dilation: distance from one tap to the next.
        pads: padding by a separate operator: before and after the innermost side, and so on
            outwards; empty if there is no such operator.
    """

    kernel: tuple[int, ...]
    stride: tuple[int, ...]
    padding: tuple[int, ...]
    dilation: tuple[int, ...]
    pads: tuple[int, ...]


def window_of(layer: Any) -> Window:
    """Return a layer's window."""
    symmetric = layer.pad_before == layer.pad_after
    if layer.op == "pool":
        sides = zip(layer.pad_before, layer.kernel, strict=True)
        symmetric = symmetric and all(2 * pad <= taps for pad, taps in sides)
    pairs = tuple(zip(layer.pad_before, layer.pad_after, strict=True))
    return Window(
        kernel=layer.kernel,
        stride=layer.stride,
        padding=layer.pad_before if symmetric else (0,) * layer.sides,
        dilation=layer.dilation,
        pads=() if symmetric else tuple(pad for pair in reversed(pairs) for pad in pair),
    )


def padding_note(layer: Any) -> tuple[str, ...]:
    """Return a note if a separate operator pads."""
    if layer.op not in ("conv", "pool") or not window_of(layer).pads:
        return ()
    names = (("front", "back"), ("top", "bottom"), ("left", "right"))[-layer.sides :]
    words = [
        f"{first} {before}, {last} {after}"
        for (first, last), before, after in zip(
            names, layer.pad_before, layer.pad_after, strict=True
        )
    ]
    return (f"torch has no such padding in the operator: {', '.join(words)}; padded by another",)


def _convolution(layer: Any, _options: TorchForwardOptions) -> Function:
    window = window_of(layer)
    convolve, pads = getattr(torch, f"conv{len(window.kernel)}d"), window.pads
    settings = window.stride, window.padding, window.dilation, layer.groups

    return lambda x, w, b=None: convolve(F.pad(x, pads) if pads else x, w, b, *settings)


def _transposed_convolution(layer: Any, _options: TorchForwardOptions) -> Function:
    convolve = getattr(torch, f"conv_transpose{layer.sides}d")
    further = []
    for size, out, kernel, stride, dilation, pad in zip(
        *(layer.in_size, layer.out_size, layer.kernel),
        *(layer.stride, layer.dilation, layer.pad_before),
        strict=True,
    ):
        smallest = (size - 1) * stride + extent(kernel, dilation) - 2 * pad
        if not 0 <= out - smallest < max(stride, dilation):
            raise UnsupportedError(
                f"torch pads both ends of an axis alike, and {layer.problem} does not"
            )
        further.append(out - smallest)
    settings = layer.stride, layer.pad_before, tuple(further), layer.groups, layer.dilation

    return lambda x, w, b=None: convolve(x, w, b, *settings)


def _pooling(layer: Any, _options: TorchForwardOptions) -> Function:
    window = window_of(layer)
    name, pads = f"{layer.mode}_pool{len(window.kernel)}d", window.pads
    settings: tuple[Any, ...] = window.kernel, window.stride, window.padding
    if layer.mode == "max":
        function, fill = getattr(torch, name), float("-inf")
        settings = (*settings, window.dilation)
    else:
        if pads and not layer.count_include_pad:
            raise UnsupportedError(
                "torch pads poolings alike on both ends, by half a window at the most, and has no "
                f"average that leaves out any other padding: {layer.problem}"
            )
        if max(window.dilation) > 1:
            raise UnsupportedError("torch has no averages over windows with holes")
        function, fill = getattr(F, name), 0.0
        settings = (*settings, False, layer.count_include_pad)

    return lambda x: function(F.pad(x, pads, value=fill) if pads else x, *settings)


#: PyTorch's operators of resizing by mode, for one side and more.
_RESIZES: Final = {
    "nearest": [f"_upsample_nearest_exact{sides}d" for sides in (1, 2, 3)],
    "linear": ["upsample_linear1d", "upsample_bilinear2d", "upsample_trilinear3d"],
    "cubic": ["", "upsample_bicubic2d", ""],
}


def _resizing(layer: Any, _options: TorchForwardOptions) -> Function:
    size, (mode, *aligned) = layer.out_size, layer.mode.split("-")
    if mode == "area":
        average = getattr(F, f"adaptive_avg_pool{layer.sides}d")
        return lambda x: average(x, size)
    name = _RESIZES[mode][layer.sides - 1]
    if not name:
        raise UnsupportedError("torch: cubic resampling has two sides; nearest: --shape with ih iw")
    function = getattr(torch.ops.aten, name).default
    settings = [] if mode == "nearest" else [bool(aligned)]
    scales = (None,) * layer.sides
    return lambda x: function(x, size, *settings, *scales)


def _unfolding(layer: Any, _options: TorchForwardOptions) -> Function:
    window = window_of(layer)
    if window.pads or layer.sides != 2:
        raise UnsupportedError("torch unfolds two sides, padded alike at both ends; nearest: ih iw")
    settings = window.kernel, window.dilation, window.padding, window.stride
    return lambda x: F.unfold(x, *settings)


# -----------------------------------------------------------------------------
# Products.


def _grouped_product(layer: Any, options: TorchForwardOptions) -> Function:
    """Return a product of groups of rows with a matrix each, as in a mixture of experts."""
    groups, rows = layer.src_batch[0], layer.m
    ends = torch.arange(1, groups + 1, dtype=torch.int32, device=options.device) * rows

    def forward(x: torch.Tensor, w: torch.Tensor) -> Any:
        w = w.mT if options.transposed else w
        return F.grouped_mm(x.flatten(0, 1), w, offs=ends).unflatten(0, (groups, rows))

    return forward


def _product(layer: Any, options: TorchForwardOptions) -> Function:
    if options.kernel == GROUPED:
        return _grouped_product(layer, options)
    transposed, dimensions = options.transposed, len(layer.src_batch)
    if transposed and not dimensions:
        return lambda x, w, b=None: F.linear(x, w, b)
    multiply: Function = torch.bmm if dimensions else torch.mm
    add_multiply: Function = torch.baddbmm if dimensions else torch.addmm
    if dimensions > 1 or layer.broadcast:  # only matmul supports these
        multiply = torch.matmul

        def add_multiply(b: torch.Tensor, x: torch.Tensor, w: torch.Tensor) -> Any:
            return torch.matmul(x, w) + b

    def forward(x: torch.Tensor, w: torch.Tensor, b: torch.Tensor | None = None) -> Any:
        w = w.mT if transposed else w
        return multiply(x, w) if b is None else add_multiply(b, x, w)

    return forward


_FUSED_BINARY: Final[Mapping[str, Function]] = {
    **{name: getattr(torch, name) for name in ("add", "sub", "mul", "div")},
    "max": torch.maximum,
    "min": torch.minimum,
}


def with_fused(forward: Function, spec: KernelSpec, options: TorchForwardOptions) -> Function:
    """Return a forward function with the operations that other kernels fuse with it.

    Args:
        forward: function of source, weights and perhaps a bias.
        spec: what is computed.
        options: options of the functions.

    Raises:
        UnsupportedError: PyTorch has no such operation for floats.
    """
    ops = fused_ops(spec.fuse)
    if spec.fuse in (NOTHING_FUSED, "bias"):
        return forward
    roles = operand_roles(spec.fuse)
    steps = [(op, _fused_step(op, options)) for op in ops if op.name != "bias"]

    def fused(x: torch.Tensor, w: torch.Tensor, *operands: torch.Tensor) -> Any:
        tensors = dict(zip(roles, operands, strict=True))
        y = forward(x, w, tensors["bias"]) if "bias" in tensors else forward(x, w)
        for op, step in steps:
            y = step(y, tensors.get(op.role or "dst"))
        return y

    return fused


def _fused_step(op: FusedOp, options: TorchForwardOptions) -> Function:
    """Return a post-op as a function of the result so far and the operand."""
    a, b = (*op.numbers, 0.0, 0.0)[:2]
    if op.name in _FUSED_BINARY:
        return _FUSED_BINARY[op.name]
    if op.name == "sum":
        return lambda y, old: torch.add(y, old, alpha=a)
    if op.name == "linear":
        return lambda y, _: y * a + b
    if op.name == "clip":
        return lambda y, _: torch.clamp(y, a, b)
    if op.name == "relu" and a:
        return lambda y, _: F.leaky_relu(y, a)
    if op.activation is None:
        raise UnsupportedError(f"torch: no {op.text} of floats; nearest: --precision u8s8f32")
    activation = FORWARD[op.activation](None, options)
    return lambda y, _: activation(y)


# -----------------------------------------------------------------------------
# Layers for which PyTorch has several kernels, and users choose.

#: PyTorch's kernels of attention on a GPU, by ``torch.nn.attention.SDPBackend``'s names.
ATTENTION_KERNELS: Final = ("FLASH_ATTENTION", "EFFICIENT_ATTENTION", "CUDNN_ATTENTION", "MATH")
#: One kernel for all products of a batch.
GROUPED: Final = "grouped"


def kernels_of(spec: KernelSpec) -> tuple[str | None, ...]:
    """Return the kernels with which a case is tried; None is PyTorch's choice."""
    layer = spec.layer
    if not spec.on_gpu:
        return (None,)
    if layer.kind == "attention":
        return ATTENTION_KERNELS
    is_batch = layer.op == "gemm" and len(layer.src_batch) == 1 and not layer.broadcast
    # The grouped product supports only bfloat16, and no bias.
    if is_batch and (spec.precision, spec.fuse) == ("bf16-tc", "none") and hasattr(F, "grouped_mm"):
        return (None, GROUPED)
    return (None,)


# -----------------------------------------------------------------------------
# Normalisations, which also return the statistics that they save, and the loss.


def _batch_normalisation(layer: Any, options: TorchForwardOptions) -> Function:
    # torch.batch_norm calls this, and returns only the images.
    normalize: Function = torch._batch_norm_impl_index  # noqa: SLF001
    settings = options.training, layer.momentum, layer.epsilon, True
    return lambda *tensors: normalize(*tensors, *settings)


def _group_normalisation(layer: Any, _options: TorchForwardOptions) -> Function:
    sizes = layer.batch, layer.channels, layer.height * layer.width, layer.groups
    return lambda x, w=None, b=None: torch.native_group_norm(x, w, b, *sizes, layer.epsilon)


def _local_response(layer: Any, options: TorchForwardOptions) -> Function:
    words = layer.local_size, layer.alpha, layer.beta, layer.k

    def forward(x: torch.Tensor) -> Any:
        if options.on_gpu or x.is_cuda or x.dtype == torch.float32:
            return F.local_response_norm(x, *words)
        # local_response_norm uses avg_pool3d, which has no bfloat16 or float16 kernel on CPUs.
        return F.local_response_norm(x.float(), *words).to(x.dtype)

    return forward


def _in_float32(loss: Function, **options: float) -> Function:
    """Return a loss of numbers that are converted, as in automatic mixed precision."""
    return lambda x, y: loss(x.float(), y.float(), **options)


def _loss(_layer: Any, _options: TorchForwardOptions) -> Function:
    # As in F.cross_entropy; half precisions are converted, as in automatic mixed precision.
    def forward(x: torch.Tensor, labels: torch.Tensor) -> Any:
        logarithms = torch.log_softmax(x.float(), 1)
        return F.nll_loss(logarithms, labels), logarithms

    return forward


# -----------------------------------------------------------------------------
# The steps of optimizers, by the calls of ``torch.optim.SGD``: on a CPU for each tensor, on a GPU
# the ``foreach`` ones. The rate is a last operand, see ``turns`` of ``operator.BoundFunction``.


def _descent(_layer: Any, options: TorchForwardOptions) -> Function:
    def step(w: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        if options.on_gpu:
            torch._foreach_add_([w], [g], alpha=-rate)
        else:
            w.add_(g, alpha=-rate)
        return w

    return step


def _momentum(layer: Any, options: TorchForwardOptions) -> Function:
    mu = layer.mu

    def step(w: torch.Tensor, v: torch.Tensor, g: torch.Tensor, rate: float) -> Any:
        if options.on_gpu:
            torch._foreach_mul_([v], mu)
            torch._foreach_add_([v], [g], alpha=1)
            torch._foreach_add_([w], [v], alpha=-rate)
        else:
            v.mul_(mu).add_(g, alpha=1)
            w.add_(v, alpha=-rate)
        return w, v

    return step


# -----------------------------------------------------------------------------
# Layers on tensors of any shape.

#: Functions of the operands, the number and ``out``, by op; only for ops without a PyTorch
#: function of the same name.
_PRELU_GRADIENT: Final = torch.ops.aten._prelu_kernel_backward  # noqa: SLF001 - no public name
_ELEMENTWISE: Final[Mapping[str, Function]] = {
    "power": torch.pow,
    "add": lambda x, y, a, **out: torch.add(x, y, alpha=a, **out),
    "max": lambda x, y, _, **out: torch.maximum(x, y, **out),
    "min": lambda x, y, _, **out: torch.minimum(x, y, **out),
    "leaky-relu": lambda x, y, _, **out: torch.where(x > 0, x, x * y, **out),
    "rint": lambda x, _, **out: torch.round(x, **out),
    "sum3": lambda x, y, z, _, **out: torch.add(x + y, z, **out),
    "add-square": lambda x, y, a, **out: torch.addcmul(x, y, y, value=a, **out),
    "addcmul": lambda x, y, z, a, **out: torch.addcmul(x, y, z, value=a, **out),
    "addcdiv": lambda x, y, z, a, **out: torch.addcdiv(x, y, z, value=a, **out),
    "select": lambda x, y, mask, _, **out: torch.where(mask, x, y, **out),
    "leaky-relu-gradient": lambda x, y, z, _, **out: torch.where(y > 0, x, x * z, **out),
    "prelu-gradient": lambda x, y, z, _: _PRELU_GRADIENT(x, y, z),
    "hardshrink": torch.ops.aten.hardshrink,
    "softshrink": torch.ops.aten.softshrink,
    "threshold": lambda x, y, a, **out: torch.where(x > a, x, y, **out),
    "xlogx": lambda x, _, **out: torch.xlogy(x, x, **out),
}


def _arithmetic(layer: Any, options: TorchForwardOptions) -> Function:
    name = layer.op.removesuffix(IN_PLACE)
    if layer.entry.whole:
        kind = layer.entry.whole.get("dst")
        result = getattr(torch, kind) if kind else options.dtype
        return lambda x: x.to(result)
    if name.startswith("cast"):
        if options.dtype == torch.float32:
            raise UnsupportedError("nothing is converted in fp32; nearest: --precision bf16")
        narrow = options.dtype if name == "cast-from-fp32" else torch.float32
        return lambda x: x.to(narrow)
    function: Function = _ELEMENTWISE.get(name) or getattr(torch, name)
    numbers = (layer.number,) if name in _ELEMENTWISE else ()
    if name != layer.op:
        return lambda *operands: function(*operands, *numbers, out=operands[0])
    return (lambda *operands: function(*operands, *numbers)) if numbers else function


def _reduction(layer: Any, _options: TorchForwardOptions) -> Function:
    sizes = zip(layer.src, layer.dst, strict=True)
    axes = [axis for axis, (before, after) in enumerate(sizes) if before != after]
    if layer.op.startswith("norm"):
        order = 1 if layer.op == "norm1" else 2
        return lambda x: torch.linalg.vector_norm(x, order, axes, True)
    if layer.op in ("var", "std"):
        deviation = getattr(torch, layer.op)
        return lambda x: deviation(x, axes, correction=0, keepdim=True)
    name = {"max": "amax", "min": "amin"}.get(layer.op, layer.op.removesuffix("-indices"))
    if name == "prod" and len(axes) > 1:
        raise UnsupportedError("torch multiplies along one dimension; nearest: 8x64:8x1")
    function = getattr(torch, name)
    # A list of one axis costs 8 us more than its number.
    where = axes[0] if len(axes) == 1 else axes
    return lambda x: function(x, where, True)


def _move(layer: Any, options: TorchForwardOptions) -> Function:
    if layer.op == "copy":
        return lambda x: x.clone()
    if layer.op == "fill":
        shape, dtype, device = layer.src, options.dtype, options.device
        return lambda: torch.zeros(shape, dtype=dtype, device=device)
    order, pairs = layer.order, [*zip(layer.src, layer.dst, strict=False)]
    moved: dict[str, Function] = {
        "flip": lambda x: x.flip(order),
        "roll": lambda x: x.roll([layer.src[axis] // 2 for axis in order], order),
        "tile": lambda x: x.repeat([to // size for size, to in pairs]),
        "reflect": lambda x: F.pad(x, _bordered(pairs), mode="reflect"),
        "replicate": lambda x: F.pad(x, _bordered(pairs), mode="replicate"),
        "tril": torch.tril,
        "triu": torch.triu,
    }
    return moved.get(layer.op, lambda x: x.permute(order).contiguous())


def _bordered(pairs: Sequence[tuple[int, int]]) -> list[int]:
    """Return PyTorch's pads, innermost first, for the sizes before and after.

    Raises:
        UnsupportedError: PyTorch pads so only the last dimensions of a tensor with two others.
    """
    pads = [((to - size) // 2, (to - size) - (to - size) // 2) for size, to in pairs]
    if len(pairs) not in (3, 4, 5) or any(map(any, pads[:2])):
        raise UnsupportedError("torch pads so only sides of images; nearest: 1x3x8x8:1x3x10x10")
    return [pad for pair in reversed(pads[2:]) for pad in pair]


def _gather(layer: Any, _options: TorchForwardOptions) -> Function:
    if layer.op == "bags":
        return lambda x, indices: F.embedding_bag(indices, x, mode="sum")
    single, count = layer.tables == layer.index_width == 1, layer.rows
    sizes = layer.tables, layer.count, layer.width
    shared = layer.index_tables == layer.index_width == 1
    axis = 0 if single else 1

    def places(indices: torch.Tensor) -> torch.Tensor:
        return indices.reshape(-1) if shared else indices.expand(sizes)

    if layer.op == "rows":
        if single:
            rows: Function = torch.ops.aten.embedding.default
            return rows
        take: Function = torch.index_select if shared else torch.gather
        return lambda x, indices: take(x, 1, places(indices))
    if layer.op == "add-rows":
        if single:
            add_rows = torch.ops.aten.embedding_dense_backward.default
            return lambda gradient, indices: add_rows(gradient, indices, count, -1, False)
        tables = layer.tables, layer.rows, layer.width
        add: Function = torch.index_add if shared else torch.scatter_add
        return lambda x, indices: add(x.new_zeros(tables), 1, places(indices), x)
    adds, name = layer.op.startswith("add"), "index" if shared else "scatter"
    word = {"index": "index_copy_", "scatter": "scatter_"}[name] if not adds else f"{name}_add_"
    return lambda table, x, indices: getattr(table, word)(axis, places(indices), x)


def _transform(layer: Any, options: TorchForwardOptions) -> Function:
    if options.dtype != torch.float32:
        raise UnsupportedError("torch transforms float32 only; nearest: --precision fp32")
    axes, sizes = tuple(range(-layer.over, 0)), layer.src[-layer.over :]
    if layer.op == "real":
        return lambda x: torch.view_as_real(torch.fft.rfftn(x, dim=axes))
    if layer.op == "complex":
        return lambda x: torch.view_as_real(torch.fft.fftn(torch.view_as_complex(x), dim=axes))
    return lambda x: torch.fft.irfftn(torch.view_as_complex(x), sizes, axes)


def _distances(_layer: Any, options: TorchForwardOptions) -> Function:
    if options.dtype != torch.float32:
        raise UnsupportedError("torch has distances of float32 only; nearest: --precision fp32")
    distances: Function = torch.cdist
    return distances


# -----------------------------------------------------------------------------
# The table.


def _attention(layer: Any, options: TorchForwardOptions) -> Function:
    causal, shared = bool(layer.causal), layer.heads != layer.kv_heads

    def forward(query: torch.Tensor, key: torch.Tensor, value: torch.Tensor) -> Any:
        return F.scaled_dot_product_attention(
            query, key, value, is_causal=causal, enable_gqa=shared
        )

    if options.kernel is None:
        return forward
    allowed = SDPBackend.__members__[options.kernel]

    def by_kernel(*tensors: torch.Tensor) -> Any:
        with warnings.catch_warnings(record=True) as reasons:
            warnings.simplefilter("always")
            try:
                with sdpa_kernel(allowed):
                    return forward(*tensors)
            except RuntimeError as error:
                why = reasons[-1].message if reasons else error
                sentence = " ".join(str(why).split())[:200]
                raise UnsupportedError(f"{options.kernel}: {sentence}") from error

    return by_kernel


# As in models of language, which have no operator for these.
def _turned(x: torch.Tensor, cosines: torch.Tensor, sines: torch.Tensor) -> torch.Tensor:
    first, second = x.chunk(2, -1)
    return x * cosines + torch.cat((-second, first), -1) * sines


def _sorted(layer: Any, _options: TorchForwardOptions) -> Function:
    if layer.k:
        return lambda x: tuple(torch.topk(x, layer.k, layer.axis))
    return lambda x: tuple(torch.sort(x, layer.axis, descending=True))


def _added_and_normalised(layer: Any, _options: TorchForwardOptions) -> Function:
    def forward(x: torch.Tensor, y: torch.Tensor, w: torch.Tensor) -> Any:
        total = x + y
        return F.rms_norm(total, (layer.width,), w, layer.epsilon), total

    return forward


#: Forward functions, by :func:`~pydlbench.backends.frameworks.backend.op_of` a layer.
FORWARD: Final[Mapping[str, Callable[[Any, TorchForwardOptions], Function]]] = {
    "conv": _convolution,
    "deconv": _transposed_convolution,
    "gemm": _product,
    "attention": _attention,
    "pool": _pooling,
    "resize": _resizing,
    "unfold": _unfolding,
    "fft": _transform,
    "distance": _distances,
    "grid-sample": always(functools.partial(F.grid_sample, align_corners=False)),
    "elementwise": _arithmetic,
    "reduction": _reduction,
    "move": _move,
    "gather": _gather,
    "bias": always(operator.add),
    "relu": always(torch.relu),
    "relu6": always(F.relu6),
    "hardswish": always(F.hardswish),
    "hardsigmoid": always(F.hardsigmoid),
    "sigmoid": always(torch.sigmoid),
    "tanh": always(torch.tanh),
    "softplus": always(F.softplus),
    "logsigmoid": always(F.logsigmoid),
    "elu": lambda layer, _: lambda x: torch.ops.aten.elu.default(x, layer.alpha, layer.factor),
    "silu": always(F.silu),
    "mish": always(F.mish),
    "gelu": always(F.gelu),
    "gelu-tanh": always(functools.partial(F.gelu, approximate="tanh")),
    "hardtanh": lambda layer, _: lambda x: F.hardtanh(x, layer.low, layer.high),
    "prelu": always(F.prelu),
    "scale": always(operator.mul),
    "add": always(operator.add),
    "glu": always(functools.partial(F.glu, dim=-1)),
    "sort": _sorted,
    "cummax": lambda layer, _: lambda x: tuple(torch.cummax(x, layer.axis)),
    "cummin": lambda layer, _: lambda x: tuple(torch.cummin(x, layer.axis)),
    "swiglu": always(lambda gate, x: F.silu(gate) * x),
    "rope": always(_turned),
    "add-rmsnorm": _added_and_normalised,
    "concat": always(lambda *images: torch.cat(images, 1)),
    "dropout": lambda layer, _: lambda x: torch.dropout(x, 1 - layer.keep, True),
    "lrn": _local_response,
    "batchnorm": _batch_normalisation,
    "layernorm": lambda layer, _options: (
        lambda x, w, b: torch.native_layer_norm(x, [layer.width], w, b, layer.epsilon)
    ),
    "groupnorm": _group_normalisation,
    "rmsnorm": lambda layer, _: lambda x, w: F.rms_norm(x, (layer.width,), w, layer.epsilon),
    "softmax": lambda layer, _: lambda x: torch.softmax(x, layer.axis),
    "log-softmax": lambda layer, _: lambda x: torch.log_softmax(x, layer.axis),
    "softmax-xent": _loss,
    "mse": always(_in_float32(F.mse_loss)),
    "l1": always(_in_float32(F.l1_loss)),
    "smooth-l1": lambda layer, _: _in_float32(F.smooth_l1_loss, beta=layer.beta),
    "bce-logits": always(_in_float32(F.binary_cross_entropy_with_logits)),
    "nll": always(lambda x, labels: F.nll_loss(x.float(), labels)),
    "l2": always(lambda w: w.float().pow(2).sum() / 2),
    "sgd": _descent,
    "momentum": _momentum,
    "cumsum": lambda layer, _: lambda x: torch.cumsum(x, layer.axis),
    "cumprod": lambda layer, _: lambda x: torch.cumprod(x, layer.axis),
    "relu-in-place": always(torch.relu_),
    "relu6-in-place": always(functools.partial(F.relu6, inplace=True)),
    "hardswish-in-place": always(functools.partial(F.hardswish, inplace=True)),
    "hardsigmoid-in-place": always(functools.partial(F.hardsigmoid, inplace=True)),
    "silu-in-place": always(functools.partial(F.silu, inplace=True)),
    "add-in-place": always(operator.iadd),
}

#: Gradients that autograd does not compute: optimizers add the decay of weights to their gradient.
GRADIENT: Final[Mapping[str, Callable[[Any], Function]]] = {
    "l2": lambda layer: lambda w, g: g.add(w, alpha=layer.decay),
}


# -----------------------------------------------------------------------------
# Tensors that a gradient reads of its forward pass and that are also inputs, because the reference
# computes with them; by op, in the order in which the calls read them.


def _statistics(operands: TorchOperands) -> tuple[torch.Tensor, ...]:
    variance = operands.tensor("variance").double() + operands.layer.epsilon
    return operands.tensor("mean"), variance.rsqrt()


def _scaled_mask(operands: TorchOperands) -> tuple[torch.Tensor, ...]:
    layer = operands.layer
    shape = layer.shapes()["src"]
    kept = kept_elements(shape, tuple(slice(0, size) for size in shape), layer.keep)
    return (operands.place.tensor(kept.astype(np.float32)) / layer.keep,)


#: Tensors of the forward pass that a gradient reads and that are also inputs.
SAVED: Final[Mapping[str, Callable[[TorchOperands], tuple[torch.Tensor, ...]]]] = {
    "softmax": lambda operands: (operands.tensor("result"),),
    "log-softmax": lambda operands: (operands.tensor("result"),),
    "softmax-xent": lambda operands: (operands.tensor("dst").float().log(),),
    "dropout": _scaled_mask,
    "batchnorm": _statistics,
    "layernorm": _statistics,
    "groupnorm": lambda operands: tuple(each.flatten(1) for each in _statistics(operands)),
}


# -----------------------------------------------------------------------------
# Results by role, if a function returns others than the layer writes, or more.


def _normalised(layer: Any, results: Any) -> Mapping[str, torch.Tensor]:
    images, mean, inverse, *_ = results
    by_role = {"dst": images}
    # The compiler returns statistics of half-precision images in their type: rounded, not wrong.
    if inverse.numel() and inverse.dtype == torch.float32:
        by_role |= {"mean": mean, "variance": inverse.double().pow(-2) - layer.epsilon}
    return by_role


#: Results by role, from the layer and the function's results.
RESULTS: Final[Mapping[str, Callable[[Any, Any], Mapping[str, torch.Tensor]]]] = {
    "batchnorm": _normalised,
    "layernorm": _normalised,
    "groupnorm": _normalised,
    "softmax-xent": lambda _, results: {"dst": results[1].exp(), "loss": results[0]},
    "add-rmsnorm": lambda _, results: dict(zip(("dst", "result"), results, strict=True)),
    **dict.fromkeys(
        ("sort", "cummax", "cummin"),
        lambda _, results: dict(zip(("dst", "indices"), results, strict=True)),
    ),
    "elementwise": lambda layer, results: (
        dict(zip(layer.writes("forward"), results, strict=True))
        if isinstance(results, tuple)
        else {}
    ),
}
