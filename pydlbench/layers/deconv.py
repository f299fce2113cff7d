"""Two-dimensional transposed convolution: a convolution's gradient as a layer of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar, Final, Self

from pydlbench.errors import UsageError
from pydlbench.layers.base import Product, check_pass, check_total, elements, set_integers
from pydlbench.layers.conv import Conv2d, check_groups
from pydlbench.layers.window import (
    Padding,
    derived_pad,
    extent,
    output_size,
    read_fields,
    spatial,
)

_PREFIX: Final = "deconv:"
#: The pass of the convolution that computes a pass of this layer.
_PASS_OF_CONVOLUTION: Final = {
    "forward": "backward-data",
    "backward-data": "forward",
    "backward-weights": "backward-weights",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Deconv2d(Product):
    """A transposed convolution of ``batch`` images, without bias.

    ``dst[n, oc, ih * stride - pad + kh * dilation, ...] = sum over ic, kh, kw of
    weights[ic, oc, kh, kw] * src[n, ic, ih, iw]``: each source element puts a window into the
    result. It is the backward-data pass of :attr:`convolution`, from which all counts follow.
    Weights are ``(in_channels, out_channels / groups, kernel_height, kernel_width)``.

    Several sizes of the result fit one source where the stride is above one, so the size of the
    result is given, and the trailing pads follow from it.

    Raises:
        UsageError: A size below its least value, channels that ``groups`` does not divide, a size
            of the result that no padding gives, or tensors of 2**63 bytes and more.
    """

    kind: ClassVar[str] = "deconv2d"

    batch: int
    in_channels: int
    in_height: int
    in_width: int
    out_channels: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    stride_height: int = 1
    stride_width: int = 1
    pad_top: int = 0
    pad_left: int = 0
    dilation_height: int = 1
    dilation_width: int = 1
    groups: int = 1
    name: str | None = None

    def __post_init__(self) -> None:
        """Check every field."""
        set_integers(self, 1, "batch", "in_channels", "in_height", "in_width", "out_channels")
        set_integers(self, 1, "out_height", "out_width", "kernel_height", "kernel_width")
        set_integers(self, 1, "stride_height", "stride_width", "dilation_height", "dilation_width")
        set_integers(self, 1, "groups")
        set_integers(self, 0, "pad_top", "pad_left")
        check_groups(self)
        _check_size("height", self.in_height, self.out_height, *self._window("height"))
        _check_size("width", self.in_width, self.out_width, *self._window("width"))
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
        name: str | None = None,
    ) -> Self:
        """Build one from numbers or (height, width) pairs, its result of the least size."""
        sizes = spatial(in_size, kernel, stride, padding)
        for side, leading, trailing in (("height", "top", "bottom"), ("width", "left", "right")):
            reach = (sizes[f"in_{side}"] - 1) * sizes[f"stride_{side}"] + sizes[f"kernel_{side}"]
            # The trailing pad is no field: it follows from the size of the result.
            sizes[f"out_{side}"] = reach - sizes[f"pad_{leading}"] - sizes.pop(f"pad_{trailing}")
        return cls(
            **sizes, batch=batch, in_channels=in_channels, out_channels=out_channels, name=name
        )

    @property
    def convolution(self) -> Conv2d:
        """The convolution of the result that gives images of the source's size.

        Its ``src`` is this layer's ``dst`` and the other way round; the weights are the same.
        """
        return Conv2d(
            batch=self.batch,
            in_channels=self.out_channels,
            in_height=self.out_height,
            in_width=self.out_width,
            out_channels=self.in_channels,
            kernel_height=self.kernel_height,
            kernel_width=self.kernel_width,
            stride_height=self.stride_height,
            stride_width=self.stride_width,
            pad_top=self.pad_top,
            pad_bottom=_trailing(self.in_height, self.out_height, *self._window("height")),
            pad_left=self.pad_left,
            pad_right=_trailing(self.in_width, self.out_width, *self._window("width")),
            dilation_height=self.dilation_height,
            dilation_width=self.dilation_width,
            groups=self.groups,
            name=self.name,
        )

    @staticmethod
    def pass_of_convolution(pass_: str) -> str:
        """Return the pass of :attr:`convolution` that computes the same."""
        return _PASS_OF_CONVOLUTION[pass_]

    def shapes(self) -> dict[str, tuple[int, ...]]:
        """Return the shape of each tensor by role; images are NCHW."""
        of_convolution = self.convolution.shapes()
        return {
            "src": of_convolution["dst"],
            "weights": of_convolution["weights"],
            "dst": of_convolution["src"],
        }

    def other_shapes(self, role: str) -> tuple[tuple[int, ...], ...]:
        """Return that of weights with an axis for their groups in front."""
        return self.convolution.other_shapes(role) if role == "weights" else ()

    @property
    def problem(self) -> str:
        """The canonical descriptor: ``deconv:mb1ic64ih14oc32oh28kh2sh2``, as benchdnn's driver."""
        groups = f"g{self.groups}" if self.groups > 1 else ""
        convolution = self.convolution
        spatial_fields = convolution.spatial_fields(f"oc{self.out_channels}", transposed=True)
        return f"{_PREFIX}{groups}mb{self.batch}ic{self.in_channels}{spatial_fields}"

    def problem_fields(self) -> dict[str, Any]:
        """Return those of the convolution, with source and result exchanged."""
        fields = self.convolution.problem_fields()
        exchanged = {"in_channels": "out_channels", "in_size": "out_size"}
        exchanged |= {there: here for here, there in exchanged.items()}
        return {name: fields[exchanged.get(name, name)] for name in fields}

    @classmethod
    def claims(cls, text: str, pool: str | None) -> bool:  # noqa: ARG003 - of poolings
        """Whether a descriptor is one of benchdnn's driver for these."""
        return text.startswith(_PREFIX)

    @classmethod
    def parse(cls, text: str, pool: str | None) -> Self:  # noqa: ARG003 - of poolings
        """Read ``deconv:mb1ic64ih14oc32oh28kh2sh2``; without ``oh`` it is the least size."""
        fields, name = read_fields(text, len(_PREFIX), needed=("ic", "ih", "oc", "kh"))
        return cls(
            batch=fields.get("mb", 1),
            in_channels=fields["ic"],
            out_channels=fields["oc"],
            **_read_side(fields, "h", "height", "top"),
            **_read_side(fields, "w", "width", "left"),
            groups=fields.get("g", 1),
            name=name,
        )

    def with_batch(self, batch: int) -> Self:
        """Return the same layer for another number of images."""
        return replace(self, batch=batch)

    def flops(self, pass_: str) -> int:
        """Return the algorithmic FLOPs: two for each source element and tap, cut off or not."""
        check_pass(pass_, self.passes, self.kind)
        return self.convolution.flops(_PASS_OF_CONVOLUTION[pass_])

    def flops_executed(self, pass_: str) -> int:
        """Return the FLOPs of a direct kernel: without the taps that padding cuts off."""
        check_pass(pass_, self.passes, self.kind)
        return self.convolution.flops_executed(_PASS_OF_CONVOLUTION[pass_])

    def bytes(self, pass_: str, itemsize: int) -> int:
        """Return the least bytes moved: what is read once, and the result written once."""
        check_pass(pass_, self.passes, self.kind)
        return self.convolution.bytes(_PASS_OF_CONVOLUTION[pass_], itemsize)

    def _window(self, side: str) -> tuple[int, int, int]:
        """Return the positions that a window spans on one side, its stride and leading pad."""
        if side == "height":
            window = extent(self.kernel_height, self.dilation_height)
            return window, self.stride_height, self.pad_top
        window = extent(self.kernel_width, self.dilation_width)
        return window, self.stride_width, self.pad_left


