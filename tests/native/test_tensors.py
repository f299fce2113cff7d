"""Layers on tensors of any shape: every candidate is right, and a wrong result is not."""

import pytest

from pydlbench import _cpu
from pydlbench.backends.native.cpu import candidates
from pydlbench.backends.verification.inputs import make_inputs
from pydlbench.backends.verification.verify import verify
from pydlbench.errors import UnsupportedError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import build_layer, ops_of_kind
from pydlbench.records.specs import KernelSpec

_ROLES = ("src", "src2", "src3")
# Alike; one row, one column or one element for all; and more than a thread's share of rows.
_OPERANDS = (
    ((37,), (37,), (37,)),
    ((4, 3, 17), (4, 1, 17), (1, 1, 1)),
    ((1, 5, 1), (2, 5, 33), (2, 1, 33)),
    ((700, 30), (1, 30), (700, 1)),
)


_NUMBERED = ("power", "add", "add-square", "addcmul", "addcdiv")


def _elementwise():
    for op, operator in ops_of_kind("elementwise").items():
        for shapes in _OPERANDS:
            some = shapes[: operator.operand_count]
            for number in (0.5, 1.0, -1.0) if op == "add" else (0.5 if op in _NUMBERED else 1.0,):
                yield build_layer(
                    f"elementwise:{op}", number=number, **dict(zip(_ROLES, some, strict=False))
                )


_OTHERS = (
    *(
        f"reduction:{op}:{shapes}"
        for op in ops_of_kind("reduction")
        for shapes in ("37:1", "5x700:5x1", "5x9x300:5x1x300", "20000:1", "3x4x5:1x4x1")
    ),
    *("move:copy:5003", "move:fill:5003", "move:permute:2x7x3x50by0213", "move:permute:30x50by10"),
    *("gather:rows:40x33:700", "gather:rows:9x1:2"),
    *("gather:add-rows:40x33:700", "gather:add-rows:9x300:4", "gather:add-rows:3x1:5"),
)
LAYERS = [*_elementwise(), *map(parse_problem, _OTHERS)]


def run(layer, precision):
    """Yield the candidates of a layer, with what each wrote and the verdict on it."""
    inputs = make_inputs(layer, "forward", precision, seed=5)
    arena = _cpu.Arena(inputs)
    for candidate in candidates(KernelSpec(layer=layer, precision=precision), thorough=True):
        kernel = _cpu.Kernel(candidate, arena)
        kernel.run_poisoned()
        written = kernel.outputs()["dst"].reshape(layer.shapes()["dst"]).copy()
        yield candidate, inputs, written


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("op", dict.fromkeys(one.op for one in LAYERS))
def test_every_candidate_is_right(op, precision):
    for layer in (one for one in LAYERS if one.op == op):
        if (op, precision) == ("add-rows", "bf16"):
            with pytest.raises(UnsupportedError, match="fp32 only"):
                candidates(KernelSpec(layer=layer, precision=precision))
            continue
        found = 0
        for candidate, inputs, written in run(layer, precision):
            found += 1
            verdict = verify(layer, "forward", precision, inputs, written, seed=7)
            assert verdict.status == "ok", (layer.problem, candidate, verdict)
            assert verdict.points == written.size
            wrong = written.copy()
            wrong.flat[wrong.size // 2] = 1.5 * wrong.flat[wrong.size // 2] + 1
            assert verify(layer, "forward", precision, inputs, wrong, seed=7).status == "failed"
        assert found


def test_what_there_is_not_is_unsupported():
    with pytest.raises(UnsupportedError, match="no fp16 kernels"):
        candidates(KernelSpec(layer=parse_problem("elementwise:exp:8"), precision="fp16"))
