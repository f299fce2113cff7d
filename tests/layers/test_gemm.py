from typing import Any

import pytest

from pydlbench.errors import UsageError
from pydlbench.layers.base import PASSES
from pydlbench.layers.gemm import Gemm


@pytest.mark.parametrize("pass_", PASSES)
def test_all_passes_do_the_same_work_on_the_same_matrices(pass_):
    layer = Gemm(m=128, k=9216, n=4096)
    assert layer.flops(pass_) == layer.flops_executed(pass_) == 2 * 128 * 37_748_736
    assert layer.operands(pass_) == {"src": 128 * 9216, "weights": 37_748_736, "dst": 128 * 4096}
    assert layer.bytes(pass_, 2) == 2 * (128 * 9216 + 37_748_736 + 128 * 4096)


def test_batched_products_multiply_everything():
    one, three = Gemm(m=128, k=64, n=32), Gemm(m=128, k=64, n=32, batch_count=3)
    assert three.problem == "3x128x64:3x64x32"
    assert three.flops("forward") == 3 * one.flops("forward")
    assert three.bytes("forward", 4) == 3 * one.bytes("forward", 4)
    assert three.weight_elements == 3 * 64 * 32


def test_the_batch_is_the_rows():
    layer = Gemm(m=128, k=9216, n=4096, name="fc6")
    assert layer.batch == 128
    assert layer.with_batch(1) == Gemm(m=1, k=9216, n=4096, name="fc6")
    assert layer.with_batch(1).problem == "1x9216:9216x4096"


def test_samples_grow_with_the_batch():
    rows, products = (
        Gemm(m=256, k=8, n=4, samples=2),
        Gemm(m=7, k=8, n=9, batch_count=24, samples=2),
    )
    assert (rows.batch, products.batch) == (2, 2)
    assert rows.with_batch(3) == Gemm(m=384, k=8, n=4, samples=3)
    assert products.with_batch(3) == Gemm(m=7, k=8, n=9, batch_count=36, samples=3)
    with pytest.raises(UsageError, match="samples=5: does not divide batch_count=24"):
        Gemm(m=10, k=8, n=9, batch_count=24, samples=5)


def test_the_order_of_weights_is_part_of_the_problem():
    free, fixed = Gemm(m=2, k=3, n=4), Gemm(m=2, k=3, n=4, weights_order="nk")
    assert (fixed.problem, fixed.variant, free.variant) == ("2x3:3x4wtagnk", "transposed", None)
    assert fixed.problem_fields() == free.problem_fields() | {"weights_tag": "nk"}
    with pytest.raises(UsageError, match="weights_order='ba': no such order; nearest: any"):
        Gemm(m=2, k=3, n=4, weights_order="ba")


@pytest.mark.parametrize("field", ["m", "k", "n", "batch_count"])
def test_empty_products_are_refused(field):
    sizes: dict[str, Any] = {"m": 2, "k": 3, "n": 4, field: 0}
    with pytest.raises(UsageError, match=f"^{field}=0: too small; at least 1$"):
        Gemm(**sizes)


def test_products_beyond_63_bits_are_refused():
    with pytest.raises(UsageError, match=r"sizes overflow: .* most of them in weights; at most"):
        Gemm(m=1, k=2**31, n=2**31)
