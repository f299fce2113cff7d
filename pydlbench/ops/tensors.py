"""Ops on dense tensors of any shape: arithmetic, reductions, copies, rows of a table.

Each op reads some tensors and writes one, ``dst``; its gradients are other layers. No dimension is
the batch. A descriptor is the kind, the op and the shapes of the operands:
``elementwise:mul:8x128x768:1x1x768``, optionally with ``by`` and a number.
"""

import functools
import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any, Final

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.ops.op import (
    MASK,
    NO_CUDA_KERNEL,
    WHOLE_TYPES,
    Field,
    Layer,
    Op,
    Operands,
    Pass,
    Shape,
    Sizes,
    in_place_op,
)


def _operands(minimum: int, maximum: int, *names: str) -> Operands:
    """Return operands whose shapes are fields."""
    return Operands(
        minimum=minimum,
        maximum=maximum,
        read=lambda _, tensors: {
            name: tuple(size for size, _ in tensor)
            for name, tensor in zip(names, tensors, strict=False)
        },
        write=lambda s: [shape for name in names if (shape := getattr(s, name))],
    )


def _tensor_op(kind: str, name: str, reads: tuple[str, ...], **options: Any) -> Op:
    """Return an op with a forward pass from some roles to ``dst``, or to other ``writes``."""
    flops, writes = options.pop("flops", 0), options.pop("writes", ("dst",))
    touched, written = options.pop("touched", None), options.pop("written", None)
    return Op(
        name=name,
        key=f"{kind}:{name}",
        kind=kind,
        prefix=f"{kind}:{name}:",
        passes={
            "forward": Pass(
                reads=reads, writes=writes, flops=flops, touched=touched, written=written
            )
        },
        batch=None,
        memory_bound=True,
        **options,
    )


def _named(ops: tuple[Op, ...], name: str) -> Op:
    return next(op for op in ops if op.name == name)


# -----------------------------------------------------------------------------
# ``dst = op(x, y, z)`` for each element; ``a`` is the layer's number. Operands are broadcast along
# dimensions of size one. A number of a program, such as the 2 of ``2 x``, is an operand of one
# element. The result overwrites ``x`` in ops with that suffix; ``x`` then has the result's shape.

_ROLES: Final = ("src", "src2", "src3")
#: The largest number of an op that compares elements, which are in [-1, 1), with its number: with
#: one beyond, the result would be the same for all of them, and would not show that the op ran.
_MAX_THRESHOLD: Final = 0.9


def _result_shape(values: Mapping[str, Any]) -> Shape:
    """Return the shape of the result for the fields of a layer."""
    shapes = [shape for role in _ROLES if (shape := values[role])]
    return tuple(map(max, zip(*shapes, strict=True)))


def _elementwise(
    name: str,
    operands: int,
    flops: int | Callable[[Layer], int],
    reference: Callable[..., Any],
    *,
    positive: str = "",
    numbered: bool = False,
    least: float | None = None,
    masked: str = "",
    results: tuple[str, ...] = ("dst",),
    no_gpu: str = "",
    **options: Any,
) -> Op:
    """Return an op.

    Args:
        name: Name of the op.
        operands: Number of operands.
        flops: FLOPs per element of the result.
        reference: Formula of the result; its arguments are numpy, the operands and the number.
        positive: Role whose elements must be above zero.
        numbered: Whether the op has a number.
        least: The smallest number of an op that compares elements with its number.
        masked: ``reads`` if the last operand is a mask, ``writes`` if the result is one.
        results: Roles of the results.
        no_gpu: Why there is no native row on a GPU.
        options: Further attributes of the op.
    """
    roles, results = _ROLES[:operands], (MASK,) if masked == "writes" else results
    reads = (*roles[:-1], MASK) if masked == "reads" else roles

    def settle(values: dict[str, Any]) -> None:
        shapes = [shape for role in _ROLES if (shape := values[role])]
        if len(shapes) != operands or not values["src"]:
            raise UsageError(f"{name}: {len(shapes)} operands; nearest: {operands}")
        if values["number"] != 1 and not numbered:
            raise UsageError(f"number={values['number']}: {name} has none; nearest: 1")
        if least is not None and not least <= values["number"] <= _MAX_THRESHOLD:
            reason = f"elements are between -1 and 1; nearest: {least:g} to {_MAX_THRESHOLD:g}"
            raise UsageError(f"number={values['number']}: {reason}")
        # As in NumPy, missing leading sides are 1; where these do not fit, trailing ones as in
        # benchdnn.
        rank = max(map(len, shapes))
        ones = [(1,) * (rank - len(shape)) for shape in shapes]
        leading = [one + shape for one, shape in zip(ones, shapes, strict=True)]
        trailing = [shape + one for one, shape in zip(ones, shapes, strict=True)]
        fitting = next(filter(_broadcast, (leading, trailing)), None)
        if fitting is None:
            role, shape = roles[-1], shapes[-1]
            longest = max(shapes, key=len)
            fits = "x".join(map(str, longest))
            raise UsageError(f"{role}={shape}: does not fit the others; nearest: {fits}")
        values.update(zip(roles, fitting, strict=True))

    return _tensor_op(
        "elementwise",
        name,
        reads,
        fields=(
            *(Field(name=role, type="shape", default=()) for role in _ROLES),
            Field(
                name="number",
                spelling="by",
                type="signed",
                default=1.0 if least is None else 0.5,
            ),
        ),
        operands=_operands(1, len(_ROLES), *_ROLES),
        settle=settle,
        shapes=lambda s: (
            {role: getattr(s, name) for role, name in zip(reads, roles, strict=True)}
            | dict.fromkeys(results, _result_shape(s.fields))
        ),
        flops=flops,
        writes=results,
        reference=lambda np, s, t: reference(
            np, *(getattr(t, role) for role in reads), *((s.number,) if numbered else ())
        ),
        no_gpu=NO_CUDA_KERNEL if masked else no_gpu,
        positive=frozenset((positive,) if positive else ()),
        # Kernels loop over the last dimension: a longer one is faster.
        native=lambda s: {
            "op": name,
            **merged_elementwise(
                name, *(getattr(s, role) for role in roles), number=s.number
            ).fields,
        },
        **options,
    )


