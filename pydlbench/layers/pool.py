"""Two-dimensional max and average pooling: sizes, operations and least bytes."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import Kind, check_pass, check_total, elements, pair, set_integers
from pydlbench.layers.window import (
    Axis,
    Padding,
    looks_like_windows,
    output_size,
    read_fields,
    read_padding,
    read_windows,
    settle_padding,
    spatial_fields,
)

__all__ = ["Pool2d"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool2d(Kind):
    """Max or average over windows of each channel, NCHW ``(batch, channels, height, width)``.

    Padding never wins a maximum. An average divides by the elements inside the input, or by the
    whole window with ``count_include_pad``. Padding may differ on the four sides; as in
    :class:`~pydlbench.layers.conv.Conv2d`, trailing pads that no output reads are made canonical.

    Raises:
        UsageError: A size below its least value, another mode, a kernel larger than the padded
            input, padding not smaller than the kernel, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "pool2d"
    passes: ClassVar[tuple[str, ...]] = ("forward", "backward-data")

    batch: int
    channels: int
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
    mode: str = "max"
    count_include_pad: bool = False
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field, then settle the trailing pads."""
        set_integers(self, 1, "batch", "channels", "in_height", "in_width")
        set_integers(self, 1, "kernel_height", "kernel_width", "stride_height", "stride_width")
        set_integers(self, 0, "pad_top", "pad_bottom", "pad_left", "pad_right")
        if self.mode not in ("max", "avg"):
            raise UsageError(f"mode={self.mode!r}: no such pooling; nearest: max, avg")
        if self.count_include_pad and self.mode == "max":
            raise UsageError("count_include_pad=True: a maximum counts nothing; nearest: mode avg")
        for field, kernel in (
            ("pad_top", self.kernel_height),
            ("pad_bottom", self.kernel_height),
            ("pad_left", self.kernel_width),
            ("pad_right", self.kernel_width),
        ):
            # Else some window would hold nothing but padding, and its result would be undefined.
            if getattr(self, field) >= kernel:
                raise UsageError(
                    f"{field}={getattr(self, field)}: not smaller than the pooling kernel "
                    f"{kernel}; at most {kernel - 1}"
                )
        settle_padding(self, self.kernel_height, self.kernel_width)
        check_total(**elements(self.shapes()))

    def elements_inside(self) -> tuple[list[int], list[int]]:
        """Return how many rows of the image each row of windows holds, and so for columns.

        A window holds as many elements as the product of its two numbers; the rest is padding.
        """

        def along(size: int, out: int, kernel: int, stride: int, pad: int) -> list[int]:
            starts = (index * stride - pad for index in range(out))
            return [min(start + kernel, size) - max(start, 0) for start in starts]

        height, width = self.in_height, self.in_width
        return (
            along(height, self.out_height, self.kernel_height, self.stride_height, self.pad_top),
            along(width, self.out_width, self.kernel_width, self.stride_width, self.pad_left),
        )

    @classmethod
    def of(
        cls,
        *,
        batch: int,
        channels: int,
        in_size: int | tuple[int, int],
        kernel: int | tuple[int, int],
        stride: int | tuple[int, int] = 1,
        padding: Padding = 0,
        mode: str = "max",
        count_include_pad: bool = False,
        name: str | None = None,
    ) -> Self:
        """Build a pooling from numbers or (height, width) pairs.

        Args:
            batch: Images.
            channels: Channels.
            in_size: Input height and width.
            kernel: Elements of the window.
            stride: Input positions from one output to the next.
            padding: One number, (height, width), or (top, bottom, left, right).
            mode: ``max`` or ``avg``.
            count_include_pad: Whether an average divides by padded positions too.
            name: How to call the layer in tables.
        """
        in_height, in_width = pair(in_size, "in_size")
        kernel_height, kernel_width = pair(kernel, "kernel")
        stride_height, stride_width = pair(stride, "stride")
        top, bottom, left, right = read_padding(padding)
        return cls(
            batch=batch,
            channels=channels,
            in_height=in_height,
            in_width=in_width,
            kernel_height=kernel_height,
            kernel_width=kernel_width,
            stride_height=stride_height,
            stride_width=stride_width,
            pad_top=top,
            pad_bottom=bottom,
            pad_left=left,
            pad_right=right,
            mode=mode,
            count_include_pad=count_include_pad,
            name=name,
        )

    @property
    def out_height(self) -> int:
        """Rows of the output."""
        padding = self.pad_top, self.pad_bottom
        return output_size(self.in_height, self.kernel_height, self.stride_height, *padding)

    @property
    def out_width(self) -> int:
        """Columns of the output."""
        padding = self.pad_left, self.pad_right
        return output_size(self.in_width, self.kernel_width, self.stride_width, *padding)

    @property
    def weight_elements(self) -> int:
        """Zero: pooling has no weights."""
        return 0

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by role, NCHW."""
        return {
            "src": (self.batch, self.channels, self.in_height, self.in_width),
            "dst": (self.batch, self.channels, self.out_height, self.out_width),
        }

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the roles of what a pass reads: maxima are found in the source again."""
        check_pass(pass_, self.passes, self.kind)
        if pass_ == "forward":
            return ("src",)
        return ("src", "dst") if self.mode == "max" else ("dst",)

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the role of what a pass writes."""
        check_pass(pass_, self.passes, self.kind)
        return ("dst",) if pass_ == "forward" else ("src",)

    def problem_fields(self) -> dict[str, Any]:
        """Return all sizes, those of the output among them; what is computed is no size."""
        return {
            "batch": self.batch,
            "channels": self.channels,
            "in_height": self.in_height,
            "in_width": self.in_width,
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
        }

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:
        """Whether a descriptor is fields without ``oc``, and a user said how to pool."""
        fields, _, _ = text.partition("n")
        return looks_like_windows(text) and "oc" not in fields and pool is not None

    @classmethod
    def parse(cls, text: str, batch: int, pool: str | None) -> Self:
        """Read ``mb128ic64ih56oh27kh3sh2``."""
        fields, name = read_fields(text)
        windows = read_windows(fields)
        if fields.get("g", 1) != 1 or fields.get("dh", 0) or fields.get("dw", 0):
            raise UsageError("pooling (no oc) has neither groups nor dilation; nearest: g1, dh0")
        return cls(
            **windows,
            batch=fields.get("mb", batch),
            channels=fields["ic"],
            mode="max" if pool == "max" else "avg",
            count_include_pad=pool == "avg_p",
            name=name,
        )

    @property
    def problem(self) -> str:
        """The canonical descriptor, without the mode: ``mb128ic64ih56oh27kh3sh2``."""
        windows = self.kernel_height, self.kernel_width
        spatial = spatial_fields(self, channels="", windows=windows)
        return f"mb{self.batch}ic{self.channels}{spatial}"

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of images."""
        return replace(self, batch=batch)

    def flops(self, pass_: str) -> int:
        """Return the algorithmic operations: one comparison or addition per tap, padded or not."""
        check_pass(pass_, self.passes, self.kind)
        taps = self.out_height * self.kernel_height * self.out_width * self.kernel_width
        return self.batch * self.channels * taps

    def flops_executed(self, pass_: str) -> int:
        """Return the operations of a direct kernel: taps on padding left out."""
        check_pass(pass_, self.passes, self.kind)
        rows, columns = self._axes()
        return self.batch * self.channels * rows.taps() * columns.taps()

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: what is read once, and the result written once.

        The positions of the maxima, which a library keeps for the backward pass in a format of its
        own, are not counted.

        Args:
            pass_: ``forward`` or ``backward-data``.
            itemsize: Bytes per element.
        """
        check_pass(pass_, self.passes, self.kind)
        whole = elements(self.shapes())
        rows, columns = self._axes()
        touched = self.batch * self.channels * rows.touched_inputs() * columns.touched_inputs()
        moved = {
            "forward": touched + whole["dst"],
            # Each output has a tap on an element, so every gradient is read.
            "backward-data": whole["dst"] + whole["src"],
        }
        return itemsize * moved[pass_]

    def operands(self, pass_: str) -> dict[str, int]:
        """Return the elements of each whole tensor by role; gradients go by the same names."""
        check_pass(pass_, self.passes, self.kind)
        return elements(self.shapes())

    def _axes(self) -> tuple[Axis, Axis]:
        rows = Axis(
            size=self.in_height,
            out=self.out_height,
            kernel=self.kernel_height,
            stride=self.stride_height,
            dilation=1,
            pad=self.pad_top,
        )
        columns = Axis(
            size=self.in_width,
            out=self.out_width,
            kernel=self.kernel_width,
            stride=self.stride_width,
            dilation=1,
            pad=self.pad_left,
        )
        return rows, columns
