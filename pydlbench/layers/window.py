"""Sliding windows: what layers with windows share, the counting of taps along one axis, padding.

Also how such layers are written in benchdnn's manner, and read.
"""

from __future__ import annotations

import abc
import math
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import (
    PASSES,
    Kind,
    check_pass,
    check_total,
    elements,
    malformed,
    pair,
    read_name,
    read_number,
    set_integers,
)

if TYPE_CHECKING:
    from collections.abc import Sequence


# -----------------------------------------------------------------------------
# Counting along one spatial axis of a sliding window, in closed form.
#
# Output ``o`` and kernel tap ``k`` meet at input position ``o * stride + k * dilation - pad``.
# Which of these pairs meet a real element (and not padding) decides how much a direct kernel
# computes, and which distinct elements they meet decides how much it must read. Everything in two
# dimensions is a product of two such axes. The counts take O(log size) steps, so absurd sizes cost
# nothing either.


def extent(kernel: int, dilation: int) -> int:
    """Return the input positions that a window spans: ``(kernel - 1) * dilation + 1``."""
    return (kernel - 1) * dilation + 1


def output_size(size: int, window: int, stride: int, leading: int, trailing: int) -> int:
    """Return how many windows fit into ``size`` elements with padding on both ends."""
    return (size + leading + trailing - window) // stride + 1


def trailing_pad(size: int, window: int, stride: int, leading: int, out: int) -> int:
    """Return the one trailing pad that stands for all those giving ``out`` outputs.

    With a stride above one several trailing pads give the same outputs, because the last few
    positions are not read. The symmetric pad is taken where it is one of them, else the smallest:
    two layers that compute the same are then equal, and have one descriptor.
    """
    if output_size(size, window, stride, leading, leading) == out:
        return leading
    return max(0, (out - 1) * stride + window - size - leading)