def _cast(name: str, wide: str) -> Op:
    """Return the op of a conversion between float32, the type of one role, and the precision."""
    exact = frozenset((wide,))
    return _elementwise(name, 1, 0, lambda _, x: x * 1.0, no_gpu=NO_CUDA_KERNEL, exact=exact)


def _whole_casts(kind: str) -> tuple[Op, Op]:
    """Return the ops of conversions from a type of whole numbers to the precision, and back."""

    def function(np: Any, x: Any) -> Any:
        return np.where(x > 0, 1.0, 0.0) if kind == "bool" else np.floor(x)

    return (
        _elementwise(
            f"cast-from-{kind}",
            1,
            0,
            lambda _, x: x * 1.0,
            no_gpu=NO_CUDA_KERNEL,
            whole={"src": kind},
        ),
        _elementwise(f"cast-to-{kind}", 1, 0, function, no_gpu=NO_CUDA_KERNEL, whole={"dst": kind}),
    )


def _function(name: str) -> Op:
    """Return the op of NumPy's function of one tensor with this name."""
    return _elementwise(name, 1, 1, lambda np, x: getattr(np, name)(x), no_gpu=NO_CUDA_KERNEL)


def _comparison(name: str, holds: Callable[[Any, Any], Any]) -> Op:
    return _elementwise(
        name, 2, 1, lambda np, x, y: {MASK: np.where(holds(x, y), 1.0, 0.0)}, masked="writes"
    )


def _broadcast(shapes: Sequence[tuple[int, ...]]) -> bool:
    """Whether shapes of one rank broadcast: the sizes of each side are equal or 1."""
    return all(len(set(sizes) - {1}) <= 1 for sizes in zip(*shapes, strict=True))


