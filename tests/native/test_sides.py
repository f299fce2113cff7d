"""Windows of one to three sides: every candidate against sums written tap by tap in float64."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from pydlbench import _cpu
from pydlbench.errors import UnsupportedError
from pydlbench.ops.windows import positions_read

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    Array = NDArray[np.float64]
    Fields = dict[str, Any]

PASSES = ("forward_inference", "forward_training", "backward_data", "backward_weights")
FP32 = _cpu.Precision.fp32


def windows(
    in_size: tuple[int, ...],
    kernel: tuple[int, ...],
    stride: tuple[int, ...] | None = None,
    dilation: tuple[int, ...] | None = None,
    pads: tuple[tuple[int, int], ...] | None = None,
) -> Fields:
    sides = len(in_size)
    stride, dilation = stride or (1,) * sides, dilation or (1,) * sides
    pads = pads or ((0, 0),) * sides
    return {
        "in_size": in_size,
        "out_size": [
            (size + sum(pad) - (taps - 1) * apart - 1) // step + 1
            for size, taps, step, apart, pad in zip(
                in_size, kernel, stride, dilation, pads, strict=True
            )
        ],
        "kernel": kernel,
        "stride": stride,
        "dilation": dilation,
        "pad_before": [before for before, _ in pads],
        "pad_after": [after for _, after in pads],
    }


def convolution(
    batch: int, in_channels: int, out_channels: int, sides: Fields, groups: int = 1
) -> Fields:
    channels = {"in_channels": in_channels, "out_channels": out_channels, "groups": groups}
    return {"batch": batch, **channels, **sides}


CONVS = {
    "1-D dense": convolution(2, 16, 32, windows((9,), (3,), pads=((1, 1),))),
    "1-D skew": convolution(3, 5, 7, windows((17,), (4,), (2,), (3,), ((2, 0),))),
    "1-D depthwise": convolution(2, 8, 8, windows((12,), (5,), pads=((4, 0),)), groups=8),
    "1-D pad as large as the kernel": convolution(1, 3, 4, windows((6,), (2,), pads=((2, 3),))),
    "2-D pad as large as the kernel": convolution(
        2, 16, 16, windows((4, 5), (2, 1), pads=((2, 2), (1, 1)))
    ),
    "3-D dense": convolution(2, 16, 32, windows((4, 5, 6), (3, 3, 3), pads=((1, 1),) * 3)),
    "3-D first layer": convolution(
        1, 3, 16, windows((5, 9, 9), (3, 7, 7), (1, 2, 2), pads=((1, 1), (3, 3), (3, 3)))
    ),
    "3-D skew": convolution(
        2, 6, 9, windows((5, 4, 7), (2, 1, 3), (1, 2, 1), (2, 1, 2), ((0, 1), (0, 0), (2, 1))), 3
    ),
    "3-D depthwise": convolution(1, 16, 16, windows((4, 4, 4), (3, 3, 3), (2, 2, 2)), groups=16),
    "3-D pointwise": convolution(1, 32, 16, windows((2, 3, 4), (1, 1, 1))),
}
POOLS = {
    "1-D": windows((11,), (3,), (2,), pads=((1, 0),)),
    "1-D dilated": windows((11,), (3,), (1,), (3,)),
    "2-D dilated": windows((8, 9), (3, 2), (2, 1), (2, 3), ((1, 2), (0, 1))),
    "3-D": windows((4, 6, 5), (2, 3, 2), (2, 2, 1), pads=((0, 0), (1, 1), (0, 1))),
    "3-D dilated": windows((5, 6, 5), (2, 3, 2), (1, 2, 1), (3, 2, 1), ((1, 0), (1, 1), (0, 0))),
}
LARGE_PADS = windows((4, 5), (2, 2), pads=((2, 1), (3, 2)))


def taps(fields: Fields) -> Iterator[tuple[tuple[int, ...], tuple[slice, ...]]]:
    """Yield each tap with the elements of the padded source that it meets, by side."""
    for tap in np.ndindex(*fields["kernel"]):
        yield (
            tap,
            tuple(
                slice(at * apart, at * apart + (outs - 1) * step + 1, step)
                for at, apart, outs, step in zip(
                    tap, fields["dilation"], fields["out_size"], fields["stride"], strict=True
                )
            ),
        )


def padded(fields: Fields, images: Array, value: float = 0.0) -> Array:
    pads = list(zip(fields["pad_before"], fields["pad_after"], strict=True))
    return np.pad(images, [(0, 0)] * (images.ndim - len(pads)) + pads, constant_values=value)


def unpadded(fields: Fields, images: Array) -> Array:
    inside = (
        slice(before, before + size)
        for before, size in zip(fields["pad_before"], fields["in_size"], strict=True)
    )
    return images[(..., *inside)]


def by_taps(fields: Fields, pass_: str, inputs: dict[str, Array]) -> Array:
    """Compute the result of a convolution's pass."""
    batch, groups = fields["batch"], fields["groups"]
    ins, outs = fields["in_channels"] // groups, fields["out_channels"] // groups
    image, kernel = fields["in_size"], fields["kernel"]
    src = inputs.get("src", np.zeros((batch, groups * ins, *image)))
    src = padded(fields, src.reshape(batch, groups, ins, *image))
    weights = inputs.get("weights", np.zeros(groups * outs * ins * math.prod(kernel)))
    weights = weights.reshape(groups, outs, ins, *kernel).copy()
    dst = inputs.get("dst", np.zeros((batch, groups * outs, *fields["out_size"])))
    dst = dst.reshape(batch, groups, outs, -1).copy()
    for tap, met in taps(fields):
        seen = (..., *met)
        pixels = src[seen].reshape(batch, groups, ins, -1)
        filters = (..., *tap)
        if pass_.startswith("forward"):
            dst += np.einsum("ngcp,goc->ngop", pixels, weights[filters])
        elif pass_ == "backward_data":
            gradient = np.einsum("ngop,goc->ngcp", dst, weights[filters])
            src[seen] += gradient.reshape(src[seen].shape)
        else:
            weights[filters] = np.einsum("ngcp,ngop->goc", pixels, dst)
    results = {"backward_data": unpadded(fields, src), "backward_weights": weights}
    return results.get(pass_, dst)


