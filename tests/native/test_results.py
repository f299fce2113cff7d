"""Whatever oneDNN offers for a layer is verified: every candidate, every pass, every precision."""

import numpy as np
import pytest

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.backends.verification.verify import verify
from pydlbench.errors import UnsupportedError
from pydlbench.ops.table import build_layer
from pydlbench.records.specs import KernelSpec


def case_of(layer, kind, precision):
    pass_, _, propagation = kind.partition(" ")
    return KernelSpec(
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


@pytest.mark.product
def test_every_candidate_is_right(layer, kind, precision):
    case = case_of(layer, kind, precision)
    inputs = make_inputs(layer, case.pass_, precision, seed=5)
    arena = _cpu.Arena(inputs)
    found = candidates(case)
    fast = [candidate for candidate in found if not candidate.is_reference] or found
    shapes = set()
    for candidate in fast:
        kernel = _cpu.Kernel(candidate, arena)
        kernel.run_poisoned()
        shapes.add(kernel.output().shape)
        verdict = judge(case, candidate, kernel, inputs)
        assert verdict.status == "ok", (candidate, verdict)
        elements = np.prod(layer.shapes()[layer.writes(case.pass_)[0]])
        assert verdict.points == elements or verdict.checksums > 0
    (role,) = layer.writes(case.pass_)
    assert len(shapes) == 1
    assert shapes <= {layer.shapes()[role], *layer.other_shapes(role)}


def run_cold(layer, kind, cache):
    case = case_of(layer, kind, "fp32")
    inputs = make_inputs(layer, case.pass_, "fp32", seed=5)
    found = candidates(case)
    fast = [candidate for candidate in found if not candidate.is_reference] or found
    kernel = _cpu.Kernel(fast[0], _cpu.Arena(inputs), cache, 200_000)
    assert kernel.rotating_sets > 2
    # Once round all copies and further, so that a bad one would be met.
    kernel.sample(3, inner=kernel.rotating_sets // 2 + 1)
    kernel.run_poisoned()
    assert judge(case, fast[0], kernel, inputs).status == "ok"


@pytest.mark.product
def test_rotating_everything_gives_the_same_result(layer, kind):
    run_cold(layer, kind, _cpu.CacheState.all_cold)


@pytest.mark.product
def test_rotating_weights_gives_the_same_result(weighted, kind):
    run_cold(weighted, kind, _cpu.CacheState.weights_cold)


def test_strict_verification_sees_a_bf16_accumulator():
    """The exception above is not blindness: as a float32 accumulator it is refused."""
    layer = build_layer("pool", batch=4, channels=32, in_size=27, kernel=3, padding=1)
    case = KernelSpec(layer=layer, pass_="backward-data", precision="bf16")
    inputs = make_inputs(layer, "backward-data", "bf16", seed=5)
    try:
        found = candidates(case)
    except UnsupportedError:
        pytest.skip("no bf16 here")
    rounding = [c for c in found if c.implementation == "jit:avx512_core_bf16"]
    if not rounding or _cpu.library()["version"] != "3.2.0":
        pytest.skip("another oneDNN, or another CPU")
    kernel = _cpu.Kernel(rounding[0], _cpu.Arena(inputs))
    kernel.run_poisoned()
    assert judge(case, rounding[0], kernel, inputs).status == "ok"
    verdict = verify(layer, "backward-data", "bf16", inputs, kernel.output(), seed=7)
    assert verdict.status == "failed"
