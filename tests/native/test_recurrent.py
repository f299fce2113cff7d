"""Recurrent layers: every candidate is right, in every pass, each time it runs, and hot or cold."""

import pytest

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.backends.verification.verify import verify
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.records.specs import KernelSpec

SIZES = ("t1mb3slc8dhc8", "t4mb3slc20dhc16", "l3t3mb2slc8dhc8", "d2t3mb3slc12dhc8")


def judge(case, kernel, inputs):
    layer = case.layer
    kernel.run_poisoned()
    shapes = layer.shapes()
    results = {role: one.reshape(shapes[role]) for role, one in kernel.outputs().items()}
    assert set(results) == set(layer.writes(case.pass_))
    main = results[layer.writes(case.pass_)[0]]
    return verify(layer, case.pass_, case.precision, inputs, main, seed=7, extra=results)


@pytest.mark.parametrize("cell", ["lstm", "gru"])
@pytest.mark.parametrize("sizes", SIZES)
@pytest.mark.parametrize("kind", ["forward inference", "forward training", "backward-data"])
def test_every_candidate_is_right(cell, sizes, kind):
    layer = parse_problem(f"{cell}:{sizes}")
    pass_, _, propagation = kind.partition(" ")
    for precision in ("fp32", "bf16"):
        case = KernelSpec(
            layer=layer, pass_=pass_, precision=precision, propagation=propagation or "training"
        )
        try:
            found = candidates(case)
        except UnsupportedError:
            assert precision == "bf16"  # which needs a CPU that has it
            continue
        inputs = make_inputs(layer, pass_, precision, seed=5)
        arena = _cpu.Arena(inputs)
        for candidate in found:
            assert not candidate.is_reference
            kernel = _cpu.Kernel(candidate, arena)
            for _ in range(2):  # gradients do not add up from run to run
                verdict = judge(case, kernel, inputs)
                assert verdict.status == "ok", (candidate, verdict)


@pytest.mark.parametrize("cache", [_cpu.CacheState.all_cold, _cpu.CacheState.weights_cold])
def test_rotating_operands_gives_the_same_result(cache):
    layer = parse_problem("lstm:t3mb3slc8dhc8")
    for pass_ in layer.passes:
        case = KernelSpec(layer=layer, pass_=pass_)
        inputs = make_inputs(layer, pass_, "fp32", seed=5)
        kernel = _cpu.Kernel(candidates(case)[0], _cpu.Arena(inputs), cache, 200_000)
        assert kernel.rotating_sets > 2
        kernel.sample(3, inner=kernel.rotating_sets // 2 + 1)
        assert judge(case, kernel, inputs).status == "ok"


def test_what_there_is_not_is_unsupported():
    with pytest.raises(UnsupportedError, match=r"two directions.*nearest: one layer"):
        candidates(KernelSpec(layer=parse_problem("gru:l2d2t2mb1slc8dhc4")))
