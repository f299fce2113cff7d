"""Reading problems written as text, in benchdnn's manner."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

from pydlbench.errors import UsageError, nearest
from pydlbench.layers.base import malformed, read_name, read_number
from pydlbench.layers.conv import Conv2d
from pydlbench.layers.gemm import parse_matmul
from pydlbench.layers.pointwise import looks_like_pointwise, parse_pointwise
from pydlbench.layers.pool import Pool2d
from pydlbench.layers.window import derived_pad, extent, output_size

if TYPE_CHECKING:
    from pydlbench.layers.layer import Layer

__all__ = ["POOL_MODES", "check_pool", "looks_like_problem", "parse_problem"]

"""Reading problems written as text, in benchdnn's manner.

Convolution and pooling are fields, a letter pair and a number each, in any order, ``_`` ignored:
``g`` groups, ``mb`` batch, ``ic`` ``oc`` channels over all groups, then for height and width input
``ih`` ``iw``, output ``oh`` ``ow``, kernel ``kh`` ``kw``, stride ``sh`` ``sw``, leading pad ``ph``
``pw``, dilation ``dh`` ``dw`` (0 is dense), and a name ``n"..."`` at the end. Without ``oc`` it is
pooling. A missing width takes the height's value. With an output size the trailing pad follows from
it, and the leading one too if it is not given (the smaller half); without, padding is symmetric.

Matrix products are ``MxK:KxN`` or ``BxMxK:BxKxN``; see :mod:`pydlbench.layers.gemm`.
Memory-bound layers are ``relu:mb128ic96ih55``; see :mod:`pydlbench.layers.pointwise`.
"""


#: What ``--pool`` takes: benchdnn's algorithms; ``avg`` is ``avg_np``, which leaves padding out.
POOL_MODES: Final = ("max", "avg", "avg_np", "avg_p")

_FIELDS: Final = (
    *("g", "mb", "ic", "ih", "iw", "oc", "oh", "ow"),
    *("kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw"),
)
_MAY_BE_ZERO: Final = ("ph", "pw", "dh", "dw")
_START: Final = re.compile(
    rf"_*(?:{'|'.join(_FIELDS)}|id|od|kd|sd|pd|dd)_*-?[0-9]|[0-9]|.*[0-9]:[0-9]"
)


def looks_like_problem(text: str) -> bool:
    """Whether ``text`` is a descriptor (perhaps a malformed one) rather than a layer's name."""
    if looks_like_pointwise(text):
        return True
    return text.startswith("mb") or _START.match(text) is not None


def check_pool(pool: str | None) -> None:
    """Refuse a pooling that does not exist.

    Raises:
        UsageError: Neither None nor one of :data:`POOL_MODES`.
    """
    if pool is not None and pool not in POOL_MODES:
        choices = nearest(pool, POOL_MODES) or list(POOL_MODES)
        raise UsageError(f"--pool {pool}: no such pooling; nearest: {', '.join(choices)}")


def parse_problem(text: str, *, batch: int | None = None, pool: str | None = None) -> Layer:
    """Read a descriptor.

    Args:
        text: ``mb128ic192ih13oc384oh13kh3ph1``, ``128x9216:9216x4096`` or ``relu:mb128ic96ih55``.
        batch: The batch where the descriptor has no ``mb``; 1 without either.
        pool: What pooling does where the descriptor has no ``oc``: one of :data:`POOL_MODES`.

    Raises:
        UsageError: Malformed (the message names the position, counted from 1), or a layer that
            cannot be.
    """
    check_pool(pool)
    try:
        if re.match(r"[0-9:]", text):
            return parse_matmul(text)
        if looks_like_pointwise(text):
            return parse_pointwise(text, batch=1 if batch is None else batch)
        fields, name = _scan(text)
        return _build(text, fields, name, 1 if batch is None else batch, pool)
    except UsageError as error:
        raise UsageError(f"{text}: {error}") from None


