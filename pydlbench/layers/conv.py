"""Two-dimensional convolution: sizes, FLOPs and least bytes of its three passes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import (
    Product,
    check_pass,
    check_total,
    elements,
    malformed,
    pair,
    set_integers,
)
from pydlbench.layers.window import (
    Axis,
    Padding,
    extent,
    looks_like_windows,
    output_size,
    read_fields,
    read_padding,
    read_windows,
    settle_padding,
    spatial_fields,
)

__all__ = ["Conv2d", "check_groups"]


class Grouped(Protocol):
    """A layer whose channels are in groups."""

    @property
    def in_channels(self) -> int:
        """Input channels over all groups."""

    @property
    def out_channels(self) -> int:
        """Output channels over all groups."""

    @property
    def groups(self) -> int:
        """Groups of channels that do not see one another."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2d(Product):
    """A convolution (cross-correlation) of ``batch`` images, without bias.

    ``dst[n, oc, oh, ow] = sum over ic, kh, kw of weights[oc, ic, kh, kw] *
    src[n, group(oc) + ic, oh * stride - pad + kh * dilation, ...]``, with NCHW source
    ``(batch, in_channels, in_height, in_width)`` and weights
    ``(out_channels, in_channels / groups, kernel_height, kernel_width)``.

    Padding may differ on the four sides. A trailing pad (bottom, right) whose last positions no
    output reads is replaced by the one that :func:`~pydlbench.layers.window.trailing_pad` picks,
    so that layers computing the same are equal.

    Raises:
        UsageError: A size below its least value, channels that ``groups`` does not divide, a kernel
            larger than the padded input, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "conv2d"

    batch: int
    in_channels: int
    in_height: int
    in_width: int
    out_channels: int
    kernel_height: int
    kernel_width: int
    stride_height: int = 1
    stride_width: int = 1
    pad_top: int = 0
    pad_bottom: int = 0
    pad_left: int = 0
    pad_right: int = 0
    dilation_height: int = 1
    dilation_width: int = 1
    groups: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field, then settle the trailing pads."""
        set_integers(self, 1, "batch", "in_channels", "in_height", "in_width", "out_channels")
        set_integers(self, 1, "kernel_height", "kernel_width", "stride_height", "stride_width")
        set_integers(self, 1, "dilation_height", "dilation_width", "groups")
        set_integers(self, 0, "pad_top", "pad_bottom", "pad_left", "pad_right")
        check_groups(self)
        settle_padding(self, self._window_height, self._window_width)
        check_total(**elements(self.shapes()))

    @classmethod
    def of(
        cls,
        *,
        batch: int,
        in_channels: int,
        in_size: int | tuple[int, int],
        out_channels: int,
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        dilation: int | tuple[int, int] = 1,
        groups: int = 1,
        name: str | None = None,
    ) -> Self:
        """Build a convolution from numbers or (height, width) pairs.

        Args:
            batch: Images.
            in_channels: Input channels over all groups.
            in_size: Input height and width.
            out_channels: Output channels over all groups.
            kernel: Taps of the window.
            stride: Input positions from one output to the next.
            padding: One number, (height, width), or (top, bottom, left, right).
            dilation: Input positions from one tap to the next; 1 is dense.
            groups: Groups of channels that do not see one another.
            name: How to call the layer in tables.
        """
        in_height, in_width = pair(in_size, "in_size")
        kernel_height, kernel_width = pair(kernel, "kernel")
        stride_height, stride_width = pair(stride, "stride")
        dilation_height, dilation_width = pair(dilation, "dilation")
        top, bottom, left, right = read_padding(padding)
        return cls(
            batch=batch,
            in_channels=in_channels,
            in_height=in_height,
            in_width=in_width,
            out_channels=out_channels,
            kernel_height=kernel_height,
            kernel_width=kernel_width,
            stride_height=stride_height,
            stride_width=stride_width,
            pad_top=top,
            pad_bottom=bottom,
            pad_left=left,
            pad_right=right,
            dilation_height=dilation_height,
            dilation_width=dilation_width,
            groups=groups,
            name=name,
        )

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        padding = self.pad_top, self.pad_bottom
        return output_size(self.in_height, self._window_height, self.stride_height, *padding)

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        padding = self.pad_left, self.pad_right
        return output_size(self.in_width, self._window_width, self.stride_width, *padding)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by role; images are NCHW.

        Weights are ``(out_channels, in_channels / groups, kernel_height, kernel_width)``.
        """
        kernel = self.kernel_height, self.kernel_width
        return {
            "src": (self.batch, self.in_channels, self.in_height, self.in_width),
            "weights": (self.out_channels, self.in_channels // self.groups, *kernel),
            "dst": (self.batch, self.out_channels, self.out_height, self.out_width),
        }

    def other_shapes(self, role: str) -> tuple[tuple[int, ...], ...]:
        """Return that of weights with an axis for their groups in front."""
        if role != "weights":
            return ()
        return ((self.groups, self.out_channels // self.groups, *self.shapes()[role][1:]),)

    def problem_fields(self) -> dict[str, Any]:
        """Return all sizes, those of the output among them."""
        return {
            "batch": self.batch,
            "in_channels": self.in_channels,
            "in_height": self.in_height,
            "in_width": self.in_width,
            "out_channels": self.out_channels,
            "out_height": self.out_height,
            "out_width": self.out_width,
            "kernel_height": self.kernel_height,
            "kernel_width": self.kernel_width,
            "stride_height": self.stride_height,
            "stride_width": self.stride_width,
            "pad_top": self.pad_top,
            "pad_bottom": self.pad_bottom,
            "pad_left": self.pad_left,
            "pad_right": self.pad_right,
            "dilation_height": self.dilation_height,
            "dilation_width": self.dilation_width,
            "groups": self.groups,
        }

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:
        """Whether a descriptor is fields with ``oc``, or without where nobody said how to pool."""
        fields, _, _ = text.partition("n")
        return looks_like_windows(text) and ("oc" in fields or pool is None)

    @classmethod
    def parse(cls, text: str, batch: int, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``mb128ic192ih13oc384oh13kh3ph1``."""
        fields, name = read_fields(text)
        if "oc" not in fields:
            expected = "expected oc (convolution), or --pool max or --pool avg"
            raise malformed(len(text), expected, "")
        return cls(
            **read_windows(fields),
            batch=fields.get("mb", batch),
            in_channels=fields["ic"],
            out_channels=fields["oc"],
            dilation_height=fields.get("dh", 0) + 1,
            dilation_width=fields.get("dw", 0) + 1,
            groups=fields.get("g", 1),
            name=name,
        )

    @property
    def problem(self) -> str:
        """The canonical descriptor, as benchdnn reads it: ``mb128ic192ih13oc384oh13kh3ph1``."""
        groups = f"g{self.groups}" if self.groups > 1 else ""
        spatial = spatial_fields(
            self,
            channels=f"oc{self.out_channels}",
            windows=(self._window_height, self._window_width),
            dilations=(self.dilation_height - 1, self.dilation_width - 1),
        )
        return f"{groups}mb{self.batch}ic{self.in_channels}{spatial}"

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of images."""
        return replace(self, batch=batch)

    def flops(self, pass_: str) -> int:
        """Return the algorithmic FLOPs: two per multiply-add, with padded taps counted."""
        check_pass(pass_, self.passes, self.kind)
        taps = self.out_height * self.kernel_height * self.out_width * self.kernel_width
        return 2 * self._channel_pairs * taps

    def flops_executed(self, pass_: str) -> int:
        """Return the FLOPs that a direct kernel must do: those of taps on padding left out."""
        check_pass(pass_, self.passes, self.kind)
        return 2 * self._channel_pairs * self._rows().taps() * self._columns().taps()

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: what is read once, and the result written once.

        Only what the result depends on is read (a 1x1 kernel with stride 2 reads a quarter of its
        source), but the result is written whole: backward-data zeroes what no output saw.

        Args:
            pass_: One of :attr:`passes`.
            itemsize: Bytes per element, of all three tensors.
        """
        check_pass(pass_, self.passes, self.kind)
        rows, columns = self._rows(), self._columns()
        whole = elements(self.shapes())
        channels = self.batch * self.in_channels
        src = channels * rows.touched_inputs() * columns.touched_inputs()
        filters = self.out_channels * (self.in_channels // self.groups)
        weights = filters * rows.used_taps() * columns.used_taps()
        channels = self.batch * self.out_channels
        dst = channels * rows.used_outputs() * columns.used_outputs()
        moved = {
            "forward": src + weights + whole["dst"],
            "backward-data": whole["src"] + weights + dst,
            "backward-weights": src + whole["weights"] + dst,
        }
        return itemsize * moved[pass_]

    @property
    def _window_height(self) -> int:
        return extent(self.kernel_height, self.dilation_height)

    @property
    def _window_width(self) -> int:
        return extent(self.kernel_width, self.dilation_width)

    @property
    def _channel_pairs(self) -> int:
        """Multiply-adds per tap: every output channel meets the input channels of its group."""
        return self.batch * self.out_channels * (self.in_channels // self.groups)

    def _rows(self) -> Axis:
        return Axis(
            size=self.in_height,
            out=self.out_height,
            kernel=self.kernel_height,
            stride=self.stride_height,
            dilation=self.dilation_height,
            pad=self.pad_top,
        )

    def _columns(self) -> Axis:
        return Axis(
            size=self.in_width,
            out=self.out_width,
            kernel=self.kernel_width,
            stride=self.stride_width,
            dilation=self.dilation_width,
            pad=self.pad_left,
        )


def check_groups(layer: Grouped) -> None:
    """Refuse groups that do not divide the channels.

    Raises:
        UsageError: With the nearest number that does.
    """
    for field in ("in_channels", "out_channels"):
        channels = getattr(layer, field)
        if channels % layer.groups:
            nearest = _nearest_divisor(layer.in_channels, layer.out_channels, layer.groups)
            raise UsageError(
                f"groups={layer.groups}: does not divide {field}={channels}; nearest: {nearest}"
            )


def _nearest_divisor(in_channels: int, out_channels: int, groups: int) -> int:
    """Return the number of groups closest to the one asked for that divides both channels."""
    for distance in range(1, min(groups, 4096)):
        for candidate in (groups - distance, groups + distance):
            if in_channels % candidate == 0 and out_channels % candidate == 0:
                return candidate
    return 1
