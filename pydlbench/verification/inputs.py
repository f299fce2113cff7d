"""Seeded random inputs, rounded so that the kernel and the reference read the same numbers."""

import math
import zlib
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from pydlbench.errors import UnsupportedError, UsageError, unknown_word
from pydlbench.ops.fused import NOTHING_FUSED, fused_ops, fused_shapes, operand_roles
from pydlbench.ops.op import INTEGERS, MASK, Layer
from pydlbench.ops.table import tensor_types
from pydlbench.verification.threads import in_threads
from pydlbench.words import FP8_PRECISIONS, MIXED_TYPES


def check_shape(layer: Layer, role: str, tensor: NDArray[Any]) -> NDArray[Any]:
    """Return ``tensor`` in its plain shape; other shapes that the layer accepts are converted.

    Raises:
        UsageError: The tensor does not have the layer's shape.
    """
    expected = layer.shapes()[role]
    if tensor.shape == expected:
        return tensor
    if tensor.shape in layer.other_shapes(role):
        return tensor.reshape(expected)
    raise UsageError(f"{role}: has shape {tensor.shape}; expected {expected}")


# -----------------------------------------------------------------------------
# The mask of a dropout: an element is kept if the hash of its index is small.
#
# The hash is C. Wellons' 32-bit "lowbias32" ("Prospecting for hash functions", 2018) without its
# last step, which does not change the upper half of the result. Its argument is the lower half of
# the index, xor the upper half times 0x9E3779B9 plus 0x85EBCA6B. It needs no state, so that any
# thread can compute it for any element, and the backward pass gets the same mask. It is short
# enough for a GPU to compute it in less time than the memory accesses take.


def kept_elements(shape: tuple[int, ...], cut: tuple[slice, ...], keep: float) -> NDArray[np.bool_]:
    """Return the dropout mask of a piece of a tensor.

    Args:
        shape: Shape of the whole tensor; elements are numbered in its order, whatever the strides.
        cut: Slices of the piece.
        keep: Probability that an element is kept.
    """
    index = np.zeros((), dtype=np.uint64)
    stride = 1
    for axis in reversed(range(len(shape))):
        along = np.arange(shape[axis], dtype=np.uint64)[cut[axis]] * np.uint64(stride)
        index = index + along.reshape(-1, *[1] * (len(shape) - 1 - axis))
        stride *= shape[axis]
    mask: NDArray[np.bool_] = _hash(index) < np.uint64(int(keep * 2.0**32))
    return mask


def _hash(index: NDArray[np.uint64]) -> NDArray[np.uint32]:
    with np.errstate(over="ignore"):
        upper = (index >> np.uint64(32)).astype(np.uint32) * np.uint32(0x9E3779B9)
        mixed = index.astype(np.uint32) ^ (upper + np.uint32(0x85EBCA6B))
        mixed = (mixed ^ (mixed >> np.uint32(16))) * np.uint32(0x7FEB352D)
        mixed = (mixed ^ (mixed >> np.uint32(15))) * np.uint32(0x846CA68B)
    return np.asarray(mixed)


# -----------------------------------------------------------------------------
# Storage precisions: rounding float32 values to them, and their unit roundoffs.

#: Significand bits of the values a kernel of each precision works on, implicit bit included.
#: ``tf32`` is stored as float32, but its arithmetic uses eleven bits: inputs are rounded to these,
#: so that the reference and the kernel compute with the same numbers.
_SIGNIFICAND = {
    "fp32": 24,
    "tf32": 11,
    "fp16": 11,
    "fp16-tc": 11,
    "bf16": 8,
    "bf16-tc": 8,
    **dict.fromkeys((*FP8_PRECISIONS, "mxfp8-tc"), 4),
    "nvfp4-tc": 2,
    # Results are float32 or integers, which are exact.
    **dict.fromkeys(MIXED_TYPES, 24),
}

#: Formats with few exponents: exponent of the distance of subnormal numbers, and largest number.
_NARROW: Final = {**dict.fromkeys((*FP8_PRECISIONS, "mxfp8-tc"), (-9, 448)), "nvfp4-tc": (-1, 6)}