_ELEMENTWISE: Final = (
    _elementwise("abs", 1, 1, lambda np, x: np.absolute(x)),
    _elementwise("neg", 1, 1, lambda _, x: -x),
    _elementwise("square", 1, 1, lambda _, x: x * x),
    _elementwise("sqrt", 1, 1, lambda np, x: np.sqrt(x), positive="src"),
    _elementwise("rsqrt", 1, 2, lambda np, x: 1 / np.sqrt(x), positive="src"),
    _elementwise("exp", 1, 1, lambda np, x: np.exp(x)),
    _elementwise("log", 1, 1, lambda np, x: np.log(x), positive="src"),
    _elementwise("log1p", 1, 1, lambda np, x: np.log1p(x), positive="src", no_gpu=NO_CUDA_KERNEL),
    *(_function(name) for name in ("expm1", "erf", "sin", "cos", "sign", "floor", "ceil", "rint")),
    *(
        _elementwise(name, 1, 1, function, positive="src", no_gpu=NO_CUDA_KERNEL)
        for name, function in (
            ("log2", lambda np, x: np.log(x) * (1 / math.log(2))),
            ("log10", lambda np, x: np.log(x) * (1 / math.log(10))),
        )
    ),
    _elementwise("power", 1, 1, lambda _, x, a: x**a, positive="src", numbered=True),
    _elementwise(
        "add",
        2,
        lambda layer: math.prod(_result_shape(layer.fields)) * (1 + int(abs(layer.number) != 1)),
        lambda _, x, y, a: x + a * y,
        numbered=True,
    ),
    _elementwise("mul", 2, 1, lambda _, x, y: x * y),
    _elementwise("div", 2, 1, lambda _, x, y: x / y, positive="src2"),
    _elementwise("max", 2, 1, lambda np, x, y: np.maximum(x, y)),
    _elementwise("min", 2, 1, lambda np, x, y: np.minimum(x, y)),
    _elementwise("leaky-relu", 2, 2, lambda np, x, y: np.where(x > 0, x, x * y)),
    # A square, a product, a sum.
    _elementwise("add-square", 2, 3, lambda _, x, y, a: x + a * y * y, numbered=True),
    _elementwise("sum3", 3, 2, lambda _, x, y, z: x + y + z),
    _elementwise("lerp", 3, 3, lambda _, x, y, z: x + z * (y - x)),
    _elementwise("addcmul", 3, 3, lambda _, x, y, z, a: x + a * y * z, numbered=True),
    _elementwise(
        "addcdiv", 3, 3, lambda _, x, y, z, a: x + a * y / z, positive="src3", numbered=True
    ),
    _elementwise("clamp", 3, 2, lambda np, x, y, z: np.minimum(np.maximum(x, y), z)),
    # 1 where the comparison holds, else 0.
    _comparison("eq", lambda x, y: ~((x > y) | (y > x))),
    _comparison("ne", lambda x, y: (x > y) | (y > x)),
    _comparison("lt", lambda x, y: y > x),
    _comparison("le", lambda x, y: ~(x > y)),
    _comparison("gt", lambda x, y: x > y),
    _comparison("ge", lambda x, y: ~(y > x)),
    # x where the mask is 1, else y.
    _elementwise("select", 3, 1, lambda np, x, y, z: np.where(z > 0, x, y), masked="reads"),
    # x where y is above zero, else x z.
    _elementwise("leaky-relu-gradient", 3, 2, lambda np, x, y, z: np.where(y > 0, x, x * z)),
    # The same, and the gradient of z before its sums: zero where y is above zero, else x y.
    _elementwise(
        "prelu-gradient",
        3,
        3,
        lambda np, x, y, z: {
            "dst": np.where(y > 0, x, x * z),
            "dst2": np.where(y > 0, 0.0, x * y),
        },
        results=("dst", "dst2"),
        no_gpu=NO_CUDA_KERNEL,
    ),
    # Zero between -a and a; a soft one moves all others towards zero.
    _elementwise(
        "hardshrink",
        1,
        2,
        lambda np, x, a: np.where((x > a) | (-x > a), x, 0.0),
        numbered=True,
        least=0.1,
        no_gpu=NO_CUDA_KERNEL,
    ),
    _elementwise(
        "softshrink",
        1,
        3,
        lambda np, x, a: np.where(x > a, x - a, np.where(-x > a, x + a, 0.0)),
        numbered=True,
        least=0.1,
        no_gpu=NO_CUDA_KERNEL,
    ),
    # x where it is above a, else y.
    _elementwise(
        "threshold",
        2,
        1,
        lambda np, x, y, a: np.where(x > a, x, y),
        numbered=True,
        least=-_MAX_THRESHOLD,
        no_gpu=NO_CUDA_KERNEL,
    ),
    _elementwise(
        "xlogy", 2, 2, lambda np, x, y: x * np.log(y), positive="src2", no_gpu=NO_CUDA_KERNEL
    ),
    _elementwise("xlogx", 1, 2, lambda np, x: x * np.log(x), positive="src", no_gpu=NO_CUDA_KERNEL),
    _cast("cast-from-fp32", "src"),
    _cast("cast-to-fp32", "dst"),
    *(op for kind in WHOLE_TYPES for op in _whole_casts(kind)),
)


#: Operands by which the overwritten one is multiplied or divided.
_FACTORS: Final = {"leaky-relu-gradient": "src3"} | dict.fromkeys(
    ("mul", "div", "leaky-relu"), "src2"
)


def _in_place(op: Op) -> Op:
    def settle(values: dict[str, Any]) -> None:
        op.settle(values)
        result = _result_shape(values)
        if values["src"] != result:
            fits = "x".join(map(str, result))
            raise UsageError(f"src={values['src']}: does not hold the result; nearest: {fits}")

    signs = frozenset([_FACTORS[op.name]] if op.name in _FACTORS else [])
    return in_place_op(op, settle=settle, signs=signs, positive=op.positive - signs)


