"""All kinds of layers, and the one name for them."""

from __future__ import annotations

from typing import Final, TypeAlias, get_args

from pydlbench.layers.conv import Conv2d
from pydlbench.layers.deconv import Deconv2d
from pydlbench.layers.elementwise import Elementwise
from pydlbench.layers.gather import Gather
from pydlbench.layers.gemm import Gemm
from pydlbench.layers.move import Move
from pydlbench.layers.pointwise import Pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.layers.recurrent import Recurrent
from pydlbench.layers.reduction import Reduction
from pydlbench.layers.resize import Resize
from pydlbench.layers.tensors import Tensors

#: Every kind there is. One whose descriptors others would take for theirs stands before these.
Layer: TypeAlias = (
    Gemm
    | Deconv2d
    | Recurrent
    | Elementwise
    | Reduction
    | Move
    | Gather
    | Resize
    | Pointwise
    | Conv2d
    | Pool2d
)

#: The same by name.
KINDS: Final[dict[str, type[Layer]]] = {kind.kind: kind for kind in get_args(Layer)}

#: Kinds whose layers pass values on rather than compute: memory bounds them.
MEMORY_BOUND: Final = frozenset(
    name for name, kind in KINDS.items() if issubclass(kind, (Pointwise, Resize, Tensors))
)

#: Bytes of one stored element, by precision.
ITEM_BYTES: Final[dict[str, int]] = {
    "fp32": 4,
    "tf32": 4,
    "fp16": 2,
    "fp16-tc": 2,
    "bf16": 2,
    "bf16-tc": 2,
    "fp8-tc": 1,
}


def result_role(layer: Layer, pass_: str) -> str:
    """Return the role of the main tensor that a pass writes; a gradient has its tensor's name."""
    return layer.writes(pass_)[0]
