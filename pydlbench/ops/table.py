"""The table of all ops, and functions that build layers."""

import re
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, Final

from pydlbench.errors import unknown_word
from pydlbench.ops.images import image_sizes
from pydlbench.ops.op import IN_PLACE, Layer, Op
from pydlbench.ops.pointwise import POINTWISE_OPS
from pydlbench.ops.products import ATTENTION, GEMM
from pydlbench.ops.recurrent import RECURRENT_OPS
from pydlbench.ops.tensors import TENSOR_OPS
from pydlbench.ops.windows import CONV, DECONV, GRID_SAMPLE, POOL, RESIZES, UNFOLD
from pydlbench.words import BLOCK_SCALED_PRECISIONS, FP8_PRECISIONS, MIXED_TYPES

#: All ops by key: the name, with the kind and a colon before it as in descriptors.
OPS: Final[Mapping[str, Op]] = MappingProxyType(
    {
        op.key: op
        for op in (
            *(CONV, DECONV, POOL, GEMM, ATTENTION),
            *(*RECURRENT_OPS, *POINTWISE_OPS, *TENSOR_OPS, *RESIZES),
            *(UNFOLD, GRID_SAMPLE),
        )
    }
)


def _kinds(*, memory_bound: bool) -> tuple[str, ...]:
    names: dict[str, None] = {}
    for op in OPS.values():
        if op.memory_bound or not memory_bound:
            kinds = [f"{op.kind}{sides}d" for sides in (1, 2, 3)] if op.windows else [op.kind]
            names |= dict.fromkeys(kinds)
    return tuple(names)


#: Kinds of layers in results.
KINDS: Final = _kinds(memory_bound=False)
#: Kinds of layers that memory rather than arithmetic limits.
MEMORY_BOUND: Final = frozenset(_kinds(memory_bound=True))

_TYPE_BYTES: Final = {"f32": 4, "s32": 4, "bf16": 2, "f16": 2, "s8": 1, "u8": 1}
#: Bytes of one stored element, by precision; of the largest, if types are mixed.
ITEM_BYTES: Final[Mapping[str, int]] = MappingProxyType(
    {"fp32": 4, "tf32": 4, "fp16": 2, "fp16-tc": 2, "bf16": 2, "bf16-tc": 2}
    | dict.fromkeys(FP8_PRECISIONS, 1)
    | dict.fromkeys(BLOCK_SCALED_PRECISIONS, 2)
    | {name: max(_TYPE_BYTES[kind] for kind in kinds) for name, kinds in MIXED_TYPES.items()}
)


def tensor_types(layer: Layer, precision: str) -> dict[str, str]:
    """Return oneDNN's types of a layer's tensors by role; empty if all have that of the precision.

    Without weights, a result of integers has the type of the source.
    """
    if precision not in MIXED_TYPES:
        return {}
    source, weights, result = MIXED_TYPES[precision]
    if layer.entry.kind == "pool":
        return {"src": source, "dst": source if result == "s32" else result}
    return {"src": source, "weights": weights, "dst": result}


#: Bytes of an operand's element with its share of a scale.
_SCALED_BYTES: Final = {"mxfp8-tc": 1 + 1 / 32, "nvfp4-tc": 1 / 2 + 1 / 16}


def item_bytes(layer: Layer, precision: str) -> dict[str, float]:
    """Return the bytes of an element of each tensor by role."""
    types = tensor_types(layer, precision)
    sizes: dict[str, float] = dict.fromkeys(layer.shapes(), ITEM_BYTES[precision])
    if precision in _SCALED_BYTES:
        return sizes | dict.fromkeys(("src", "weights"), _SCALED_BYTES[precision])
    return sizes | {role: _TYPE_BYTES[kind] for role, kind in types.items()}


def without_sides(kind: str) -> str:
    """Return a kind without its number of sides: ``conv`` for ``conv3d``."""
    return re.sub(r"[123]d$", "", kind)


def ops_of_kind(kind: str) -> dict[str, Op]:
    """Return the ops of a kind (``pointwise``, ``elementwise``) by name."""
    return {op.name: op for op in OPS.values() if op.kind == kind}


def build_layer(op: str, *, name: str | None = None, **fields: Any) -> Layer:
    """Return a layer: a problem of an op.

    Fields with a value for each side accept a number for all sides, or a tuple, outermost first.
    Without a tuple, ``sides`` (1 to 3, by default 2) is the number of sides. ``padding`` is one
    number, one for each side, or two for each side: (top, bottom, left, right).

    Args:
        op: Key of the op: ``conv``, ``relu``, ``elementwise:add``.
        name: Name of the layer in tables.
        fields: Values of fields: ``batch=64, in_channels=3, in_size=224, out_channels=96,
            kernel=11``.

    Raises:
        UsageError: The op or a field does not exist, a field is missing, or the layer is invalid.
    """
    if op not in OPS:
        raise unknown_word(f"op={op!r}: no such op", str(op), OPS)
    return OPS[op].build(name, **fields)


def image_layer(op: str, shape: Sequence[int], **parameters: Any) -> Layer:
    """Return a memory-bound layer on a tensor; missing sides are 1, further ones are merged.

    Args:
        op: Key of the op.
        shape: Shape of the tensor; a single dimension is channels.
        parameters: Further fields, and the name.

    Raises:
        UsageError: The layer is invalid.
    """
    return build_layer(op, **(parameters | image_sizes(shape)))


def in_place(layer: Layer) -> Layer:
    """Return the layer whose result overwrites ``src``; the given layer if there is none."""
    op, shapes = OPS.get(layer.entry.key + IN_PLACE), layer.shapes()
    if op is None or shapes["src"] != shapes["dst"]:
        return layer
    return op.build(layer.name, **layer.independent_fields)


def out_of_place(layer: Layer) -> Layer:
    """Return the layer whose result does not overwrite ``src``."""
    key = layer.entry.key.removesuffix(IN_PLACE)
    return (
        layer if key == layer.entry.key else OPS[key].build(layer.name, **layer.independent_fields)
    )


def read_layer(data: Mapping[str, Any]) -> Layer:
    """Return the layer of :meth:`~pydlbench.ops.op.Layer.to_dict`.

    Raises:
        UsageError: The mapping is not a layer.
    """
    fields = dict(data)
    return build_layer(fields.pop("op"), name=fields.pop("name", None), **fields)