def pooled(fields: Fields, pass_: str, inputs: dict[str, Array]) -> Array:
    """Compute the result of a pooling's pass."""
    found = list(taps(fields))
    is_max = fields["mode"] == "max"
    src = padded(fields, inputs["src"], -np.inf if is_max else 0.0)
    parts = np.stack([src[(..., *met)] for _, met in found])
    if is_max:
        chosen = np.argmax(parts, 0)
        weights = np.stack([chosen == index for index in range(len(found))]) * 1.0
        weights[~np.isfinite(parts)] = 0
    else:
        inside = padded(fields, np.ones_like(inputs["src"]), float(fields["count_include_pad"]))
        counts = np.stack([inside[(..., *met)] for _, met in found])
        weights = np.ones_like(parts) / counts.sum(0)
    if pass_.startswith("forward"):
        return np.max(parts, 0) if is_max else (parts * weights).sum(0)
    gradient = np.zeros_like(src)
    for (_, met), weight in zip(found, weights, strict=True):
        gradient[(..., *met)] += weight * inputs["dst"]
    return unpadded(fields, gradient)


def check(
    kind: str,
    fields: Fields,
    pass_: str,
    inputs: dict[str, NDArray[np.float32]],
    reference: Callable[[dict[str, Array]], Array],
) -> set[str]:
    """Run all candidates; return the variants that there were."""
    found = _cpu.candidates(kind, _cpu.Pass[pass_], FP32, fields)
    arena = _cpu.Arena(inputs)
    expected = reference({role: array.astype(np.float64) for role, array in inputs.items()})
    for candidate in found:
        kernel = _cpu.Kernel(candidate, arena)
        kernel.run_poisoned()
        result = kernel.output().reshape(expected.shape)
        np.testing.assert_allclose(
            result, expected, rtol=1e-4, atol=1e-4, err_msg=f"{candidate.implementation}"
        )
    return {candidate.variant for candidate in found}


def operands(seed: int, **shapes: tuple[int, ...]) -> dict[str, NDArray[np.float32]]:
    rng = np.random.default_rng(seed)
    return {role: rng.uniform(-1, 1, shape).astype(np.float32) for role, shape in shapes.items()}


@pytest.mark.product
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", CONVS)
def test_convolutions_of_any_sides(name, pass_):
    fields = CONVS[name]
    kernel = fields["in_channels"] // fields["groups"], *fields["kernel"]
    inputs = operands(
        3,
        src=(fields["batch"], fields["in_channels"], *fields["in_size"]),
        weights=(fields["out_channels"], *kernel),
        dst=(fields["batch"], fields["out_channels"], *fields["out_size"]),
    )
    del inputs[{"backward_data": "src", "backward_weights": "weights"}.get(pass_, "dst")]
    sides = len(fields["in_size"])
    variants = check(
        f"conv{sides}d", fields, pass_, inputs, lambda given: by_taps(fields, pass_, given)
    )
    assert {"any", "nhwc", "blocked"} <= variants


