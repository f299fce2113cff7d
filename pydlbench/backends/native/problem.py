"""The fields of a layer as the native modules take them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from pydlbench.errors import UnsupportedError

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer

_SIDES = ("height", "width")


def native_fields(layer: Layer) -> dict[str, Any]:
    """Return the fields of a native problem, a name for each side.

    Raises:
        UnsupportedError: Images of other than two sides, a dilated pooling, products of several
            batch dimensions.
    """
    if layer.kind == "attention":
        raise UnsupportedError("attention: there is no native kernel of it")
    fields = layer.problem_fields()
    if layer.sides != 2:
        raise UnsupportedError(f"{layer.kind}: there are native kernels of two sides only")
    if layer.op == "pool" and max(layer.dilation) > 1:
        raise UnsupportedError(f"{layer.problem}: there is no native dilated pooling")
    if layer.op == "gemm":
        if layer.broadcast or len(layer.src_batch) > 1:
            raise UnsupportedError(f"{layer.problem}: native products have one batch dimension")
        return {field: getattr(layer, field) for field in ("m", "k", "n", "batch_count")}
    fields = {field: value for field, value in fields.items() if field not in _NEW}
    for field in [one for one, value in fields.items() if isinstance(value, tuple)]:
        if field not in _SPELLED:
            continue
        value = fields.pop(field)
        if layer.op == "pool" and field == "dilation":
            continue
        fields |= dict(zip(_SPELLED[field], value, strict=True))
    return fields


_NEW = ("passes", "in_one_order")
_SPELLED = {
    **{
        field: tuple(f"{field.removesuffix('_size')}_{side}" for side in _SIDES)
        for field in ("in_size", "out_size", "kernel", "stride", "dilation")
    },
    "pad_before": ("pad_top", "pad_left"),
    "pad_after": ("pad_bottom", "pad_right"),
}