#: Largest relative error of one rounding to nearest, by name of the format.
UNIT_ROUNDOFF = {
    "float64": 2.0**-53,
    "float32": 2.0**-24,
    "int32": 2.0**-24,  # exact sums, which are scaled in float32
    "float16": 2.0**-11,
    "bfloat16": 2.0**-8,
    "float8_e4m3": 2.0**-4,
    # Hopper's tensor cores truncate sums of 8-bit products to 13 fraction bits
    # ("DeepSeek-V3 Technical Report", 2024, section 3.3.2).
    "float22": 2.0**-14,
}


def significand_bits(precision: str) -> int:
    """Return the significand bits of ``precision``, the implicit one included.

    Raises:
        UsageError: There is no such precision.
    """
    bits = _SIGNIFICAND.get(precision)
    if bits is None:
        raise unknown_word(f"precision {precision}: no such precision", precision, _SIGNIFICAND)
    return bits


def smallest_normal(precision: str) -> float:
    """Return the smallest number of ``precision`` that has all its significand bits.

    Smaller numbers have a constant spacing, and so the same absolute rounding error as this one. In
    float16 it is 6e-5, a size that sums of random products reach.
    """
    if precision.startswith("fp16"):
        return 2.0**-14
    return 2.0**-6 if precision.startswith("fp8") else 2.0**-126


def largest(precision: str) -> float:
    """Return the largest finite number of a storage precision."""
    if precision.startswith("fp16"):
        return float(np.finfo(np.float16).max)
    if precision in FP8_PRECISIONS:
        return 448.0
    stored = 24 if precision == "tf32" else significand_bits(precision)
    return (2.0 - 2.0 ** (1 - stored)) * 2.0**127


def round_to(precision: str, array: NDArray[Any]) -> NDArray[np.float32]:
    """Round to the nearest value of a storage precision, ties to even; the result is float32.

    Args:
        precision: ``fp32``, ``tf32``, ``fp16``, ``fp16-tc``, ``bf16``, ``bf16-tc`` or one of fp8
            (e4m3, finite values saturating at 448 as its conversions do) or a block-scaled one.
        array: Values of any shape; not changed.

    Raises:
        UsageError: There is no such precision.
    """
    bits = significand_bits(precision)
    values = np.asarray(array, dtype=np.float32)
    if bits == 24:
        return values.copy()
    if precision.startswith("fp16"):
        return values.astype(np.float16).astype(np.float32)
    if precision in _NARROW:
        least, most = _NARROW[precision]
        with np.errstate(invalid="ignore"):  # a signalling NaN
            _, exponent = np.frexp(values)
            spacing = np.ldexp(np.float32(1), np.maximum(exponent - bits, least))
            rounded: NDArray[np.float32] = np.rint(values / spacing) * spacing
        return np.clip(rounded, np.float32(-most), np.float32(most))
    return _drop_bits(values, 24 - bits)


def _drop_bits(values: NDArray[np.float32], dropped: int) -> NDArray[np.float32]:
    """Round away the lowest significand bits of float32, ties to even; NaN stays NaN."""
    pattern = values.view(np.uint32) if values.flags.c_contiguous else values.copy().view(np.uint32)
    shift = np.uint32(dropped)
    last = (pattern >> shift) & np.uint32(1)
    half = np.uint32((1 << (dropped - 1)) - 1)
    with np.errstate(over="ignore"):
        rounded = ((pattern + half + last) >> shift) << shift
    result: NDArray[np.float32] = rounded.view(np.float32)
    # A carry could turn a NaN whose significand is all ones into another number.
    unordered = np.isnan(values)
    if unordered.any():
        result[unordered] = np.nan
    return result


# -----------------------------------------------------------------------------
# Uniform random values on the grid of a storage precision.

#: Number of elements generated at a time: they are still in the cache when they are rounded.
_CHUNK = 1 << 16
#: Number of elements of a block; several threads fill the blocks of larger tensors.
_BLOCK = 1 << 22
#: Number of elements that one counter of the generator gives.
_PER_COUNTER = 8


