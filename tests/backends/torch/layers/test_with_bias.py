"""Convolutions and products that add a bias in the same operator, or give its gradient."""

import problems
import pytest
import torch
from this_cpu import HAS_BF16

from pydlbench.backends.base import Preparation
from pydlbench.errors import PrimitiveError, UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec

CONV, GEMM = problems.LAYERS["even padding"], problems.LAYERS["product"]
NAMES = (
    "even padding",
    "groups, dilation",
    "uneven padding, stride",
    "product",
    "batched product",
)


@pytest.mark.product
@pytest.mark.filterwarnings("default")  # of the compiler's
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("pass_", ["forward", "backward-weights"])
@pytest.mark.parametrize("name", NAMES)
def test_right(backend, monkeypatch, name, pass_, precision, mode):
    if precision == "bf16" and not HAS_BF16:
        pytest.skip("PyTorch sums in bf16 on this CPU")
    monkeypatch.setattr("pydlbench.backends.torch.settings.emulated", lambda _: ())
    words = {"layer": problems.LAYERS[name], "pass_": pass_, "precision": precision, "mode": mode}
    found = [
        facts for _, facts in problems.every_variant(backend, monkeypatch, fuse="bias", **words)
    ]
    assert [facts.correct.status for facts in found] == ["ok", "ok"]
    if pass_ == "backward-weights":
        assert all("; bias: " in facts.correct.detail for facts in found)


@pytest.mark.deep
@pytest.mark.filterwarnings("default")  # of the compiler's
@pytest.mark.parametrize("fuse", ["none", "bias"])
@pytest.mark.parametrize("name", ["even padding", "product"])
def test_frozen_weights_are_packed_and_right(backend, monkeypatch, name, fuse):
    words = {"layer": problems.LAYERS[name], "mode": "frozen", "fuse": fuse}
    found = [facts for _, facts in problems.every_variant(backend, monkeypatch, **words)]
    assert [facts.correct.status for facts in found] == ["ok", "ok"]
    assert all(any("packed" in note for note in facts.notes) for facts in found)


def test_it_is_named(backend):
    def names(layer, pass_="forward"):
        return [
            one.algorithm
            for one in backend.variants(KernelSpec(layer=layer, pass_=pass_, fuse="bias"))
        ]

    assert set(names(CONV)) == {"aten::convolution with bias"}
    assert names(GEMM) == ["aten::addmm with bias"] * 2
    assert names(GEMM, "backward-weights") == ["aten::mm + aten::sum with bias"] * 2
    assert set(names(CONV, "backward-weights")) == {"aten::convolution_backward with bias"}


@pytest.mark.parametrize("spoilt", ["left out", "of another channel"])
def test_a_wrong_bias_is_found(backend, monkeypatch, spoilt):
    real = torch.conv2d

    def wrong(x, w, b, *settings):
        return real(x, w, None if spoilt == "left out" else b.flip(0), *settings)

    for precision in ("fp32", "bf16"):
        with monkeypatch.context() as patch:
            patch.setattr("pydlbench.backends.torch.settings.emulated", lambda _: ())
            patch.setattr(torch, "conv2d", wrong)
            case = KernelSpec(layer=CONV, fuse="bias", layout="nhwc", precision=precision)
            with pytest.raises(PrimitiveError, match=r"result: .* expected"):
                backend.prepare(case, Preparation())


@pytest.mark.parametrize(
    ("layer", "pass_", "what"),
    [
        (CONV, "backward-data", "backward-data has no bias"),
        (
            build_layer("pool", batch=1, channels=2, in_size=6, kernel=3),
            "forward",
            "pool2d has no bias",
        ),
    ],
)
def test_where_there_is_no_bias(backend, layer, pass_, what):
    with pytest.raises(UnsupportedError, match=f"--fuse bias: {what}; nearest: "):
        backend.prepare(KernelSpec(layer=layer, pass_=pass_, fuse="bias"), Preparation())
