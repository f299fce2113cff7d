"""References of copies, windows, orders and transforms give PyTorch's results in float64."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F  # noqa: N812 - PyTorch calls it so itself
from torch import nn

from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.verify import verify


def resized(mode, aligned=None):
    return lambda layer, t: F.interpolate(
        t["src"], layer.out_size, mode=mode, align_corners=aligned
    )


def gathered(layer, t):
    indices = t["indices"].long().expand(layer.tables, layer.count, layer.width)
    return t["src"].gather(1, indices)


def added(layer, t):
    indices = t["indices"].long().expand(layer.tables, layer.count, layer.width)
    table = t.get("dst", torch.zeros(layer.tables, layer.rows, layer.width, dtype=torch.float64))
    return table.scatter_add(1, indices, t["src"])


def put(layer, t):
    indices = t["indices"].long().expand(layer.tables, layer.count, layer.width)
    return t["dst"].scatter(1, indices, t["src"])


def bagged(_, t):
    return F.embedding_bag(t["indices"].long(), t["src"], mode="sum")


def ordered(layer, t):
    size = layer.shapes()["src"][layer.axis]
    return torch.topk(t["src"], layer.k or size, layer.axis)


def pairs(function):
    return lambda layer, t: torch.view_as_real(
        function(t["src"] if layer.op == "real" else torch.view_as_complex(t["src"]), layer)
    )


def axes(layer):
    return tuple(range(-layer.over, 0))


def back(layer, t):
    numbers = torch.view_as_complex(t["src"])
    return torch.fft.irfftn(numbers, layer.src[-layer.over :], axes(layer))


def unfolded(layer, t):
    return F.unfold(t["src"], layer.kernel, layer.dilation, layer.pad_before, layer.stride)


# Odd sizes, larger and smaller, of one row or column; windows beyond the border.
RESULTS = [
    *(
        (f"resize:{name}:mb2ic3{sizes}", function)
        for name, function in (
            ("nearest", resized("nearest-exact")),
            ("linear", resized("bilinear", aligned=False)),
            ("linear-aligned", resized("bilinear", aligned=True)),
            ("cubic", resized("bicubic", aligned=False)),
            ("cubic-aligned", resized("bicubic", aligned=True)),
            ("area", resized("area")),
        )
        for sizes in ("ih7oh5iw5ow9", "ih6oh6iw3ow17", "ih1oh4iw9ow1", "ih2oh31iw31ow2")
    ),
    ("resize:linear-aligned:mb2ic3id3od5ih4oh3iw5ow7", resized("trilinear", aligned=True)),
    ("resize:area:mb2ic3iw13ow5", resized("area")),
    ("unfold:mb2ic3ih7iw5kh3kw2ph1pw0sh2sw1", unfolded),
    ("unfold:mb1ic2ih9iw7kh3kw3dh1dw0ph2pw1sh3sw2", unfolded),
    (
        "grid-sample:mb2ic3ih4oh5iw7ow9",
        lambda _, t: F.grid_sample(t["src"], t["grid"], align_corners=False),
    ),
    ("grid-sample:mb1ic1ih1oh3", lambda _, t: F.grid_sample(*t.values(), align_corners=False)),
    ("glu:mb2ic3ih4iw5", lambda _, t: F.glu(t["src"], -1)),
    ("sort:mb2ic3ih4iw9", ordered),
    ("sort:mb2ic7ih3iw2axis1k3", ordered),
    ("sort:mb2ic2ih5iw3axis2k1", ordered),
    ("cummax:mb2ic3ih4iw9", lambda layer, t: torch.cummax(t["src"], layer.axis)),
    ("cummin:mb2ic7ih3iw2axis1", lambda layer, t: torch.cummin(t["src"], layer.axis)),
    ("fft:real:3x4x15", pairs(lambda x, layer: torch.fft.rfftn(x, dim=axes(layer)))),
    ("fft:real:3x6x10by2", pairs(lambda x, layer: torch.fft.rfftn(x, dim=axes(layer)))),
    ("fft:complex:2x5x7by2", pairs(lambda x, layer: torch.fft.fftn(x, dim=axes(layer)))),
    ("fft:inverse-real:3x15", back),
    ("fft:inverse-real:2x6x10by2", back),
    ("distance:euclidean:2x7x3:2x9x3", lambda _, t: torch.cdist(t["src"], t["src2"])),
    ("gather:rows:3x9x4:1x5", gathered),
    ("gather:rows:3x9x4:3x13", gathered),
    ("gather:rows:1x9x4:1x5x4", gathered),
    ("gather:add-rows:3x9x4:3x30x4", added),
    ("gather:add-rows:3x9x4:1x30", added),
    ("gather:add-rows-in-place:2x9x4:2x30", added),
    ("gather:put-rows-in-place:2x9x4:2x9x4", put),
    ("gather:put-rows-in-place:3x9x4:1x5", put),
    ("gather:bags:9x4:5x7", bagged),
    ("elementwise:log2:7", lambda _, t: torch.log2(t["src"])),
    ("elementwise:log10:7", lambda _, t: torch.log10(t["src"])),
]


@pytest.mark.parametrize(("text", "function"), RESULTS, ids=[text for text, _ in RESULTS])
def test_references_are_results_of_float64(text, function):
    layer = parse_problem(text)
    inputs = make_inputs(layer, "forward", "fp32", seed=3)
    tensors = {role: torch.from_numpy(x.astype(np.float64)) for role, x in inputs.items()}
    expected = function(layer, tensors)
    expected = expected if isinstance(expected, tuple) else [expected]
    right = layer.reference(inputs)
    for role, numbers in zip(layer.writes("forward"), expected, strict=True):
        np.testing.assert_allclose(right[role], numbers.numpy(), rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("text", [text for text, _ in RESULTS])
def test_pytorch_is_right_and_a_kernel_that_does_nothing_is_not(backend, text):
    layer = parse_problem(text)
    for pass_ in layer.passes:
        inputs = make_inputs(layer, pass_, "fp32", seed=5)
        main, *others = layer.writes(pass_)
        for variant in backend.variants(KernelSpec(layer=layer, pass_=pass_, mode="eager")):
            written = variant.build(inputs).outputs()
            assert set(written) == {main, *others}

            def judged(results, inputs=inputs, pass_=pass_, main=main):
                extra = {role: array for role, array in results.items() if role != main}
                return verify(layer, pass_, "fp32", inputs, results[main], seed=7, extra=extra)

            verdict = judged(written)
            assert verdict.status == "ok", verdict
            for role, array in written.items():
                same = inputs.get(role)
                idle = same if same is not None and same.shape == array.shape else array * 0
                assert judged(written | {role: idle}).status == "failed", role


def test_indices_of_equal_elements_are_of_them_and_differ():
    layer = parse_problem("sort:ic1iw4k2")
    inputs = {"src": np.array([[[[3, 5, 5, 5]]]], np.float32)}
    values = np.full((1, 1, 1, 2), 5, np.float32)

    def status(*indices):
        extra = {"indices": np.array(indices).reshape(1, 1, 1, 2)}
        return verify(layer, "forward", "fp32", inputs, values, seed=1, extra=extra).status

    assert status(1, 2) == status(3, 1) == "ok"
    assert status(1, 1) == status(1, 0) == status(1, 4) == "failed"
    layer = parse_problem("cummax:ic1iw3")
    inputs = {"src": np.array([[[[5, 5, 3]]]], np.float32)}
    values = np.full((1, 1, 1, 3), 5, np.float32)

    def running(*indices):
        extra = {"indices": np.array(indices).reshape(1, 1, 1, 3)}
        return verify(layer, "forward", "fp32", inputs, values, seed=1, extra=extra).status

    assert running(0, 1, 1) == running(0, 0, 0) == "ok"
    assert running(1, 1, 1) == running(0, 1, 2) == "failed"


def test_overwritten_rows_are_distinct():
    layer = parse_problem("gather:put-rows-in-place:3x9x4:3x7x4")
    indices = make_inputs(layer, "forward", "fp32", seed=3)["indices"]
    for column in np.moveaxis(indices, 1, -1).reshape(-1, 7):
        assert len({*column}) == 7
    assert len({tuple(set_.ravel()) for set_ in indices}) == 3


@pytest.mark.parametrize(
    ("text", "precision", "reason"),
    [
        ("fft:real:4x8", "bf16", "nearest: --precision fp32"),
        ("distance:euclidean:1x3x4:1x5x4", "bf16", "nearest: --precision fp32"),
        ("resize:cubic:mb1ic2iw8ow5", "fp32", "two sides"),
        ("unfold:mb1ic2iw8kw3", "fp32", "two sides"),
    ],
)
def test_what_pytorch_lacks_is_refused(backend, text, precision, reason):
    with pytest.raises(UnsupportedError, match=reason):
        backend.variants(KernelSpec(layer=parse_problem(text), mode="eager", precision=precision))


def test_modules_of_models_are_the_same_functions():
    """The ops have the definitions of the modules that users call."""
    x = torch.rand(2, 4, 7, 5, dtype=torch.float64)
    columns = parse_problem("unfold:mb2ic4ih7iw5kh3kw3ph1pw1").reference({"src": x.numpy()})["dst"]
    np.testing.assert_array_equal(columns, nn.Unfold(3, padding=1)(x).numpy())
    area = parse_problem("resize:area:mb2ic4ih7oh3iw5ow2").reference({"src": x.numpy()})["dst"]
    np.testing.assert_allclose(area, nn.AdaptiveAvgPool2d((3, 2))(x).numpy(), rtol=1e-12)