@dataclass(frozen=True, slots=True, kw_only=True)
class Axis:
    """One spatial axis of a convolution or pooling.

    Attributes:
        size: Input elements, without padding.
        out: Output elements.
        kernel: Taps of the window.
        stride: Input positions from one output to the next.
        dilation: Input positions from one tap to the next; 1 is dense.
        pad: Padding before the first element.
    """

    size: int
    out: int
    kernel: int
    stride: int
    dilation: int
    pad: int

    def taps(self) -> int:
        """Return the (output, tap) pairs that meet an input element and not padding."""
        return self._pairs(self.out, self.kernel, 0)

    def elements_inside(self) -> list[int]:
        """Return how many input elements each output's window spans, the rest being padding."""
        starts = (index * self.stride - self.pad for index in range(self.out))
        window = extent(self.kernel, self.dilation)
        return [min(start + window, self.size) - max(start, 0) for start in starts]

    def touched_inputs(self) -> int:
        """Return the distinct input elements that some output reads.

        The pairs (o, k) and (o + dilation/g, k - stride/g), with g = gcd(stride, dilation), meet
        the same element, and only such pairs do. The pairs of one element are thus a chain, which
        has one link fewer than it has members: elements = pairs - links.
        """
        common = math.gcd(self.stride, self.dilation)
        links = self._pairs(
            self.out - self.dilation // common,
            self.kernel - self.stride // common,
            self.stride * self.dilation // common,
        )
        return self.taps() - links

    def used_outputs(self) -> int:
        """Return the outputs that depend on at least one input element."""
        return self._used(self.out, self.stride, self.kernel, self.dilation)

    def used_taps(self) -> int:
        """Return the kernel taps that meet at least one input element."""
        return self._used(self.kernel, self.dilation, self.out, self.stride)

    def _pairs(self, outs: int, kernel: int, offset: int) -> int:
        """Count o < outs, k < kernel whose position, moved on by ``offset``, is an element."""
        first = self.pad - offset
        return _count_pairs(first + self.size - 1, outs, self.stride, kernel, self.dilation) - (
            _count_pairs(first - 1, outs, self.stride, kernel, self.dilation)
        )

    def _used(self, count: int, step: int, others: int, other_step: int) -> int:
        """Count a < count for which some b < others puts a*step + b*other_step on an element."""
        if self.size < other_step:
            # The steps of b are wider than the input, so at most one b meets it: count the pairs.
            return self._pairs(self.out, self.kernel, 0)
        # The steps of b cannot jump over the input, so only the two ends of its reach matter.
        last = min(count - 1, (self.pad + self.size - 1) // step)
        reach = self.pad - (others - 1) * other_step
        first = max(0, -(-reach // step))
        return max(0, last - first + 1)


def _count_pairs(limit: int, count_a: int, step_a: int, count_b: int, step_b: int) -> int:
    """Count 0 <= a < count_a, 0 <= b < count_b with ``a * step_a + b * step_b <= limit``."""
    if limit < 0 or count_a <= 0 or count_b <= 0:
        return 0
    rows = min(count_b, limit // step_b + 1)
    # For small b every a fits; beyond that, a runs up to (limit - b * step_b) // step_a.
    full = min(rows, max(0, (limit - (count_a - 1) * step_a) // step_b + 1))
    partial = rows - full
    smallest = limit - (rows - 1) * step_b
    return full * count_a + partial + _floor_sum(partial, step_a, step_b, smallest)


def _floor_sum(count: int, divisor: int, slope: int, start: int) -> int:
    """Return the sum of ``(slope * i + start) // divisor`` over 0 <= i < count.

    The points below a line, counted by exchanging the axes as Euclid's algorithm does; all
    arguments non-negative, ``divisor`` positive.
    """
    total = 0
    while count > 0:
        total += (slope // divisor) * (count * (count - 1) // 2) + (start // divisor) * count
        slope %= divisor
        start %= divisor
        top = slope * count + start
        count, start = divmod(top, divisor)
        divisor, slope = slope, divisor
        if divisor == 0:
            break
    return total


# -----------------------------------------------------------------------------
# Padding of the four sides: reading it, checking it against the window, making it canonical.

Padding = int | tuple[int, int] | tuple[int, int, int, int]


def spatial(
    in_size: int | tuple[int, int],
    kernel: int | tuple[int, int],
    stride: int | tuple[int, int],
    padding: Padding,
) -> dict[str, int]:
    """Return the fields of :class:`Windowed` that numbers or (height, width) pairs stand for.

    Args:
        in_size: Input height and width.
        kernel: Taps of the window.
        stride: Input positions from one output to the next.
        padding: One number, (height, width), or (top, bottom, left, right).

    Raises:
        UsageError: A sequence of another length.
    """
    found: dict[str, int] = {}
    for field, value in (("in", pair(in_size, "in_size")), ("kernel", pair(kernel, "kernel"))):
        found |= {f"{field}_height": value[0], f"{field}_width": value[1]}
    found["stride_height"], found["stride_width"] = pair(stride, "stride")
    sides = _read_padding(padding)
    return found | dict(zip(("pad_top", "pad_bottom", "pad_left", "pad_right"), sides, strict=True))


def _read_padding(padding: Padding) -> tuple[int, int, int, int]:
    """Read ``1``, ``(height, width)`` or ``(top, bottom, left, right)`` as the latter.

    Raises:
        UsageError: A sequence of another length.
    """
    if not isinstance(padding, (tuple, list)):
        return padding, padding, padding, padding
    if len(padding) == 2:
        return padding[0], padding[0], padding[1], padding[1]
    if len(padding) == 4:
        return padding
    raise UsageError(
        f"padding={padding!r}: expected a number, (height, width) or (top, bottom, left, right)"
    )


def _check_fit(side: str, window: int, size: int, leading: int, trailing: int) -> None:
    padded = size + leading + trailing
    if window > padded:
        raise UsageError(
            f"kernel {side} {window} (dilation included): larger than the padded input {side} "
            f"{padded}; at most {padded}"
        )


# -----------------------------------------------------------------------------
# What convolutions and poolings have in common.


@dataclass(frozen=True, slots=True, kw_only=True)
class Windowed(Kind):
    """A layer whose windows slide over NCHW images ``(batch, channels, height, width)``.

    Padding may differ on the four sides. A trailing pad (bottom, right) whose last positions no
    output reads is replaced by the one that :func:`trailing_pad` picks, so that layers computing
    the same are equal.

    Attributes:
        batch: Images.
        in_height: Rows of the input.
        in_width: Columns of the input.
        kernel_height: Taps of the window, downwards.
        kernel_width: Taps of the window, across.
        stride_height: Input rows from one output to the next.
        stride_width: Input columns from one output to the next.
        pad_top: Padding above.
        pad_bottom: Padding below.
        pad_left: Padding on the left.
        pad_right: Padding on the right.
        name: How to call the layer in tables.
    """

    passes: ClassVar[tuple[str, ...]] = PASSES

    batch: int
    in_height: int
    in_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int = 1
    stride_width: int = 1
    pad_top: int = 0
    pad_bottom: int = 0
    pad_left: int = 0
    pad_right: int = 0
    name: str | None = None

    @property
    @abc.abstractmethod
    def operations_per_tap(self) -> int:
        """Operations that all channels and images together spend on one tap of one output."""

    @property
    def dilations(self) -> tuple[int, int]:
        """Input positions from one tap to the next, downwards and across; 1 is dense."""
        return 1, 1

    @property
    def windows(self) -> tuple[int, int]:
        """Rows and columns that a window spans, dilation included."""
        down, across = self.dilations
        return extent(self.kernel_height, down), extent(self.kernel_width, across)

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        padding = self.pad_top, self.pad_bottom
        return output_size(self.in_height, self.windows[0], self.stride_height, *padding)

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        padding = self.pad_left, self.pad_right
        return output_size(self.in_width, self.windows[1], self.stride_width, *padding)

    def axes(self) -> tuple[Axis, Axis]:
        """Return the two axes of the windows: downwards and across."""
        rows = Axis(
            size=self.in_height,
            out=self.out_height,
            kernel=self.kernel_height,
            stride=self.stride_height,
            dilation=self.dilations[0],
            pad=self.pad_top,
        )
        columns = Axis(
            size=self.in_width,
            out=self.out_width,
            kernel=self.kernel_width,
            stride=self.stride_width,
            dilation=self.dilations[1],
            pad=self.pad_left,
        )
        return rows, columns

    def problem_fields(self) -> dict[str, Any]:
        """Return the fields that are no sides, and of each side what its windows do."""
        # Without arguments, super() does not find its class in a dataclass with slots.
        fields = Kind.problem_fields(self)
        pads = (self.pad_top, self.pad_left), (self.pad_bottom, self.pad_right)
        return side_fields(fields, self.axes(), *pads)

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of images."""
        return replace(self, batch=batch)

    def on_padded_images(self) -> Self:
        """Return the layer for images that have its padding on them already."""
        return replace(
            self,
            in_height=self.in_height + self.pad_top + self.pad_bottom,
            in_width=self.in_width + self.pad_left + self.pad_right,
            pad_top=0,
            pad_bottom=0,
            pad_left=0,
            pad_right=0,
        )

    def flops(self, pass_: str) -> int:
        """Return the algorithmic operations, with taps on padding counted.

        A multiply-add is two of them; a comparison or addition of a pooling is one.
        """
        check_pass(pass_, self.passes, self.kind)
        taps = self.out_height * self.kernel_height * self.out_width * self.kernel_width
        return self.operations_per_tap * taps

    def flops_executed(self, pass_: str) -> int:
        """Return the operations that a direct kernel must do: taps on padding are left out."""
        check_pass(pass_, self.passes, self.kind)
        rows, columns = self.axes()
        return self.operations_per_tap * rows.taps() * columns.taps()

    def spatial_fields(self, channels: str, *, transposed: bool = False) -> str:
        """Return ``ih13oc384oh13kh3ph1`` and the like, from the input height onwards.

        Both we and benchdnn read this form alike. benchdnn derives what a descriptor leaves out:
        width from height where no width is given at all, the leading pad from the output size. So
        only what both would derive is left out.

        Args:
            channels: What stands between input and output size: ``oc384``, or nothing for pooling.
            transposed: Whether the layer written is the transposed one: what it calls its input is
                the output of this one.
        """
        rows, columns = (
            {"i": axis.size, "o": axis.out, "k": axis.kernel, "s": axis.stride, "p": axis.pad}
            # benchdnn counts dilations from zero.
            | {"d": axis.dilation - 1}
            for axis in self.axes()
        )
        square = rows == columns
        omitted = [
            letter
            for letter, default in (("s", 1), ("p", 0), ("d", 0))
            if rows[letter] == columns[letter] == default
        ]
        if "p" in omitted and not (
            _says_no_pad(rows, self.windows[0]) and _says_no_pad(columns, self.windows[1])
        ):
            omitted.remove("p")
        if transposed:
            for sizes in (rows, columns):
                sizes["i"], sizes["o"] = sizes["o"], sizes["i"]
        text = ""
        for letter, height in rows.items():
            if letter not in omitted:
                text += f"{letter}h{height}" + ("" if square else f"{letter}w{columns[letter]}")
            if letter == "i":
                text += channels
        return text

    def _check_sizes(self) -> None:
        """Make plain ints of the fields that all layers with windows have.

        Raises:
            UsageError: A size is no whole number, or below its least value.
        """
        set_integers(self, 1, "batch", "in_height", "in_width")
        set_integers(self, 1, "kernel_height", "kernel_width", "stride_height", "stride_width")
        set_integers(self, 0, "pad_top", "pad_bottom", "pad_left", "pad_right")

    def _settle_padding(self) -> None:
        """Put the canonical trailing pads in; all fields are checked by now.

        Raises:
            UsageError: A kernel larger than the padded input, or tensors of 2**63 bytes and more.
        """
        height, width = self.windows
        _check_fit("height", height, self.in_height, self.pad_top, self.pad_bottom)
        _check_fit("width", width, self.in_width, self.pad_left, self.pad_right)
        rows, columns = self.axes()
        bottom = trailing_pad(rows.size, height, rows.stride, rows.pad, rows.out)
        right = trailing_pad(columns.size, width, columns.stride, columns.pad, columns.out)
        object.__setattr__(self, "pad_bottom", bottom)
        object.__setattr__(self, "pad_right", right)
        check_total(**elements(self.shapes()))


def side_fields(
    fields: dict[str, Any],
    axes: Sequence[Axis],
    pad_before: tuple[int, ...],
    pad_after: tuple[int, ...],
) -> dict[str, Any]:
    """Return the fields of a native problem: those without sides, and a list for each of theirs.

    Args:
        fields: All fields of a layer.
        axes: Its axes, the outermost first.
        pad_before: The leading pads in their order.
        pad_after: The trailing pads in their order.
    """
    ends = ("_height", "_width", "_top", "_bottom", "_left", "_right")
    return {name: value for name, value in fields.items() if not name.endswith(ends)} | {
        "in_size": [axis.size for axis in axes],
        "out_size": [axis.out for axis in axes],
        "kernel": [axis.kernel for axis in axes],
        "stride": [axis.stride for axis in axes],
        "dilation": [axis.dilation for axis in axes],
        "pad_before": list(pad_before),
        "pad_after": list(pad_after),
    }


def derived_pad(size: int, window: int, stride: int, out: int) -> int:
    """Return the leading pad that follows from the output size: the smaller half of the total."""
    return max(0, (out - 1) * stride + window - size) // 2


def _says_no_pad(side: dict[str, int], window: int) -> bool:
    """Whether benchdnn derives a pad of zero from this side's sizes (it may derive less)."""
    return abs((side["o"] - 1) * side["s"] + window - side["i"]) <= 1


# -----------------------------------------------------------------------------
# Reading a layer's spatial fields, in any order and with widths left out.
#
# Fields are a letter pair and a number each, in any order, ``_`` ignored: ``g`` groups, ``mb``
# batch, ``ic`` ``oc`` channels over all groups, then for height and width input ``ih`` ``iw``,
# output ``oh`` ``ow``, kernel ``kh`` ``kw``, stride ``sh`` ``sw``, leading pad ``ph`` ``pw``,
# dilation ``dh`` ``dw`` (0 is dense), and a name ``n"..."`` at the end. A missing width takes the
# height's value. With an output size the trailing pad follows from it, and the leading one too if
# it is not given (the smaller half); without, padding is symmetric.

_FIELDS: Final = (
    *("g", "mb", "ic", "ih", "iw", "oc", "oh", "ow"),
    *("kh", "kw", "sh", "sw", "ph", "pw", "dh", "dw"),
)
_MEANINGS: Final = {
    "ic": "channels",
    "ih": "height",
    "oc": "channels of the result",
    "oh": "height of the result",
    "kh": "kernel height",
}
_MAY_BE_ZERO: Final = ("ph", "pw", "dh", "dw")
_START: Final = re.compile(
    rf"mb|_*(?:{'|'.join(_FIELDS)}|id|od|kd|sd|pd|dd)_*-?[0-9]|.*[0-9]:[0-9]"
)


def looks_like_windows(text: str) -> bool:
    """Whether a text, perhaps a malformed one, is such fields."""
    return not text[:1].isdecimal() and _START.match(text) is not None


def read_fields(
    text: str, position: int = 0, needed: Sequence[str] = ("ic", "ih", "kh")
) -> tuple[dict[str, int], str | None]:
    """Split a descriptor into its fields and its name, widths filled in.

    Args:
        text: The descriptor.
        position: Where its fields begin.
        needed: Fields that it has to have.

    Raises:
        UsageError: Malformed, with the position, or without what every window has.
    """
    fields, name = _scan(text, position)
    for field in needed:
        if field not in fields:
            expected = f"expected {field} ({_MEANINGS[field]}), which is missing"
            raise malformed(len(text), expected, "")
    return _fill_in_widths(fields), name


def read_windows(fields: dict[str, int]) -> dict[str, int]:
    """Return the spatial fields of a layer from those of a descriptor, with padding worked out.

    Raises:
        UsageError: An output size that does not follow from the others.
    """
    height, width = _side(fields, "h"), _side(fields, "w")
    return {
        "in_height": fields["ih"],
        "in_width": fields["iw"],
        "kernel_height": fields["kh"],
        "kernel_width": fields["kw"],
        "stride_height": fields.get("sh", 1),
        "stride_width": fields.get("sw", 1),
        "pad_top": height[0],
        "pad_bottom": height[1],
        "pad_left": width[0],
        "pad_right": width[1],
    }


def _scan(text: str, position: int) -> tuple[dict[str, int], str | None]:
    """Split a descriptor into its fields and its name, as they are there."""
    fields: dict[str, int] = {}
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


def _fill_in_widths(fields: dict[str, int]) -> dict[str, int]:
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


def _side(fields: dict[str, int], side: str) -> tuple[int, int]:
    """Work out the two pads of one side from its fields."""
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
    return leading, trailing