@pytest.mark.product
@pytest.mark.parametrize("pass_", PASSES)
@pytest.mark.parametrize("name", CONVS)
def test_transposed_convolutions_of_any_sides(name, pass_):
    fields = CONVS[name]  # of the convolution that it is the gradient of
    exchanged = {
        "in_channels": fields["out_channels"],
        "out_channels": fields["in_channels"],
        "in_size": fields["out_size"],
        "out_size": fields["in_size"],
    }
    inputs = operands(
        4,
        src=(fields["batch"], fields["out_channels"], *fields["out_size"]),
        weights=(
            fields["out_channels"],
            fields["in_channels"] // fields["groups"],
            *fields["kernel"],
        ),
        dst=(fields["batch"], fields["in_channels"], *fields["in_size"]),
    )
    del inputs[{"backward_data": "src", "backward_weights": "weights"}.get(pass_, "dst")]

    def reference(given: dict[str, Array]) -> Array:
        names = {"src": "dst", "dst": "src"}
        given = {names.get(role, role): array for role, array in given.items()}
        passes = {"backward_data": "forward_inference", "backward_weights": "backward_weights"}
        return by_taps(fields, passes.get(pass_, "backward_data"), given)

    check(f"deconv{len(fields['kernel'])}d", {**fields, **exchanged}, pass_, inputs, reference)


@pytest.mark.product
@pytest.mark.parametrize("pass_", PASSES[:3])
@pytest.mark.parametrize(("mode", "whole"), [("max", False), ("avg", False), ("avg", True)])
@pytest.mark.parametrize("name", POOLS)
def test_poolings_of_any_sides(name, mode, whole, pass_):
    fields = pooling(POOLS[name], mode, whole)
    inputs = pooling_inputs(fields)
    variants = check(
        f"pool{len(fields['kernel'])}d",
        fields,
        pass_,
        inputs,
        lambda given: pooled(fields, pass_, given),
    )
    assert {"nchw", "nhwc", "blocked"} <= variants


def pooling(sides: Fields, mode: str, whole: bool) -> Fields:
    return {"batch": 2, "channels": 5, "mode": mode, "count_include_pad": whole, **sides}


def pooling_inputs(fields: Fields) -> dict[str, NDArray[np.float32]]:
    planes = fields["batch"], fields["channels"]
    return operands(5, src=(*planes, *fields["in_size"]), dst=(*planes, *fields["out_size"]))


@pytest.mark.parametrize("pass_", PASSES[:3])
def test_an_average_may_be_over_padding_alone_where_that_counts(pass_):
    fields = pooling(LARGE_PADS, "avg", whole=True)
    check("pool2d", fields, pass_, pooling_inputs(fields), lambda g: pooled(fields, pass_, g))
    fields = pooling(LARGE_PADS, "avg", whole=False)
    with pytest.raises(
        UnsupportedError, match=r"oneDNN pooling .*: windows of nothing but padding"
    ):
        _cpu.candidates("pool2d", _cpu.Pass[pass_], FP32, fields)


@pytest.mark.parametrize("pass_", PASSES[:3])
def test_a_maximum_of_padding_alone_is_the_lowest_number_and_has_no_gradient(pass_):
    fields = pooling(LARGE_PADS, "max", whole=False)
    lowest = np.finfo(np.float32).min
    check(
        "pool2d",
        fields,
        pass_,
        pooling_inputs(fields),
        lambda given: np.maximum(pooled(fields, pass_, given), lowest),
    )


@pytest.mark.product
@pytest.mark.parametrize("pass_", PASSES[:3])
@pytest.mark.parametrize("mode", ["nearest", "linear"])
@pytest.mark.parametrize(
    ("source", "result"), [((5,), (12,)), ((3, 5), (7, 4)), ((2, 3, 4), (4, 6, 9))], ids=str
)
def test_images_of_any_sides_are_resized(source, result, mode, pass_):
    fields = {"mode": mode, "batch": 2, "channels": 5, "in_size": source, "out_size": result}
    inputs = operands(8, src=(2, 5, *source), dst=(2, 5, *result))
    del inputs["src" if pass_ == "backward_data" else "dst"]

    def reference(given: dict[str, Array]) -> Array:
        (values,) = given.values()
        for axis, (size, out) in enumerate(zip(source, result, strict=True), 2):
            matrix = np.zeros((out, size))
            for to, pixels in enumerate(positions_read(mode, size, out)):
                for at, weight in pixels:
                    matrix[to, at] += weight
            matrix = matrix.T if pass_ == "backward_data" else matrix
            values = np.moveaxis(np.moveaxis(values, axis, -1) @ matrix.T, -1, axis)
        return values

    assert check("resize", fields, pass_, inputs, reference) == {"nchw", "nhwc", "blocked"}


def test_sides_are_those_of_the_kind_and_alike():
    fields = CONVS["1-D dense"]
    with pytest.raises(ValueError, match=r"conv2d: .*in_size"):
        _cpu.candidates("conv2d", _cpu.Pass.forward_inference, FP32, fields)
    with pytest.raises(ValueError, match=r"conv1d: .*kernel .*2"):
        _cpu.candidates("conv1d", _cpu.Pass.forward_inference, FP32, {**fields, "kernel": (3, 3)})
    with pytest.raises(ValueError, match=r"conv: .*in_size .*4"):
        _cpu.candidates("conv", _cpu.Pass.forward_inference, FP32, {**fields, "in_size": (1,) * 4})
