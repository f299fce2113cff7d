"""Whatever oneDNN offers for a layer is verified: every candidate, every pass, every precision."""

from __future__ import annotations

import numpy as np
import pytest

_cpu = pytest.importorskip("pydlbench._cpu", reason="the native module _cpu is not built here")

from pydlbench.backends.case import Case
from pydlbench.backends.native.problems import candidates
from pydlbench.backends.reference import make_inputs, tensor_shapes, verify
from pydlbench.backends.reference.shapes import RESULT_ROLE
from pydlbench.layers import Conv2d, Gemm

# forward counts twice: the kernel that keeps what training needs is another one.
KINDS = ("forward inference", "forward training", "backward-data", "backward-weights")


def case_of(layer, kind, precision):
    pass_, _, propagation = kind.partition(" ")
    if pass_ not in layer.passes:
        pytest.skip(f"{layer.kind} has no {pass_} pass")
    return Case(
        layer=layer, pass_=pass_, precision=precision, propagation=propagation or "inference"
    )


def accumulator(case, candidate):
    """oneDNN 3.2's bf16 pooling gradient adds overlapping windows up in bf16, in memory."""
    rounds = case.layer.kind == "pool2d" and case.pass_ == "backward-data"
    rounds = rounds and case.precision == "bf16" and candidate.implementation.startswith("jit")
    return "bfloat16" if rounds else "float32"


def judge(case, candidate, kernel, inputs):
    return verify(
        case.layer,
        case.pass_,
        case.precision,
        inputs,
        kernel.output(),
        seed=7,
        accumulate=accumulator(case, candidate),
        algorithm=candidate.implementation,
    )


@pytest.mark.parametrize("kind", KINDS)
def test_every_candidate_is_right(layer, kind, precision):
    case = case_of(layer, kind, precision)
    inputs = make_inputs(layer, case.pass_, precision, seed=5)
    arena = _cpu.Arena(inputs)
    found = candidates(case)
    fast = [candidate for candidate in found if not candidate.is_reference] or found
    for candidate in fast:
        kernel = _cpu.Kernel(candidate, arena)
        kernel.run_poisoned()
        verdict = judge(case, candidate, kernel, inputs)
        assert verdict.status == "ok", (candidate, verdict)
        # Exact elements, and all of them: these layers are small.
        assert verdict.points == np.prod(tensor_shapes(layer)[RESULT_ROLE[case.pass_]])


@pytest.mark.parametrize("cache", ["weights_cold", "all_cold"])
@pytest.mark.parametrize("kind", KINDS)
def test_rotating_copies_give_the_same_result(layer, kind, cache):
    case = case_of(layer, kind, "fp32")
    if cache == "weights_cold" and not layer.weight_elements:
        pytest.skip("no weights")
    inputs = make_inputs(layer, case.pass_, "fp32", seed=5)
    found = candidates(case)
    fast = [candidate for candidate in found if not candidate.is_reference] or found
    kernel = _cpu.Kernel(fast[0], _cpu.Arena(inputs), _cpu.CacheState[cache], 200_000)
    assert kernel.rotating_sets > 2
    # Once round all copies and a little further, so that a bad one would be met.
    kernel.sample(3, inner=kernel.rotating_sets // 2 + 1)
    kernel.run_poisoned()
    assert judge(case, fast[0], kernel, inputs).status == "ok"


@pytest.mark.parametrize("kind", KINDS)
def test_the_output_has_the_plain_shape(layer, kind):
    case = case_of(layer, kind, "fp32")
    expected = tensor_shapes(layer)[RESULT_ROLE[case.pass_]]
    shapes = set()
    for candidate in candidates(case):
        arena = _cpu.Arena(make_inputs(layer, case.pass_, "fp32", seed=5))
        shapes.add(_cpu.Kernel(candidate, arena).output().shape)
    if isinstance(layer, Gemm) and layer.batch_count == 1:
        expected = expected[1:]
    if isinstance(layer, Conv2d) and layer.groups > 1 and case.pass_ == "backward-weights":
        expected = (layer.groups, expected[0] // layer.groups, *expected[1:])
    assert shapes == {expected}


def test_strict_verification_sees_a_bf16_accumulator(max_pool):
    """The one exception above is not blindness: with a float32 accumulator it is refused."""
    case = Case(layer=max_pool, pass_="backward-data", precision="bf16")
    inputs = make_inputs(max_pool, "backward-data", "bf16", seed=5)
    try:
        found = candidates(case)
    except NotImplementedError:
        pytest.skip("no bf16 here")
    rounding = [c for c in found if accumulator(case, c) == "bfloat16" and "nhwc" in c.layout]
    if not any("bf16" in c.implementation for c in rounding):
        pytest.skip("another oneDNN, or another CPU")
    kernel = _cpu.Kernel(rounding[0], _cpu.Arena(inputs))
    kernel.run_poisoned()
    verdict = verify(max_pool, "backward-data", "bf16", inputs, kernel.output(), seed=7)
    assert verdict.status == "failed"