def _scan(text: str) -> tuple[dict[str, int], str | None]:
    """Split a descriptor into its fields and its name."""
    fields: dict[str, int] = {}
    position = 0
    while position < len(text):
        if text[position] == "_":
            position += 1
            continue
        if text[position] == "n":
            return fields, read_name(text, position)
        field = text[position] if text[position] == "g" else text[position : position + 2]
        if field in ("id", "od", "kd", "sd", "pd", "dd"):
            raise malformed(position, "expected a two-dimensional problem", field)
        if field not in _FIELDS:
            raise malformed(position, f"expected a field ({' '.join(_FIELDS)} n)", text[position:])
        if field in fields:
            raise malformed(position, f"expected {field} only once", text[position:])
        start = position + len(field)
        least = 0 if field in _MAY_BE_ZERO else 1
        fields[field], position = read_number(text, start, field, least)
    return fields, None


@dataclass(frozen=True, slots=True, kw_only=True)
class _Side:
    """One spatial side of a problem with its padding worked out."""

    size: int
    kernel: int
    stride: int
    leading: int
    trailing: int
    dilation: int


def _build(
    text: str, fields: dict[str, int], name: str | None, batch: int, pool: str | None
) -> Conv2d | Pool2d:
    end = len(text)
    for field, meaning in (("ic", "channels"), ("ih", "height"), ("kh", "kernel height")):
        if field not in fields:
            raise malformed(end, f"expected {field} ({meaning}), which is missing", "")
    height, width = _side(fields, "h"), _side(_width_fields(fields), "w")
    sizes = {
        "batch": fields.get("mb", batch),
        "in_height": height.size,
        "in_width": width.size,
        "kernel_height": height.kernel,
        "kernel_width": width.kernel,
        "stride_height": height.stride,
        "stride_width": width.stride,
        "pad_top": height.leading,
        "pad_bottom": height.trailing,
        "pad_left": width.leading,
        "pad_right": width.trailing,
    }
    if "oc" in fields:
        return Conv2d(
            **sizes,
            in_channels=fields["ic"],
            out_channels=fields["oc"],
            dilation_height=height.dilation,
            dilation_width=width.dilation,
            groups=fields.get("g", 1),
            name=name,
        )
    if pool is None:
        raise malformed(end, "expected oc (convolution), or --pool max or --pool avg", "")
    if fields.get("g", 1) != 1 or height.dilation != 1 or width.dilation != 1:
        raise UsageError("pooling (no oc) has neither groups nor dilation; nearest: g1, dh0")
    return Pool2d(
        **sizes,
        channels=fields["ic"],
        mode="max" if pool == "max" else "avg",
        count_include_pad=pool == "avg_p",
        name=name,
    )


def _width_fields(fields: dict[str, int]) -> dict[str, int]:
    """Fill in missing widths from the heights.

    The output height is taken over only where the width is alike in everything that determines it.
    """
    widths = dict(fields)
    alike = True
    for letter in "ikspd":
        height, width = f"{letter}h", f"{letter}w"
        if width in fields:
            alike = alike and fields[width] == fields.get(height)
        elif height in fields:
            widths[width] = fields[height]
    if "ow" not in fields and "oh" in fields and alike:
        widths["ow"] = fields["oh"]
    return widths


def _side(fields: dict[str, int], side: str) -> _Side:
    """Work out the padding of one side from its fields."""
    size, kernel = fields[f"i{side}"], fields[f"k{side}"]
    stride, dilation = fields.get(f"s{side}", 1), fields.get(f"d{side}", 0) + 1
    window = extent(kernel, dilation)
    leading, out = fields.get(f"p{side}"), fields.get(f"o{side}")
    if out is None:
        leading = trailing = leading or 0
    else:
        if leading is None:
            leading = derived_pad(size, window, stride, out)
        trailing = max(0, (out - 1) * stride + window - size - leading)
        actual = output_size(size, window, stride, leading, trailing)
        if actual != out:
            raise UsageError(
                f"o{side}{out}: does not follow from i{side}{size}, k{side}{kernel}, "
                f"s{side}{stride} and p{side}{leading}; nearest: o{side}{actual}"
            )
    return _Side(
        size=size,
        kernel=kernel,
        stride=stride,
        leading=leading,
        trailing=trailing,
        dilation=dilation,
    )
