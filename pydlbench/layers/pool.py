"""Two-dimensional max and average pooling: sizes, operations and least bytes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import check_pass, elements, set_integers
from pydlbench.layers.window import (
    Padding,
    Windowed,
    looks_like_windows,
    read_fields,
    read_windows,
    spatial,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Pool2d(Windowed):
    """Max or average over windows of each channel, NCHW ``(batch, channels, height, width)``.

    Padding never wins a maximum. An average divides by the elements inside the input, or by the
    whole window with ``count_include_pad``.

    Raises:
        UsageError: A size below its least value, another mode, a kernel larger than the padded
            input, padding not smaller than the kernel, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "pool2d"
    passes: ClassVar[tuple[str, ...]] = ("forward", "backward-data")

    channels: int
    mode: str = "max"
    count_include_pad: bool = False

    def __post_init__(self) -> None:
        """Check every field, then settle the trailing pads."""
        self._check_sizes()
        set_integers(self, 1, "channels")
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
        self._settle_padding()

    def elements_inside(self) -> tuple[list[int], list[int]]:
        """Return how many rows of the image each row of windows holds, and so for columns.

        A window holds as many elements as the product of its two numbers; the rest is padding.
        """
        rows, columns = self.axes()
        return rows.elements_inside(), columns.elements_inside()

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
        return cls(
            **spatial(in_size, kernel, stride, padding),
            batch=batch,
            channels=channels,
            mode=mode,
            count_include_pad=count_include_pad,
            name=name,
        )

    @property
    def operations_per_tap(self) -> int:
        """One comparison or addition for each channel of each image."""
        return self.batch * self.channels

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

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:
        """Whether a descriptor is fields without ``oc``, and a user said how to pool."""
        fields, _, _ = text.partition("n")
        return looks_like_windows(text) and "oc" not in fields and pool is not None

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:
        """Read ``mb128ic64ih56oh27kh3sh2``."""
        fields, name = read_fields(text)
        windows = read_windows(fields)
        if fields.get("g", 1) != 1 or fields.get("dh", 0) or fields.get("dw", 0):
            raise UsageError("pooling (no oc) has neither groups nor dilation; nearest: g1, dh0")
        return cls(
            **windows,
            batch=fields.get("mb", 1),
            channels=fields["ic"],
            mode="max" if pool == "max" else "avg",
            count_include_pad=pool == "avg_p",
            name=name,
        )

    @property
    def problem(self) -> str:
        """The canonical descriptor, without the mode: ``mb128ic64ih56oh27kh3sh2``."""
        return f"mb{self.batch}ic{self.channels}{self.spatial_fields('')}"

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
        rows, columns = self.axes()
        touched = self.batch * self.channels * rows.touched_inputs() * columns.touched_inputs()
        moved = {
            "forward": touched + whole["dst"],
            # Each output has a tap on an element, so every gradient is read.
            "backward-data": whole["dst"] + whole["src"],
        }
        return itemsize * moved[pass_]
