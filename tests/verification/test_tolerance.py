"""The tolerance: what it consists of, and that it tells the precisions apart."""

import math

import numpy as np
import pytest

from pydlbench.errors import UsageError
from pydlbench.verification.inputs import round_to
from pydlbench.verification.verify import FAST_ACCUMULATOR as FAST
from pydlbench.verification.verify import TENSOR_ACCUMULATOR as TENSOR
from pydlbench.verification.verify import tolerance


def test_formula():
    assert tolerance("fp32", 100) == 2**-24 * (1 + 34)
    assert tolerance("bf16", 100) == 2**-8 + 2**-24 * 34
    assert tolerance("fp16", 1, accumulate="float16") == 2**-11 * 8
    assert tolerance("tf32", 100) == tolerance("fp32", 100)
    assert tolerance("nvfp4-tc", 100) == tolerance("bf16-tc", 100)


def test_fast_accumulation_is_allowed_what_hopper_cuts_off():
    promoted, fast = (tolerance("fp8-tc-fast", 4096, one) for one in (TENSOR, FAST))
    assert promoted == pytest.approx(2**-4, rel=1e-3)
    # Of sums of 4096 products, up to 2 % have been found, and half of that is allowed again.
    assert 0.02 < fast - promoted < 0.04


def test_fast_convolutions_may_be_less_accurate():
    direct = tolerance("fp32", 576, algorithm="brgconv:avx512_core")
    fast = tolerance("fp32", 576, algorithm="jit_wino:avx512_core")
    assert direct == tolerance("fp32", 576)
    assert 25 * direct < fast < 2**-12


@pytest.mark.parametrize("terms", [1, 27, 1728, 25_000, 800_000])
def test_a_float32_kernel_is_told_from_a_tf32_kernel(terms):
    # Rounding both factors to eleven bits is off by 0.43 * sqrt(2) * 2**-11 of s in the root mean
    # square, about half of that relative to |ref| + s.
    assert tolerance("fp32", terms) < 0.34 * 2**-11


@pytest.mark.parametrize("terms", [4, 100, 3000])
def test_sequential_sums_err_as_derived(terms):
    rng = np.random.default_rng(0)
    products = (rng.uniform(-1, 1, (terms, 4000)) * rng.uniform(-1, 1, (terms, 4000))).astype("f4")
    partial = np.zeros(4000, np.float32)
    for row in products:
        partial = round_to("bf16", partial + row)
    scale = np.sqrt(np.square(products.astype(float)).sum(axis=0))
    exact = products.astype(float).sum(axis=0)
    error = (partial - exact) / (np.abs(exact) + scale)
    unit = 2**-8 * math.sqrt(terms)
    assert 0.1 * unit < np.sqrt(np.mean(error**2)) < 0.2 * unit
    assert 0.5 * unit < np.abs(error).max() < 1.5 * unit


def test_unknown_accumulator():
    with pytest.raises(UsageError, match=r"accumulate float31: .*nearest: float32"):
        tolerance("fp32", 1, accumulate="float31")