def _trailing(source: int, out: int, window: int, stride: int, leading: int) -> int:
    """Return the trailing pad; none where the last elements are in no window."""
    return max(0, (source - 1) * stride + window - out - leading)


def _check_size(side: str, source: int, out: int, window: int, stride: int, leading: int) -> None:
    """Refuse a size of the result from which a convolution does not lead back to the source.

    Raises:
        UsageError: With the nearest size.
    """
    trailing = _trailing(source, out, window, stride, leading)
    if out + leading + trailing >= window:
        back = output_size(out, window, stride, leading, trailing)
        if back == source:
            return
    least = (source - 1) * stride + window - 2 * leading
    raise UsageError(
        f"out_{side}={out}: does not follow from in_{side}={source}, a window of {window}, "
        f"stride {stride} and pad {leading}; nearest: {max(1, least)}"
    )


def _read_side(fields: dict[str, int], letter: str, side: str, leading: str) -> dict[str, int]:
    """Return the layer's fields of one side from those of a descriptor."""
    source, kernel = fields[f"i{letter}"], fields[f"k{letter}"]
    stride, dilation = fields.get(f"s{letter}", 1), fields.get(f"d{letter}", 0) + 1
    window = extent(kernel, dilation)
    pad, out = fields.get(f"p{letter}"), fields.get(f"o{letter}")
    if out is None:
        pad = pad or 0
        out = (source - 1) * stride + window - 2 * pad
    elif pad is None:
        pad = derived_pad(out, window, stride, source)
    return {
        f"in_{side}": source,
        f"out_{side}": out,
        f"kernel_{side}": kernel,
        f"stride_{side}": stride,
        f"pad_{leading}": pad,
        f"dilation_{side}": dilation,
    }