@dataclass(frozen=True, slots=True)
class UniformTensor:
    """Uniform values in [-1, 1), rounded to a precision, that have not been made yet.

    A value depends only on the key and its index: it is made of the numbers of Philox4x64-10 (J.
    Salmon and others, "Parallel random numbers: as easy as 1, 2, 3", 2011), which has no state. A
    GPU makes the same values in its own memory (``csrc/cuda/uniform.cu``).

    Attributes:
        shape: Shape of the tensor.
        key: Key of the generator.
        precision: Storage precision of the values.
    """

    shape: tuple[int, ...]
    key: tuple[int, int]
    precision: str

    def array(self) -> NDArray[np.float32]:
        """Make the values on this machine."""
        array = np.empty(self.shape, dtype=np.float32)
        fill_uniform(array.reshape(-1), self.key, self.precision)
        return array

    def drawn(self) -> tuple[int, int, int, int, float]:
        """Return number of elements, key, significand bits and least spacing, for ``_cuda``."""
        spacing = 2.0 ** _NARROW[self.precision][0] if self.precision in _NARROW else 0.0
        return math.prod(self.shape), *self.key, significand_bits(self.precision), spacing


def uniform_key(*entropy: int) -> tuple[int, int]:
    """Return the generator's key of a seed."""
    first, second = np.random.SeedSequence(entropy).generate_state(2, np.uint64)
    return int(first), int(second)


def fill_uniform(flat: NDArray[np.float32], key: tuple[int, int], precision: str) -> None:
    """Fill with uniform values in [-1, 1): random significands of numbers in [2, 4), less 3.

    The values depend only on the key and their index, not on the number of threads.
    """
    if flat.size <= _BLOCK:
        _fill_block(flat, key, 0, precision)
        return
    firsts = range(0, flat.size, _BLOCK)
    for _ in in_threads(
        lambda first: _fill_block(flat[first : first + _BLOCK], key, first, precision), firsts
    ):
        pass