def merged_elementwise(name: str, *shapes: Sequence[int], number: float | None = None) -> Layer:
    """Return an elementwise layer with as few dimensions as possible, operands aligned at the end.

    Adjacent dimensions are merged if the same operands are broadcast along them.

    Args:
        name: Name of the op.
        shapes: Shapes of the operands; a number has an empty shape.
        number: Number of an op that has one; None for its default.

    Raises:
        UsageError: The layer is invalid.
    """
    longest = max(map(len, shapes), default=0)
    aligned = [(1,) * (longest - len(shape)) + tuple(shape) for shape in shapes]
    merged: list[list[int]] = []
    broadcast: tuple[bool, ...] = ()
    for sizes in zip(*aligned, strict=True):
        if max(sizes) == 1:
            continue
        broadcast_here = tuple(size == 1 for size in sizes)
        if merged and broadcast_here == broadcast:
            merged[-1] = [a * b for a, b in zip(merged[-1], sizes, strict=True)]
        else:
            merged.append(list(sizes))
        broadcast = broadcast_here
    dims = zip(*merged, strict=True) if merged else [(1,)] * len(shapes)
    fields: dict[str, Any] = {"number": number} if number is not None else {}
    fields.update(zip(_ROLES, dims, strict=False))
    return _named(_ELEMENTWISE, name).build(**fields)


# -----------------------------------------------------------------------------
# Sums, means, extremes, norms and the logarithm of a sum of exponentials over some
# dimensions, which are 1 in ``dst``. FLOPs are per element of the source; operations per element of
# the result are not counted. An index is that of the extreme along the reduced dimension; with an
# index there is only one.


def _settle_reduction(values: dict[str, Any]) -> None:
    src, dst = values["src"], values["dst"]
    fits = len(src) == len(dst) and src != dst
    if not fits or any(kept not in (1, size) for size, kept in zip(src, dst, strict=True)):
        total = "x".join("1" for _ in src) or "1"
        raise UsageError(f"dst={dst}: no reduction of {src}; nearest: {total}")


def _settle_extreme(values: dict[str, Any]) -> None:
    _settle_reduction(values)
    src, dst = values["src"], values["dst"]
    reduced = [axis for axis in range(len(src)) if src[axis] != dst[axis]]
    if reduced != [reduced[0]]:
        one = "x".join(map(str, (*src[: reduced[0]], 1, *src[reduced[0] + 1 :])))
        raise UsageError(f"dst={dst}: an index is along one dimension; nearest: {one}")


def _reduction(
    name: str,
    flops: int,
    reference: Callable[..., Any],
    settle: Callable[[dict[str, Any]], None] = _settle_reduction,
    writes: tuple[str, ...] = ("dst",),
    **options: Any,
) -> Op:
    def reduce(np: Any, layer: Layer, t: Any) -> Any:
        sizes = enumerate(zip(layer.src, layer.dst, strict=True))
        return reference(np, t.src, tuple(axis for axis, (size, kept) in sizes if size != kept))

    return _tensor_op(
        "reduction",
        name,
        ("src",),
        fields=(Field(name="src", type="shape"), Field(name="dst", type="shape")),
        operands=_operands(2, 2, "src", "dst"),
        settle=settle,
        shapes=lambda s: {"src": s.src, **dict.fromkeys(writes, s.dst)},
        flops=lambda s: flops * math.prod(s.src),
        reference=reduce,
        writes=writes,
        **options,
    )


def _extreme(name: str, writes: tuple[str, ...]) -> Op:
    """Return the op of a maximum or minimum with its index, or of the index alone."""
    least = name.startswith(("min", "argmin"))

    def reference(np: Any, x: Any, axes: tuple[int, ...]) -> Any:
        (axis,) = axes
        find, take = (np.argmin, np.min) if least else (np.argmax, np.max)
        found = {
            "dst": take(x, axis, keepdims=True),
            "indices": find(x, axis, keepdims=True),
        }
        return {role: found[role] for role in writes}

    return _reduction(name, 1, reference, _settle_extreme, writes, no_gpu=NO_CUDA_KERNEL)


def _log_sum_exp(np: Any, x: Any, axes: tuple[int, ...]) -> Any:
    most = x.max(axes, keepdims=True)
    return most + np.log(np.exp(x - most).sum(axes, keepdims=True))


_REDUCTIONS: Final = (
    _reduction("sum", 1, lambda np, x, axes: np.sum(x, axes, keepdims=True)),
    _reduction("mean", 1, lambda np, x, axes: np.mean(x, axes, keepdims=True)),
    _reduction("max", 1, lambda np, x, axes: np.max(x, axes, keepdims=True)),
    _reduction("min", 1, lambda np, x, axes: np.min(x, axes, keepdims=True)),
    _reduction(
        "prod",
        1,
        lambda np, x, axes: np.prod(x, axes, keepdims=True),
        signs=frozenset(("src",)),
        no_gpu=NO_CUDA_KERNEL,
    ),
    _extreme("argmax", ("indices",)),
    _extreme("argmin", ("indices",)),
    _extreme("max-indices", ("dst", "indices")),
    _extreme("min-indices", ("dst", "indices")),
    # Maximum, difference, exponential, sum.
    _reduction("logsumexp", 4, _log_sum_exp, no_gpu=NO_CUDA_KERNEL),
    # Mean, difference, square, sum.
    _reduction("var", 4, lambda _, x, axes: x.var(axes, keepdims=True), no_gpu=NO_CUDA_KERNEL),
    _reduction(
        "std",
        4,
        lambda np, x, axes: np.sqrt(x.var(axes, keepdims=True)),
        no_gpu=NO_CUDA_KERNEL,
    ),
    _reduction("norm", 2, lambda np, x, axes: np.sqrt(np.sum(x * x, axes, keepdims=True))),
    _reduction(
        "norm1",
        2,
        lambda np, x, axes: np.sum(np.absolute(x), axes, keepdims=True),
        no_gpu=NO_CUDA_KERNEL,
    ),
)


