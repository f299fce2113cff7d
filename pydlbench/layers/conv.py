"""Two-dimensional convolution: sizes, FLOPs and least bytes of its three passes."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import Product, check_pass, elements, malformed, pair, set_integers
from pydlbench.layers.window import (
    Padding,
    Windowed,
    looks_like_windows,
    read_fields,
    read_windows,
    spatial,
)

if TYPE_CHECKING:
    from pydlbench.layers.deconv import Deconv2d


@dataclass(frozen=True, slots=True, kw_only=True)
class Conv2d(Windowed, Product):
    """A convolution (cross-correlation) of ``batch`` images, without bias.

    ``dst[n, oc, oh, ow] = sum over ic, kh, kw of weights[oc, ic, kh, kw] *
    src[n, group(oc) + ic, oh * stride - pad + kh * dilation, ...]``, with NCHW source
    ``(batch, in_channels, in_height, in_width)`` and weights
    ``(out_channels, in_channels / groups, kernel_height, kernel_width)``.

    Raises:
        UsageError: A size below its least value, channels that ``groups`` does not divide, a kernel
            larger than the padded input, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "conv2d"

    in_channels: int
    out_channels: int
    dilation_height: int = 1
    dilation_width: int = 1
    groups: int = 1

    def __post_init__(self) -> None:
        """Check every field, then settle the trailing pads."""
        self._check_sizes()
        set_integers(self, 1, "in_channels", "out_channels", "groups")
        set_integers(self, 1, "dilation_height", "dilation_width")
        check_groups(self)
        self._settle_padding()

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
        dilation_height, dilation_width = pair(dilation, "dilation")
        return cls(
            **spatial(in_size, kernel, stride, padding),
            batch=batch,
            in_channels=in_channels,
            out_channels=out_channels,
            dilation_height=dilation_height,
            dilation_width=dilation_width,
            groups=groups,
            name=name,
        )

    @property
    def dilations(self) -> tuple[int, int]:
        """Input positions from one tap to the next, downwards and across; 1 is dense."""
        return self.dilation_height, self.dilation_width

    @property
    def operations_per_tap(self) -> int:
        """Two for each multiply-add: an output channel meets the input channels of its group."""
        return 2 * self.batch * self.out_channels * (self.in_channels // self.groups)

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

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:
        """Whether a descriptor is fields with ``oc``, or without where nobody said how to pool."""
        fields, _, _ = text.partition("n")
        return looks_like_windows(text) and ("oc" in fields or pool is None)

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``mb128ic192ih13oc384oh13kh3ph1``."""
        fields, name = read_fields(text)
        if "oc" not in fields:
            expected = "expected oc (convolution), or --pool max or --pool avg"
            raise malformed(len(text), expected, "")
        return cls(
            **read_windows(fields),
            batch=fields.get("mb", 1),
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
        spatial_fields = self.spatial_fields(f"oc{self.out_channels}")
        return f"{groups}mb{self.batch}ic{self.in_channels}{spatial_fields}"

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: what is read once, and the result written once.

        Only what the result depends on is read (a 1x1 kernel with stride 2 reads a quarter of its
        source), but the result is written whole: backward-data zeroes what no output saw.

        Args:
            pass_: One of :attr:`passes`.
            itemsize: Bytes per element, of all three tensors.
        """
        check_pass(pass_, self.passes, self.kind)
        rows, columns = self.axes()
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


def check_groups(layer: Conv2d | Deconv2d) -> None:
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
