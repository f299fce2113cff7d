"""Whatever there is for a layer is verified: every candidate, every pass, every precision."""

import numpy as np
import pytest

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import make_inputs
from pydlbench.verification.verify import verify

#: Kinds of layers of which each candidate that there is, is tried.
WHOLE = ("elementwise", "reduction", "move", "gather")


def case_of(layer, kind, precision):
    pass_, _, propagation = kind.partition(" ")
    otherwise = "training" if layer.kind == "recurrent" else "inference"
    return KernelSpec(
        layer=layer, pass_=pass_, precision=precision, propagation=propagation or otherwise
    )


def accumulator(case, candidate):
    """oneDNN 3.2's pooling gradient adds overlapping windows up in the 16 bits that it stores."""
    rounds = case.layer.kind == "pool2d" and case.pass_ == "backward-data"
    rounds = rounds and candidate.implementation.startswith("jit")
    return {"bf16": "bfloat16", "fp16": "float16"}.get(case.precision if rounds else "", "float32")


def judge(case, candidate, kernel, inputs):
    """Run a kernel on poisoned results, and return the verdict on all of them."""
    kernel.run_poisoned()
    layer = case.layer
    results = {role: layer_shape(layer, role, one) for role, one in kernel.outputs().items()}
    assert results.keys() == set(layer.writes(case.pass_, case.propagation))
    return verify(
        layer,
        case.pass_,
        case.precision,
        inputs,
        results[layer.result(case.pass_)],
        seed=7,
        accumulate=accumulator(case, candidate),
        algorithm=candidate.implementation,
        extra=results,
        propagation=case.propagation,
    )


def layer_shape(layer, role, array):
    shape = layer.shapes()[role]
    return array if array.shape in layer.other_shapes(role) else array.reshape(shape)


@pytest.mark.product
def test_every_candidate_is_right(layer, kind, precision):
    case = case_of(layer, kind, precision)
    inputs = make_inputs(layer, case.pass_, precision, seed=5)
    arena = _cpu.Arena(inputs)
    try:
        found = candidates(case, thorough=layer.kind in WHOLE)
    except UnsupportedError:
        without = layer.op in ("add-rows", "cast-from-int32") or (
            layer.op == "lstm" and case.pass_ != "forward"
        )
        assert precision == "fp16" or (without and precision == "bf16")
        return
    assert found
    for candidate in [one for one in found if not one.is_reference] or found:
        kernel = _cpu.Kernel(candidate, arena)
        for _ in range(2):  # gradients do not add up from run to run
            verdict = judge(case, candidate, kernel, inputs)
            assert verdict.status == "ok", (candidate, verdict)
            elements = sum(
                np.prod(layer.shapes()[role]) for role in layer.writes(case.pass_, case.propagation)
            )
            assert verdict.points == elements or verdict.checksums > 0


def run_cold(layer, kind, cache):
    case = case_of(layer, kind, "fp32")
    inputs = make_inputs(layer, case.pass_, "fp32", seed=5)
    found = candidates(case)
    fast = [candidate for candidate in found if not candidate.is_reference] or found
    kernel = _cpu.Kernel(fast[0], _cpu.Arena(inputs), cache, 200_000)
    assert kernel.rotating_sets > 2
    # Once round all copies and further, so that a bad one would be met.
    kernel.sample(3, inner=kernel.rotating_sets // 2 + 1)
    assert judge(case, fast[0], kernel, inputs).status == "ok"


@pytest.mark.product
def test_rotating_everything_gives_the_same_result(rotated, kind):
    run_cold(rotated, kind, _cpu.CacheState.all_cold)


@pytest.mark.product
def test_rotating_weights_gives_the_same_result(weighted, kind):
    run_cold(weighted, kind, _cpu.CacheState.weights_cold)


@pytest.mark.parametrize("precision", ["bf16", "fp16"])
def test_strict_verification_sees_a_short_accumulator(precision):
    """The exception above is not blindness: as a float32 accumulator it is refused."""
    layer = build_layer("pool", batch=4, channels=32, in_size=27, kernel=3, padding=1)
    case = KernelSpec(layer=layer, pass_="backward-data", precision=precision)
    inputs = make_inputs(layer, "backward-data", precision, seed=5)
    try:
        found = candidates(case)
    except UnsupportedError:
        pytest.skip(f"no {precision} here")
    rounding = [c for c in found if c.implementation == f"jit:avx512_core_{precision}"]
    if not rounding or _cpu.library()["version"] != "3.2.0":
        pytest.skip("another oneDNN, or another CPU")
    strict = []
    for candidate in rounding:
        kernel = _cpu.Kernel(candidate, _cpu.Arena(inputs))
        assert judge(case, candidate, kernel, inputs).status == "ok"
        verdict = verify(layer, "backward-data", precision, inputs, kernel.output(), seed=7)
        strict.append(verdict.status)
    assert "failed" in strict  # fp16 in nchw is summed in float32


@pytest.mark.parametrize(
    ("text", "precision", "message"),
    [
        ("elementwise:exp:8", "fp16", "no fp16 kernels"),
        ("gather:add-rows:3x1:5", "bf16", "fp32 only"),
        ("gru:l2d2t2mb1slc8dhc4", "fp32", r"two directions.*nearest: one layer"),
    ],
)
def test_what_there_is_not_is_unsupported(text, precision, message):
    with pytest.raises(UnsupportedError, match=message):
        candidates(KernelSpec(layer=parse_problem(text), precision=precision))