def merged_reduction(name: str, shape: Sequence[int], over: Collection[int]) -> Layer:
    """Return a reduction with as few dimensions as possible.

    Args:
        name: Name of the op.
        shape: Shape of the source.
        over: Dimensions that are reduced.

    Raises:
        UsageError: The layer is invalid.
    """
    source: list[int] = []
    result: list[int] = []
    before = None
    for axis, size in enumerate(shape):
        if size == 1:
            continue
        reduced = axis in over
        if reduced == before:
            source[-1] *= size
            result[-1] *= 1 if reduced else size
        else:
            source.append(size)
            result.append(1 if reduced else size)
        before = reduced
    op = _named(_REDUCTIONS, name)
    return op.build(src=tuple(source) or (1,), dst=tuple(result) or (1,))


# -----------------------------------------------------------------------------
# Data movement: a copy, zeros, or a permutation of dimensions, where dimension ``i`` of the result
# is ``order[i]`` of the source. Other copies read each element from another place: in reverse order
# or shifted by half of the size along the dimensions in ``order``, repeated or reflected up to the
# shape ``dst``, or only below or above the diagonal of the last two dimensions.

#: Moves along the dimensions in ``order``, and to the shape ``dst``.
_ALONG: Final = ("flip", "roll")
_TO_SHAPE: Final = ("tile", "reflect", "replicate")


def _settle_move(values: dict[str, Any], *, name: str) -> None:
    src, order, dst = values["src"], values["order"], values["dst"]
    if not src:
        raise UsageError("the shape is missing; nearest: 1")
    axes = range(len(src))
    if name in _ALONG:
        fits, nearest = bool(order) and order == tuple(sorted({*order} & {*axes})), f"{axes[-1]}"
    elif name == "permute":
        fits, nearest = sorted(order) == [*axes], "".join(map(str, reversed(axes)))
    else:
        fits, nearest = not order, "none"
    if not fits:
        raise UsageError(f"order={order}: not an order of {src}; nearest: {nearest}")
    if name in ("tril", "triu") and len(src) < 2:
        raise UsageError(f"src={src}: {name} needs two dimensions; nearest: 1x{src[0]}")
    if not dst and name not in _TO_SHAPE:
        return
    pairs = [*zip(src, dst, strict=False)]
    if name == "tile":
        fits = all(to % size == 0 for size, to in pairs)
    elif name == "replicate":
        fits = all(size <= to for size, to in pairs)
    else:
        fits = all(size <= to < 3 * size - 1 or size == to for size, to in pairs)
    if name not in _TO_SHAPE or len(src) != len(dst) or not fits:
        text = "x".join(map(str, src)) if name in _TO_SHAPE else "none"
        raise UsageError(f"dst={dst}: {name} has no such result of {src}; nearest: {text}")


def _move(name: str, reads: tuple[str, ...], **options: Any) -> Op:
    return _tensor_op(
        "move",
        name,
        reads,
        fields=(
            Field(name="src", type="shape"),
            Field(name="order", spelling="by", type="order", default=(), minimum=0),
            Field(name="dst", type="shape", default=()),
        ),
        operands=_operands(*((2, 2) if name in _TO_SHAPE else (1, 1)), "src", "dst"),
        settle=functools.partial(_settle_move, name=name),
        **options,
    )


def _taken(name: str, reference: Callable[[Any, Layer, Any], Any], **options: Any) -> Op:
    """Return the op of a copy whose elements come from other places."""
    return _move(
        name,
        ("src",),
        shapes=lambda s: {"src": s.src, "dst": s.dst or s.src},
        reference=lambda np, s, t: reference(np, s, t.src),
        no_gpu=NO_CUDA_KERNEL,
        **options,
    )


