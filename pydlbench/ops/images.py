"""Fields, shapes and the constructor of memory-bound ops.

They work on NCHW images, on weight tensors of ``channels`` elements, which have neither batch nor
sides, or along the last axis (the width) of each row of each channel. A gradient has the role of
its tensor, and ``dst`` is the incoming one in backward passes.
"""

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

from pydlbench.errors import UsageError
from pydlbench.ops.op import Field, Layer, Op, Operands, Pass, Shape, Sizes

BATCH: Final = Field(name="batch", spelling="mb", default=1, shown=True)
_CHANNELS: Final = Field(name="channels", spelling="ic")
HEIGHT: Final = Field(name="height", spelling="ih", default=1)
WIDTH: Final = Field(name="width", spelling="iw", default=None)
_DEPTH: Final = Field(name="depth", spelling="id", default=1)
_NO_SIDES: Final = (
    Field(name="height", default=1, maximum=1),
    Field(name="width", default=1, maximum=1),
)
_NO_BATCH: Final = Field(name="batch", default=1, maximum=1)

_SIZES: Final = ("batch", "channels", "height", "width")
_IMAGES: Final = (BATCH, _CHANNELS, HEIGHT, WIDTH)
FLAT: Final = (BATCH, _CHANNELS, *_NO_SIDES)
WEIGHTS: Final = (_NO_BATCH, _CHANNELS, *_NO_SIDES)


def settle_width(values: dict[str, Any]) -> None:
    """Fill in a missing width with the height."""
    if values["width"] is None:
        values["width"] = values["height"]


def _shown(layer: Layer, field: Field) -> bool:
    if field.name == "height":
        return (layer.height, layer.width) != (1, 1)
    return field.name == "width" and layer.width != layer.height


def image_shape(layer: Layer) -> Shape:
    """Return the shape of the images."""
    return layer.batch, layer.channels, layer.height, layer.width


def in_images(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the shape of the images, or one element per channel."""
    return image_shape(layer) if role.startswith(("src", "dst", "result")) else (layer.channels,)


def in_rows(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the shape of the images, a row, or one element per row."""
    if role.startswith(("src", "dst", "result")):
        return image_shape(layer)
    if role in layer.entry.trained:
        return (layer.width,)
    return (layer.batch * layer.channels * layer.height,)


def in_weights(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: one number, or the weights."""
    return (1,) if role == "dst" else (layer.channels,)


def in_rows_of_logits(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the logits, the labels or the loss."""
    if role == "labels":
        return (layer.batch,)
    if role in layer.entry.exact:
        return (1,)
    return image_shape(layer)


def in_sources(layer: Layer, role: str) -> Shape:
    """Return the shape of a tensor: the result, or one of the concatenated images."""
    if role == "dst":
        return image_shape(layer)
    return layer.batch, layer.sources[int(role[3:] or 1) - 1], layer.height, layer.width


def _merge_depth(values: dict[str, Any]) -> None:
    """Merge depth and height; sides that are missing are as long as the depth."""
    if "depth" in values:
        depth = values.pop("depth")
        height = values.get("height", depth)
        values |= {"height": depth * height, "width": values.get("width", height)}


def image_sizes(shape: Sequence[int]) -> dict[str, int]:
    """Return the sizes of images with this shape; missing sides are 1, further ones are merged.

    A single dimension is channels.
    """
    batch, channels, *sides = shape if len(shape) > 1 else (1, *shape, *[1] * (1 - len(shape)))
    height = sides.pop(0) if len(sides) > 1 else 1
    return {"batch": batch, "channels": channels, "height": height, "width": math.prod(sides)}


def _read_images(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    return image_sizes([size for size, _ in tensors[0]])


def _read_rows(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    *outer, width = (size for size, _ in tensors[0])
    return {"channels": math.prod(outer), "width": width}


def _read_concat(_: Op, tensors: list[Sizes]) -> dict[str, Any]:
    images = [image_sizes([size for size, _ in tensor]) for tensor in tensors]
    sources = tuple(sizes.pop("channels") for sizes in images)
    if any(sizes != images[0] for sizes in images):
        raise UsageError("the sources differ in more than their channels; nearest: 2x3x7:2x5x7")
    return {**images[0], "sources": sources}


_SHAPE_READERS: Final[Mapping[Any, tuple[Any, int]]] = {
    in_rows: (_read_rows, 1),
    in_sources: (_read_concat, 1024),
}


def _roles(layer: Layer) -> dict[str, None]:
    """Return the roles of all tensors that some pass reads or writes."""
    passes = [*layer.entry.passes.values(), *filter(None, [layer.entry.training])]
    groups = (roles for step in passes for roles in (step.reads, step.writes))
    return {role: None for roles in groups for role in (roles(layer) if callable(roles) else roles)}


def pointwise_op(
    name: str,
    passes: dict[str, Pass],
    reference: Callable[..., Any],
    fields: tuple[Field, ...] = (),
    *,
    sizes: tuple[Field, ...] = _IMAGES,
    dims: Callable[[Layer, str], Shape] = in_images,
    settle: Callable[[dict[str, Any]], None] = settle_width,
    **options: Any,
) -> Op:
    """Return an op.

    Args:
        name: Name of the op.
        passes: Passes by name.
        reference: Function that computes the forward pass.
        fields: Fields besides the sizes.
        sizes: Fields that are sizes.
        dims: Returns the shape of a tensor by role.
        settle: Checks fields, and fills in missing ones.
        options: Further attributes of the op.
    """
    if sizes is WEIGHTS:
        options |= {"batch": None, "form": "weights"}
    else:
        options |= {"other_fields": (_DEPTH,), "merge": _merge_depth}
        read, maximum = _SHAPE_READERS.get(dims, (_read_images, 1))
        options["operands"] = Operands(minimum=0, maximum=maximum, read=read, write=lambda _: [])
    return Op(
        name=name,
        key=name,
        kind="pointwise",
        prefix=f"{name}:",
        fields=(*sizes, *fields),
        settle=settle,
        shown=_shown,
        shapes=lambda layer: {role: dims(layer, role) for role in _roles(layer)},
        passes=passes,
        reference=reference,
        memory_bound=True,
        native=lambda s: {
            "op": name,
            "passes": list(s.passes),
            "in_one_order": s.entry.in_one_order,
            **s.fields,
        },
        attributes={
            "parameters": lambda s: {
                name: value for name, value in s.fields.items() if name not in _SIZES
            },
        },
        **options,
    )


def per_channel(array: Any) -> Any:
    """Return one number per channel in a shape that broadcasts over images."""
    return array[:, None, None]
