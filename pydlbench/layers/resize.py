"""Images in another size: nearest and linear resampling."""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import Kind, check_pass, check_total, elements, malformed, set_integers
from pydlbench.layers.tensors import check_operator
from pydlbench.layers.window import read_fields

if TYPE_CHECKING:
    from collections.abc import Iterable

#: How an element of the result is made, by benchdnn's names.
RESIZES: Final = ("nearest", "linear")
_PREFIX: Final = "resize:"
_FIELDS: Final = ("mb", "ic", "ih", "oh", "iw", "ow")


@dataclass(frozen=True, slots=True, kw_only=True)
class Resize(Kind):
    """Images NCHW ``(batch, channels, height, width)`` in another size.

    Pixels are squares: the centre of output ``o`` lies at ``(o + 1/2) in / out`` of the source,
    where that of input ``i`` is at ``i + 1/2`` ("half-pixel centres").

    - ``nearest``: the pixel that the centre lies in, of two the latter.
    - ``linear``: the mean of the two pixels between whose centres it lies, weighted, along each
      side; beyond the outermost centres their values go on. Nothing is smoothed beforehand where
      the result is smaller.

    Sources: oneDNN's developer guide, "Resampling"; PyTorch's ``interpolate`` with
    ``nearest-exact``, and with ``bilinear`` and ``align_corners=False``.

    Attributes:
        mode: One of :data:`RESIZES`.
        batch: Images.
        channels: Channels.
        in_height: Rows of the source.
        in_width: Columns of the source.
        out_height: Rows of the result.
        out_width: Columns of the result.
        name: How to call the layer in tables.

    Raises:
        UsageError: No such mode, a size below one, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "resize"
    passes: ClassVar[tuple[str, ...]] = ("forward", "backward-data")

    mode: str
    batch: int
    channels: int
    in_height: int
    in_width: int
    out_height: int
    out_width: int
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        check_operator(self.mode, RESIZES)
        sizes = ("in_height", "in_width", "out_height", "out_width")
        set_integers(self, 1, "batch", "channels", *sizes)
        check_total(**elements(self.shapes()))

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of images."""
        return replace(self, batch=batch)

    @property
    def sides(self) -> tuple[tuple[int, int], tuple[int, int]]:
        """Sizes of source and result, of height and width."""
        return (self.in_height, self.out_height), (self.in_width, self.out_width)

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by role, NCHW."""
        return {
            "src": (self.batch, self.channels, self.in_height, self.in_width),
            "dst": (self.batch, self.channels, self.out_height, self.out_width),
        }

    def problem_fields(self) -> dict[str, Any]:
        """Return what there is without sides, and the sizes of each side."""
        fields = {field: getattr(self, field) for field in ("mode", "batch", "channels")}
        source, result = zip(*self.sides, strict=True)
        return fields | {"in_size": list(source), "out_size": list(result)}

    def reads(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the role of what a pass reads."""
        check_pass(pass_, self.passes, self.kind)
        return ("src",) if pass_ == "forward" else ("dst",)

    def writes(self, pass_: str, propagation: str = "inference") -> tuple[str, ...]:  # noqa: ARG002 - alike in both
        """Return the role of what a pass writes."""
        check_pass(pass_, self.passes, self.kind)
        return ("dst",) if pass_ == "forward" else ("src",)

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor begins with the kind and a colon."""
        return text.startswith(_PREFIX)

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``resize:linear:mb8ic64ih28oh56``; widths are the heights unless told."""
        mode, colon, _ = text[len(_PREFIX) :].partition(":")
        if not colon:
            raise malformed(len(text), "expected : and fields, such as mb8ic64ih28oh56", "")
        start = len(_PREFIX) + len(mode) + 1
        fields, name = read_fields(text, start, needed=("ic", "ih", "oh"))
        if others := [field for field in fields if field not in _FIELDS]:
            raise UsageError(f"{others[0]}: a resize has none; it has {', '.join(_FIELDS)}")
        if "ow" not in fields:
            raise malformed(len(text), "expected ow (width of the result), which is missing", "")
        return cls(
            mode=mode,
            batch=fields.get("mb", 1),
            channels=fields["ic"],
            in_height=fields["ih"],
            in_width=fields["iw"],
            out_height=fields["oh"],
            out_width=fields["ow"],
            name=name,
        )

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``resize:linear:mb8ic64ih28oh56``."""
        height, width = self.sides
        widths = "" if width == height else f"iw{width[0]}ow{width[1]}"
        sizes = f"ih{height[0]}oh{height[1]}{widths}"
        return f"{_PREFIX}{self.mode}:mb{self.batch}ic{self.channels}{sizes}"

    def flops(self, pass_: str) -> int:
        """Return the FLOPs: two for each weighted pixel, one for each that is only added.

        Backward each element of ``dst`` is added to all pixels that it came from.
        """
        check_pass(pass_, self.passes, self.kind)
        per_side = 1 if self.mode == "nearest" else 2
        each = flops_of_pixel(per_side, self.sides, backward=pass_ != "forward")
        return math.prod(self.shapes()["dst"]) * each

    def flops_executed(self, pass_: str) -> int:
        """Return the same as :meth:`flops`: nothing is left out."""
        return self.flops(pass_)

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: pixels that nothing is made of are not read."""
        check_pass(pass_, self.passes, self.kind)
        shapes = elements(self.shapes())
        touched = shapes["src"]
        if pass_ == "forward":
            touched = self.batch * self.channels
            touched *= math.prod(_touched(self.mode, size, out) for size, out in self.sides)
        return itemsize * (touched + shapes["dst"])


def flops_of_pixel(per_side: int, sides: Iterable[tuple[int, int]], *, backward: bool) -> int:
    """Return the FLOPs of each pixel of the result.

    Args:
        per_side: pixels of the source along a side that it is a weighted sum of; of one it is a
            copy.
        sides: sizes of source and result; along equal ones nothing is weighted.
        backward: its gradient is added to all of them, the first among them.
    """
    if per_side == 1:
        return int(backward)
    return 2 * math.prod(per_side if size != out else 1 for size, out in sides) - (not backward)


def _touched(mode: str, size: int, out: int) -> int:
    """Return how many positions of a side the result is made of."""
    if mode == "nearest" or size <= 2 * out:
        return min(size, out) if mode == "nearest" else size
    # Two for each, none of them of two; but one where a centre of the result is that of a pixel.
    common = math.gcd(size, out)
    centred = common if size // common % 2 and out // common % 2 else 0
    return 2 * out - centred


def taps(mode: str, size: int, out: int) -> list[tuple[int, int, float]]:
    """Return for each position of the result two of the source, and the weight of the latter.

    They are one and the same, and the weight is zero, where there is only one.

    Args:
        mode: One of :data:`RESIZES`.
        size: Of the source.
        out: Of the result.
    """
    if mode == "nearest":
        nearest = ((2 * to + 1) * size // (2 * out) for to in range(out))
        return [(at, at, 0.0) for at in nearest]
    found = []
    for to in range(out):
        # In units of a part of a pixel, so that nothing is rounded.
        low, part = divmod((2 * to + 1) * size - out, 2 * out)
        if 0 <= low < size - 1 and part:
            found.append((low, low + 1, part / (2 * out)))
        else:
            at = min(max(low, 0), size - 1)
            found.append((at, at, 0.0))
    return found