def _border(np: Any, layer: Layer, source: Any, mode: str) -> Any:
    pads = [(to - size, (to - size) // 2) for size, to in zip(layer.src, layer.dst, strict=True)]
    return np.pad(source, [(before, both - before) for both, before in pads], mode)


def _triangle(name: str) -> Op:
    def touched(layer: Layer) -> dict[str, int]:
        rows, columns = map(int, layer.src[-2:])
        below = sum(min(row + 1, columns) for row in range(rows))
        number = below if name == "tril" else rows * columns - below + min(rows, columns)
        return {"src": math.prod(layer.src[:-2]) * number}

    return _taken(name, lambda np, _, source: getattr(np, name)(source), touched=touched)


_MOVES: Final = (
    _move(
        "copy",
        ("src",),
        shapes=lambda s: {"src": s.src, "dst": s.src},
        reference=lambda _np, _s, t: t.src,
    ),
    _move(
        "permute",
        ("src",),
        shapes=lambda s: {"src": s.src, "dst": tuple(s.src[axis] for axis in s.order)},
        reference=lambda np, s, t: np.transpose(t.src, s.order),
    ),
    _taken("flip", lambda np, s, source: np.flip(source, s.order)),
    _taken(
        "roll",
        lambda np, s, source: np.roll(source, [s.src[axis] // 2 for axis in s.order], s.order),
    ),
    _taken(
        "tile",
        lambda np, s, source: np.tile(
            source, [to // size for size, to in zip(s.src, s.dst, strict=True)]
        ),
    ),
    _taken("reflect", functools.partial(_border, mode="reflect")),
    _taken("replicate", functools.partial(_border, mode="edge")),
    _triangle("tril"),
    _triangle("triu"),
    _move("fill", (), shapes=lambda s: {"dst": s.src}, reference=lambda np, s, _: np.zeros(s.src)),
)


def merged_move(shape: Sequence[int], strides: Sequence[int]) -> Layer:
    """Return the copy of a tensor to dense memory, with as few dimensions as possible.

    Args:
        shape: Shape of both tensors.
        strides: Strides of the source in elements; gaps do not matter.
    """
    axes = [axis for axis, size in enumerate(shape) if size != 1]
    memory = sorted(axes, key=lambda axis: -strides[axis])
    # Axes that are adjacent in the result and in the source are merged.
    groups: list[list[int]] = []
    for axis in axes:
        place = memory.index(axis)
        if groups and memory.index(groups[-1][-1]) == place - 1:
            groups[-1].append(axis)
        else:
            groups.append([axis])
    source = sorted(groups, key=lambda group: memory.index(group[0]))
    sizes = tuple(math.prod(shape[axis] for axis in group) for group in source) or (1,)
    if len(sizes) == 1:
        return _named(_MOVES, "copy").build(src=sizes)
    return _named(_MOVES, "permute").build(src=sizes, order=tuple(map(source.index, groups)))


# -----------------------------------------------------------------------------
# Rows of tables by uniformly random indices: ``dst[i] = src[indices[i]]`` is an embedding;
# ``dst[indices[i]] += src[i]`` after ``dst = 0`` is the gradient of its table, and in place it adds
# to an existing one. There may be several tables, with indices of their own or the same for all;
# and an index for each element of a row. Distinct indices overwrite rows; bags are sums of rows.

#: Maximum number of rows: inputs are float32 arrays, which represent all integers up to this one.
_MAX_ROWS: Final = 2**24


def _read_gather(op: Op, tensors: list[Sizes]) -> dict[str, Any]:
    table, index = ([size for size, _ in tensor] for tensor in tensors)
    if op.name == "bags" and (len(table), len(index)) == (2, 2):
        return {"rows": table[0], "width": table[1], "count": math.prod(index), "bags": index[0]}
    several = op.name != "bags" and len(table) == 3 and len(index) in (2, 3)
    if not several and (op.name == "bags" or (len(table), len(index)) != (2, 1)):
        shown = "30522x768:128x4" if op.name == "bags" else "30522x768:128"
        raise UsageError(f"not ROWSxWIDTH:COUNT; nearest: {op.prefix}{shown}")
    tables, rows, width = table if several else (1, *table)
    sets, count, each = [*index, 1][:3] if several else (1, *index, 1)
    sizes = {"tables": tables, "rows": rows, "width": width, "count": count}
    return {**sizes, "index_tables": sets, "index_width": each}


def _settle_gather(values: dict[str, Any]) -> None:
    for name, most in (("index_tables", "tables"), ("index_width", "width")):
        if values[name] not in (1, values[most]):
            raise UsageError(f"{name}={values[name]}: neither 1 nor {values[most]}; nearest: 1")


def _settle_distinct(values: dict[str, Any]) -> None:
    _settle_gather(values)
    if values["count"] > values["rows"]:
        rows = values["rows"]
        raise UsageError(f"count={values['count']}: more indices than rows; nearest: {rows}")


def _is_single(layer: Layer) -> bool:
    """Whether there is one table, of which whole rows are taken."""
    return bool(layer.tables == layer.index_width == 1)


def _indices_shape(layer: Layer) -> Shape:
    single = _is_single(layer)
    return (layer.count,) if single else (layer.index_tables, layer.count, layer.index_width)


def _rows_shape(layer: Layer, rows: int) -> Shape:
    return (rows, layer.width) if _is_single(layer) else (layer.tables, rows, layer.width)


def _write_gather(layer: Layer) -> list[Shape]:
    index = _indices_shape(layer)
    return [_rows_shape(layer, layer.rows), index[:2] if layer.index_width == 1 else index]


def _native_gather(layer: Layer) -> dict[str, Any]:
    if not _is_single(layer):
        raise UnsupportedError("only whole rows of one table are gathered natively")
    sizes = {name: getattr(layer, name) for name in ("rows", "width", "count")}
    return {"op": layer.op, **sizes}


def _read_once(layer: Layer) -> int:
    """Return the elements of a table that indices pick, each of them at most once."""
    return int(layer.tables * layer.width * min(layer.count, layer.rows))


def _gather(name: str, *, scatters: bool, reads: tuple[str, ...] = (), **options: Any) -> Op:
    """Return an op that gathers rows of a table, or scatters to them, perhaps in place."""
    table, picked = ("dst", "src") if scatters else ("src", "dst")
    op = _tensor_op(
        "gather",
        name,
        (*reads, "src", "indices"),
        fields=(
            Field(name="tables", default=1),
            Field(name="rows", maximum=_MAX_ROWS),
            Field(name="width"),
            Field(name="count"),
            Field(name="index_tables", default=1),
            Field(name="index_width", default=1),
        ),
        operands=Operands(minimum=2, maximum=2, read=_read_gather, write=_write_gather),
        settle=options.pop("settle", _settle_gather),
        native=_native_gather,
        shapes=lambda s: {
            table: _rows_shape(s, s.rows),
            "indices": _indices_shape(s),
            picked: _rows_shape(s, s.count),
        },
        no_gpu=NO_CUDA_KERNEL if reads else "",
        **options,
    )
    if not reads:
        return op
    forward = replace(op.passes["forward"], updates=reads)
    return replace(op, passes={"forward": forward})


def _broadcast_indices(np: Any, layer: Layer, indices: Any) -> Any:
    """Return an index for each element that is gathered or scattered."""
    sets = indices.astype(int).reshape(layer.index_tables, -1, layer.index_width)
    return np.broadcast_to(sets, (layer.tables, layer.count, layer.width))


def _pick_rows(np: Any, layer: Layer, t: Any) -> Any:
    if _is_single(layer):
        return t.src[t.indices.astype(int)]
    return np.take_along_axis(t.src, _broadcast_indices(np, layer, t.indices), 1)


def _add_rows(np: Any, layer: Layer, t: Any) -> Any:
    rows = _broadcast_indices(np, layer, t.indices)
    tables = np.arange(layer.tables)[:, None, None] * layer.rows
    places = (tables + rows) * layer.width + np.arange(layer.width)
    shape = _rows_shape(layer, layer.rows)
    sums = np.bincount(places.reshape(-1), t.src.reshape(-1), math.prod(shape))
    return sums.reshape(shape)


def _put_rows(np: Any, layer: Layer, t: Any) -> Any:
    tables = t.dst.reshape(layer.tables, layer.rows, layer.width).copy()
    rows = _broadcast_indices(np, layer, t.indices)
    np.put_along_axis(tables, rows, t.src.reshape(rows.shape), 1)
    return {"dst": tables.reshape(t.dst.shape)}


_GATHERS: Final = (
    _gather(
        "rows",
        scatters=False,
        touched=lambda s: {"src": _read_once(s)},
        reference=_pick_rows,
    ),
    _gather(
        "add-rows",
        scatters=True,
        flops=lambda s: s.tables * s.count * s.width,
        reference=_add_rows,
    ),
    _gather(
        "add-rows-in-place",
        scatters=True,
        reads=("dst",),
        flops=lambda s: s.tables * s.count * s.width,
        touched=lambda s: {"dst": _read_once(s)},
        written=lambda s: {"dst": _read_once(s)},
        reference=lambda np, s, t: {"dst": t.dst + _add_rows(np, s, t)},
    ),
    _gather(
        "put-rows-in-place",
        scatters=True,
        reads=("dst",),
        touched=lambda _: {"dst": 0},
        written=lambda s: {"dst": _read_once(s)},
        settle=_settle_distinct,
        distinct=True,
        reference=_put_rows,
    ),
    _tensor_op(
        "gather",
        "bags",
        ("src", "indices"),
        fields=(
            Field(name="rows", maximum=_MAX_ROWS),
            Field(name="width"),
            Field(name="bags"),
            Field(name="count"),
        ),
        operands=Operands(
            minimum=2,
            maximum=2,
            read=_read_gather,
            write=lambda s: [(s.rows, s.width), (s.bags, s.count // s.bags)],
        ),
        shapes=lambda s: {
            "src": (s.rows, s.width),
            "indices": (s.bags, s.count // s.bags),
            "dst": (s.bags, s.width),
        },
        flops=lambda s: s.count * s.width,
        touched=lambda s: {"src": min(s.count, s.rows) * s.width},
        reference=lambda _np, _s, t: t.src[t.indices.astype(int)].sum(1),
        no_gpu=NO_CUDA_KERNEL,
    ),
)

# -----------------------------------------------------------------------------
# Fourier transforms over the last dimensions, of which there are ``over``. A complex number is a
# pair of numbers. Of real numbers one half of the result is computed, along the last dimension; a
# transform to real numbers, divided by their number, reads such a half.


def _settle_fft(values: dict[str, Any]) -> None:
    rank = len(values["src"])
    if values["over"] > rank:
        raise UsageError(f"by{values['over']}: the shape has only {rank}; nearest: by{rank}")


def _half(shape: Shape) -> Shape:
    return (*shape[:-1], shape[-1] // 2 + 1, 2)


def _fft(name: str, reals: tuple[str, ...], reference: Callable[[Any, Any, Any], Any]) -> Op:
    """Return the op of a transform, of which some of the tensors have real numbers."""

    def shapes(layer: Layer) -> dict[str, Shape]:
        pairs = (*layer.src, 2) if name == "complex" else _half(layer.src)
        return {role: layer.src if role in reals else pairs for role in ("src", "dst")}

    def flops(layer: Layer) -> int:
        # 5 n log2(n) as in FFTW's benchmarks, half of them for real numbers.
        length = math.prod(layer.src[-layer.over :])
        per_number = 2.5 if reals else 5
        numbers = int(math.prod(layer.src))
        return math.ceil(numbers * per_number * math.log2(length))

    return _tensor_op(
        "fft",
        name,
        ("src",),
        fields=(
            Field(name="src", type="shape"),
            Field(name="over", spelling="by", default=1, maximum=3),
        ),
        operands=_operands(1, 1, "src"),
        settle=_settle_fft,
        shapes=shapes,
        flops=flops,
        reference=lambda np, s, t: reference(
            np.fft, _numbers_of_pairs(t.src) if name != "real" else t.src, s
        ),
        no_gpu=NO_CUDA_KERNEL,
    )


def _numbers_of_pairs(pairs: Any) -> Any:
    return pairs[..., 0] + 1j * pairs[..., 1]


def _pairs_of_numbers(numbers: Any) -> Any:
    return numbers.view(float).reshape(*numbers.shape, 2)


def _sides(layer: Layer) -> tuple[list[int], range]:
    """Return sizes and places of the dimensions that are transformed."""
    return list(layer.src[-layer.over :]), range(-layer.over, 0)


_TRANSFORMS: Final = (
    _fft("real", ("src",), lambda fft, x, s: _pairs_of_numbers(fft.rfftn(x, *_sides(s)))),
    _fft("complex", (), lambda fft, x, s: _pairs_of_numbers(fft.fftn(x, *_sides(s)))),
    _fft("inverse-real", ("dst",), lambda fft, x, s: fft.irfftn(x, *_sides(s))),
)

# -----------------------------------------------------------------------------
# Distances of all rows of one matrix to all of another, in batches.


def _settle_distance(values: dict[str, Any]) -> None:
    src, src2 = values["src"], values["src2"]
    if len(src) != 3 or len(src2) != 3 or (src[0], src[2]) != (src2[0], src2[2]):
        raise UsageError(f"src2={src2}: not rows like those of {src}; nearest: 4x512x3:4x256x3")


_DISTANCE: Final = _tensor_op(
    "distance",
    "euclidean",
    ("src", "src2"),
    fields=(Field(name="src", type="shape"), Field(name="src2", type="shape")),
    operands=_operands(2, 2, "src", "src2"),
    settle=_settle_distance,
    shapes=lambda s: {
        "src": s.src,
        "src2": s.src2,
        "dst": (*s.src[:2], s.src2[1]),
    },
    # A difference, its square, the sum.
    flops=lambda s: 3 * math.prod(s.src) * s.src2[1],
    reference=lambda np, _, t: np.sqrt(np.square(t.src[:, :, None] - t.src2[:, None]).sum(-1)),
    no_gpu=NO_CUDA_KERNEL,
)

_OVERWRITING: Final = [
    op
    for op in _ELEMENTWISE
    if op.passes["forward"].writes == ("dst",) and not op.exact and not op.whole
]

TENSOR_OPS: Final = (
    *(*_ELEMENTWISE, *map(_in_place, _OVERWRITING), *_REDUCTIONS, *_MOVES, *_GATHERS),
    *(*_TRANSFORMS, _DISTANCE),
)