def _fill_block(
    block: NDArray[np.float32], key: tuple[int, int], before: int, precision: str
) -> None:
    stream = np.random.Philox(key=np.array(key, np.uint64), counter=before // _PER_COUNTER)
    for first in range(0, block.size, _CHUNK):
        chunk = block[first : first + _CHUNK]
        bits = stream.random_raw((chunk.size + 1) // 2).view(np.uint32)[: chunk.size]
        bits >>= np.uint32(9)
        bits |= np.uint32(0x40000000)
        np.subtract(bits.view(np.float32), np.float32(3), out=chunk)
        if precision != "fp32":
            chunk[:] = round_to(precision, chunk)


# -----------------------------------------------------------------------------
# Seeded inputs.

#: Scale of the sources of functions with kinks at 3 and 6, such as relu6 and hardswish.
_KINK_RANGE = np.float32(8)


def _avoid_kinks(source: NDArray[np.float32], kinks: Sequence[float]) -> NDArray[np.float32]:
    """Scale a source to [-8, 8), and move values at kinks of either sign away.

    The gradient jumps there, and libraries may choose either value. Values are rounded to bfloat16,
    so that none lies within a rounding error of a kink.
    """
    spread = round_to("bf16", source * _KINK_RANGE)
    for kink in kinks:
        spread[np.abs(spread) == np.float32(abs(kink))] *= np.float32(0.75)
    return spread


#: An input: an array, or what makes it.
DrawnInput = NDArray[np.float32] | UniformTensor


def make_inputs(
    layer: Layer, pass_: str, precision: str, seed: int, propagation: str = "inference"
) -> dict[str, NDArray[np.float32]]:
    """Make the inputs of a pass: float32 arrays in plain layouts, by role.

    Values are uniform in [-1, 1) and rounded to the nearest value of the storage precision. Each
    role has its own random stream, so all passes of a layer get the same weights. Exceptions:

    - Max pooling backward also reads the source, to find the maxima. No two of its values in a
      window are equal, because libraries may choose either of two equal maxima.
    - The backward pass of an attention reads the result of its forward pass.
    - The weights and biases of a recurrent layer are smaller, as in trained networks.
    - Divisors and variances are in [0.5, 1.5]; factors of overwritten tensors are 1 or -1; indices
      and labels are uniform over rows and classes, and distinct where rows are overwritten; masks
      are 0 or 1.
    - Sources of functions with kinks at 3 and 6 are in [-8, 8), and the probabilities that the
      gradient of a softmax reads sum to one.

    Args:
        layer: Layer of the pass.
        pass_: ``forward``, ``backward-data`` or ``backward-weights``.
        precision: Storage precision, such as ``fp32`` or ``bf16``.
        seed: Non-negative; the same seed gives the same arrays.
        propagation: ``inference`` or ``training``; determines the statistics that a batch
            normalisation reads.

    Raises:
        UsageError: The layer has no such pass, or there is no such precision.
        UnsupportedError: An average over a window that contains only padding.
    """
    return made(draw_inputs(layer, pass_, precision, seed, propagation))


def made(inputs: Mapping[str, DrawnInput]) -> dict[str, NDArray[np.float32]]:
    """Return all inputs as arrays."""
    return {
        role: drawn.array() if isinstance(drawn, UniformTensor) else drawn
        for role, drawn in inputs.items()
    }


def draw_inputs(
    layer: Layer, pass_: str, precision: str, seed: int, propagation: str = "inference"
) -> dict[str, DrawnInput]:
    """Return the inputs of :func:`make_inputs`; those that are only random are not made yet."""
    if pass_ not in layer.passes:
        raise unknown_word(f"pass {pass_}: {layer.kind} has no such pass", pass_, layer.passes)
    if layer.op == "pool":
        _check_means(layer)
    significand_bits(precision)
    inputs = {
        role: _values(layer, pass_, role, precision, seed)
        for role in layer.reads(pass_, propagation)
    }
    if layer.op == "attention" and "result" in inputs:
        arrays = made(inputs)
        return {**arrays, "result": round_to(precision, _attention_result(layer, arrays))}
    return inputs


#: Ranges of integers by oneDNN's names of types.
INTEGER_RANGES: Final = {"s8": (-128, 127), "u8": (0, 255), "s32": (-(2**31), 2**31 - 1)}
#: Scales of sources and weights, so that products are of the size of one.
_SOURCE_SCALE: Final = 2.0**-6
_WEIGHTS_SCALE: Final = 2.0**-7


def fused_inputs(
    layer: Layer, precision: str, seed: int, fuse: str
) -> dict[str, NDArray[np.float32]]:
    """Make the operands of fused operations by role; ``dst`` is the old result of a sum.

    Scales are powers of two near the size of the values, so that few results of 8 bits leave the
    type's range; those of output channels are between half and three halves of that.

    Args:
        layer: a convolution or a product, whose forward pass is computed.
        precision: precision of the layer.
        seed: seed of the random numbers.
        fuse: the operations.
    """
    if fuse == NOTHING_FUSED:
        return {}
    types, names = tensor_types(layer, precision), {op.name for op in fused_ops(fuse)}
    weights = layer.shapes()["weights"]
    terms = layer.k if layer.op == "gemm" else math.prod(weights[1:])
    size = _term_size(types, names) * math.sqrt(terms)
    inputs = {}
    for role, shape in fused_shapes(layer, fuse).items():
        stream = np.random.SFC64(np.random.SeedSequence([seed, _number(role)]))
        values: NDArray[Any] = np.random.Generator(stream).uniform(-1, 1, shape)
        if role == "src_scale":
            values = np.full(shape, _SOURCE_SCALE)
        elif role == "weights_scale":
            values = _WEIGHTS_SCALE * (np.abs(values) + 0.5)
        elif role == "dst_scale":
            values = np.full(shape, 2.0 ** round(math.log2(size / 32)))
        elif role.endswith("zero_point"):
            values = np.full(shape, 128.0 if types.get(role[:3]) == "u8" else 3.0)
        else:
            values = round_to("bf16", values * size + np.copysign(size / 8, values))
        inputs[role] = values.astype(np.float32)
    if "dst" in operand_roles(fuse):
        inputs |= made({"dst": _values(layer, "forward", "dst", precision, seed)})
    return inputs


def _term_size(types: Mapping[str, str], scaled: Collection[str]) -> float:
    """Return the typical size of one term of a sum, times the scales."""
    if types.get("src") not in INTEGER_RANGES:
        return 1 / 3
    size = 2.0**12
    size *= _SOURCE_SCALE if "src_scale" in scaled else 1.0
    return size * (_WEIGHTS_SCALE if "weights_scale" in scaled else 1.0)


#: Number of scores of an attention that are computed at a time.
_SCORES = 1 << 18


def query_blocks(
    layer: Layer, inputs: Mapping[str, NDArray[Any]], image: int, shared: int
) -> Iterator[tuple[int, slice, dict[str, NDArray[Any]]]]:
    """Yield blocks of queries with their keys and values.

    Args:
        layer: Layer of kind attention.
        inputs: Inputs of the pass, by role.
        image: Index in the batch.
        shared: Head of keys and values.

    Yields:
        The head of queries, the rows, and the corresponding parts of the tensors.
    """
    heads = layer.heads // layer.kv_heads
    whole = {role: inputs[role][image, shared][None, None] for role in ("key", "value")}
    step = max(1, _SCORES // layer.keys)
    for head in range(shared * heads, (shared + 1) * heads):
        for first in range(0, layer.queries, step):
            rows = slice(first, min(first + step, layer.queries))
            block = {
                role: inputs[role][image, head, rows][None, None]
                for role in ("query", "dst")
                if role in inputs
            }
            yield head, rows, whole | block


def _attention_result(layer: Layer, inputs: Mapping[str, NDArray[Any]]) -> NDArray[np.float32]:
    """Compute the forward pass in float32."""
    result = np.empty(layer.shapes()["result"], dtype=np.float32)
    for image, shared in np.ndindex(layer.batch, layer.kv_heads):
        for head, rows, t in query_blocks(layer, inputs, image, shared):
            tensors = SimpleNamespace(**t, first=rows.start)
            result[image, head, rows] = layer.entry.reference(np, layer, tensors)
    return result


_ROLES = ("src", "weights", "dst")
# Precisions of oneDNN's types.
_FLOATS: Final = {"f32": "fp32", "bf16": "bf16", "f16": "fp16"}


def _number(role: str) -> int:
    """Return the number of a role's random stream."""
    return _ROLES.index(role) if role in _ROLES else zlib.crc32(role.encode())


def _values(layer: Layer, pass_: str, role: str, precision: str, seed: int) -> DrawnInput:
    """Draw one tensor, from its own random stream."""
    entropy, shape = (seed, _number(role)), layer.shapes()[role]
    rng = np.random.Generator(np.random.SFC64(np.random.SeedSequence(entropy)))
    if role in INTEGERS or role in layer.entry.whole:
        return _whole_numbers(layer, role, rng).astype(np.float32).reshape(shape)
    if role == MASK:
        mask = rng.integers(0, 2, shape).astype(np.float32)
        # A select in place has to change at least one element.
        mask.flat[0] *= "src" not in layer.entry.passes[pass_].updates
        return mask
    kind = tensor_types(layer, precision).get(role)
    stored = "fp32" if layer.in_float32(role) else _FLOATS.get(kind or "", precision)
    drawn = UniformTensor(shape, uniform_key(*entropy), stored)
    of_rows = layer.kind == "pointwise" and role == "result"
    if of_rows or (layer.op, role) == ("softmax-xent", "dst"):
        powers = np.exp(replace(drawn, precision="fp32").array(), dtype=np.float64)
        shares = powers / powers.sum(axis=layer.axis if of_rows else 1, keepdims=True)
        return round_to(precision, np.log(shares) if layer.op == "log-softmax" else shares)
    if kind in INTEGER_RANGES:
        array = drawn.array()
        np.floor(array * np.float32(128) + np.float32(128 if kind == "u8" else 0), out=array)
        return array
    if role == "src" and layer.entry.spread:
        kinks = (layer.low, layer.high) if layer.op == "hardtanh" else (3, 6)
        return _avoid_kinks(drawn.array(), kinks)
    if role == "src" and layer.op == "pool" and pass_ == "backward-data":
        array = drawn.array()
        _remove_ties(array, layer, precision, rng)
        return array
    if layer.kind == "recurrent" and role.startswith(("weights", "bias")):
        return drawn.array() * _weight_scale(layer)
    return _factors(layer, role, drawn)


def _whole_numbers(layer: Layer, role: str, rng: np.random.Generator) -> NDArray[Any]:
    """Draw indices, labels, or numbers to be converted."""
    if layer.entry.distinct:
        sets = np.arange(layer.rows)[None, :, None].repeat(layer.index_tables, 0)
        return rng.permuted(sets.repeat(layer.index_width, 2), axis=1)[:, : layer.count]
    if role in layer.entry.whole:
        least_above = 2 if layer.entry.whole[role] == "bool" else 128
    else:
        least_above = layer.rows if role == "indices" else layer.channels
    return rng.integers(0, least_above, layer.shapes()[role])


def _factors(layer: Layer, role: str, drawn: UniformTensor) -> DrawnInput:
    """Return a tensor whose elements are signs, positive, or multiplied with each other."""
    if layer.entry.whole:  # positive, and zeros among those that become truth values
        sizes = np.abs(drawn.array())
        truths = "bool" in layer.entry.whole.values()
        return np.floor(2 * sizes) if truths else round_to(drawn.precision, 127 * sizes)
    if role in layer.entry.signs:
        array = drawn.array()
        array.flat[0] = -1  # at least one factor has to change something
        return np.copysign(np.float32(1), array)
    if role in layer.entry.positive:
        return round_to(drawn.precision, np.abs(drawn.array()) + np.float32(0.5))
    if layer.op == "cumprod":  # products of thousands of elements stay normal numbers
        array = drawn.array()
        return round_to(drawn.precision, np.copysign(np.abs(array) / 8 + np.float32(0.9375), array))
    return drawn


def _check_means(layer: Layer) -> None:
    """Raise UnsupportedError if an average without padding has a window that is all padding."""
    if layer.mode == "avg" and not layer.count_include_pad:
        for axis in layer.axes:
            if axis.used_outputs() < axis.out:
                raise UnsupportedError(
                    f"{layer.problem}: has windows of padding alone, whose mean without padding "
                    "is no number"
                )


def _weight_scale(layer: Layer) -> np.float32:
    """Return the largest power of two, an exact factor, up to PyTorch's ``1 / sqrt(hidden)``.

    Much larger weights saturate the gates, and errors of the state then grow without bound.
    """
    return np.float32(2.0 ** -math.ceil(math.log2(layer.hidden) / 2))


def _remove_ties(
    images: NDArray[np.float32], layer: Layer, precision: str, rng: np.random.Generator
) -> None:
    """Move values to a grid so that no two in a pooling window are equal.

    A window contains each tuple of (position // dilation) % kernel, with one number per side, at
    most once. Each tuple gets every ``taps``-th value of the grid. Windows with more elements than
    half the grid keep their ties.
    """
    taps = math.prod(layer.kernel)
    half = 1 << (significand_bits(precision) - 1)
    blocks = 2 * half // taps
    if blocks < 2:
        return
    number = np.zeros((), dtype=np.intp)
    for axis in layer.axes:
        along = np.arange(axis.size) // axis.dilation % axis.kernel
        number = number[..., None] * axis.kernel + along
    for image in images:
        offset = rng.permutation(taps).astype(np.float32)[number] - np.float32(half)
        # From [-1, 1] to 0 .. blocks - 1; rounding may have given exactly 1.
        block = np.floor((image + np.float32(1)) * np.float32(blocks / 2))
        np.minimum(block, np.float32(blocks - 1), out=block)
        image[...] = (block * np.float32(taps) + offset) / np.float32(half)
