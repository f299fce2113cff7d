"""From a case to its verdict without a GPU: every plan, run by the emulation, as the product does.

The plans come from ``cuda_plans`` and are judged there on seeded inputs against the
host's reference. The native module is invented, but its plans are the real ones: names, shapes,
formats and roles must agree on both sides.
"""

from __future__ import annotations

import importlib
import sys
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

import pydlbench
from pydlbench.backends.base import Preparation
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import OPS, ops_of_kind
from pydlbench.records.measurement import KernelSpec
from pydlbench.verification.inputs import made

#: Whether tensors start on the sixteen-byte grid: each kind of storage is tried off it.
ALIGNED = {"fp32": False, "tf32": True, "fp16": True, "fp16-tc": False, "bf16-tc": False}
_BACKEND = "pydlbench.backends.native"
_MODULES = ("cuda_plans",)
PROBLEMS = (
    *("bias:mb2ic5ih3iw7", "bias:mb3ic16ih4", "bias:mb5ic8"),
    *("relu:mb2ic5ih3iw7", "add:mb2ic5ih3iw7", "add:mb33ic16"),
    *("lrn:mb2ic9ih3iw5", "lrn:mb1ic16ih4ls3alpha2beta0.5k1", "lrn:mb3ic7ls7alpha0.5"),
    *("batchnorm:mb2ic5ih3iw7", "batchnorm:mb3ic16ih8eps0.1mom0.3", "batchnorm:mb33ic7"),
    *("concat:mb2ic1+4+3ih3iw5", "concat:mb3ic8+16ih4", "concat:mb3ic8+8"),
    *("softmax-xent:mb3ic5", "softmax-xent:mb9ic101", "softmax-xent:mb17ic1001"),
    *("softmax:mb2ic5ih3iw7", "softmax:mb1ic2ih3iw600", "log-softmax:mb2ic5ih3iw8"),
    *(
        f"{op}:mb2ic5ih3iw7"
        for op in ops_of_kind("pointwise")
        if OPS[op].spread and not OPS[op].no_gpu
    ),
    "hardtanh:mb2ic5ih3iw7alpha-0.25beta2",
    *("dropout:mb2ic5ih3iw7", "dropout:mb3ic16ih4keep0.9", "dropout:mb3ic9keep1"),
    *("l2:ic37", "l2:ic9001decay0.1", "sgd:ic37", "sgd:ic2049lr0.3"),
    *("momentum:ic37", "momentum:ic2049lr0.3mu0.5"),
)
#: One element; one more than whole vectors; whole vectors; enough for a third tile on resident
#: blocks, for several blocks per channel, and for a last block that is not full.
SIZES = (
    *("bias:mb1ic1", "bias:mb2ic33ih5", "bias:mb3ic3ih37iw41", "bias:mb5ic8ih31iw29"),
    *("relu:mb1ic1", "relu:mb2ic33ih5", "relu:mb2ic5ih61iw59", "add:mb2ic5ih61iw59"),
    *("lrn:mb1ic5ih3iw7ls1alpha0.9", "lrn:mb2ic33ih5ls9alpha0.9beta0.6", "lrn:mb3ic100ih7iw9"),
    *("lrn:mb2ic100ih1iw3ls11alpha0.9k1.5", "lrn:mb2ic3000ih1iw3", "lrn:mb1ic2ih50iw90"),
    *("batchnorm:mb2ic3", "batchnorm:mb3ic3ih37iw41", "batchnorm:mb5ic8ih31iw29"),
    *("concat:mb3ic3+1", "concat:mb3ic5+32+33ih3iw5", "concat:mb3ic16+8+4ih4"),
    *("softmax-xent:mb2ic2309", "dropout:mb2ic5ih61iw59keep0.1"),
    *("l2:ic1", "l2:ic20001decay0.25", "sgd:ic20001lr0.3", "momentum:ic20001lr0.3mu0.9"),
)
STEPS = [
    (text, pass_, propagation, mode)
    for texts, modes in ((PROBLEMS, ALIGNED), (SIZES, ("fp32", "tf32", "bf16-tc")))
    for text in texts
    for mode in modes
    for pass_ in parse_problem(text).passes
    for propagation in ("inference", "training")
    if propagation == "inference" or (parse_problem(text).entry.training and pass_ == "forward")
]


class Plan:
    """What ``_cuda`` shows of a plan."""

    notes: tuple[str, ...] = ()

    def __init__(self, emulated: Any, *, aligned: bool) -> None:
        self.emulated, self.aligned = emulated, aligned
        self.tensors = emulated.facts["tensors"]
        names = ("algorithm", "library", "variant", "layout", "accumulate", "tensor_cores")
        for name in (*names, "workspace_bytes"):
            setattr(self, name, emulated.facts[name])


class Kernel:
    """What ``_cuda`` makes of a plan and an arena: inputs by role, results in the plan's order."""

    build_seconds = 0.0

    def __init__(self, plan: Plan, arena: Any, _cache: str, _timing: str) -> None:
        self.plan, self.inputs = plan, arena
        for tensor in plan.tensors:
            if tensor["use"] != "output":
                given = arena[tensor["role"]]
                assert given.dtype == np.float32
                assert given.flags.c_contiguous
                # The arena counts elements only.
                assert list(given.shape) == tensor["dims"], tensor["role"]

    def run_poisoned(self) -> None:
        inputs = {role: array.astype(np.float64) for role, array in self.inputs.items()}
        stored = self.plan.emulated.stored(inputs)
        for role, array in stored.items():
            np.testing.assert_array_equal(array, inputs[role], f"{role} loses digits when stored")
        run, aligned = self.plan.emulated.run, self.plan.aligned
        self.results, again = run(inputs, aligned=aligned), run(inputs, aligned=aligned)
        for role, array in self.results.items():
            np.testing.assert_array_equal(array, again[role], f"{role} differs from run to run")

    def outputs(self) -> dict[str, Any]:
        return {role: array.astype(np.float32) for role, array in self.results.items()}

    def output(self) -> Any:
        return next(iter(self.outputs().values()))


@pytest.fixture
def product(pointwise, monkeypatch):
    """The backend's own modules, on a native module whose kernels are emulated."""
    native = ModuleType("pydlbench._cuda")

    def plans(
        _device: Any, kind: str, pass_: str, mode: str, fields: dict[str, Any], **words: Any
    ) -> list[Plan]:
        assert kind == "pointwise"
        parameters = dict(fields)
        op = parameters.pop("op")
        sizes = tuple(parameters.pop(size) for size in ("batch", "channels", "height", "width"))
        for known in ("passes", "in_one_order"):  # the harness reads them off the table itself
            parameters.pop(known)
        layout = words["layout"]
        return [
            Plan(emulated, aligned=ALIGNED[mode])
            for emulated in pointwise.plans(op, pass_, sizes, mode, layout, **parameters)
        ]

    # The host judges.
    native.reference = lambda *_, **__: None
    vars(native).update(plans=plans, Kernel=Kernel)
    monkeypatch.setitem(sys.modules, "pydlbench._cuda", native)
    monkeypatch.setattr(pydlbench, "_cuda", native, raising=False)
    package = importlib.import_module(_BACKEND)
    for name in _MODULES:
        monkeypatch.delitem(sys.modules, f"{_BACKEND}.{name}", raising=False)
        monkeypatch.delattr(package, name, raising=False)
    cuda_plans = importlib.import_module(f"{_BACKEND}.cuda_plans")
    # The host makes the random inputs, too.
    cuda_plans.new_arena = lambda _device, inputs: made(inputs)
    yield SimpleNamespace(plans=cuda_plans.plans, autotuner=cuda_plans.CudaAutotuner)
    for name in _MODULES:  # built on the invented one: nobody else may see them
        sys.modules.pop(f"{_BACKEND}.{name}", None)
        vars(package).pop(name, None)


def test_an_operation_that_is_not_among_the_problems_has_no_kernel(pointwise):
    tested = {text.partition(":")[0] for text in PROBLEMS}
    assert tested <= set(ops_of_kind("pointwise"))
    for op in set(ops_of_kind("pointwise")) - tested:
        with pytest.raises(ValueError, match=f"no pointwise kernel named {op}"):
            pointwise.plans(op, "forward-inference", (1, 8, 2, 2))


@pytest.mark.parametrize(("text", "pass_", "propagation", "mode"), STEPS)
def test_every_plan_is_right_by_the_products_own_judgement(product, text, pass_, propagation, mode):
    layer = parse_problem(text)
    assert layer.kind == "pointwise"
    case = KernelSpec(
        layer=layer, pass_=pass_, propagation=propagation, precision=mode, device="cuda:0"
    )
    search = product.autotuner(None, product.plans(None, case, 0), case, Preparation(seed=3))
    assert search.candidates
    for candidate in search.candidates:
        plan = candidate.source
        # The formats of the layer's own roles, as bytes() counts them.
        for tensor in plan.tensors:
            wide = layer.in_float32(tensor["role"]) or mode in ("fp32", "tf32")
            wanted = 4 if tensor["role"] == "labels" else 0 if wide else 2 if mode[0] == "b" else 1
            assert tensor["type"] == wanted, tensor["role"]
        read = [t["role"] for t in plan.tensors if t["use"] != "output"]
        written = [t["role"] for t in plan.tensors if t["use"] != "input"]
        assert sorted(read) == sorted(layer.reads(pass_, propagation))
        assert written == list(layer.writes(pass_, propagation))
        updated = {t["role"] for t in plan.tensors if t["use"] == "in-out"}
        step = OPS[layer.op].passes[pass_]
        if (layer.op, pass_, propagation) == ("batchnorm", "forward", "training"):
            assert OPS[layer.op].training is not None
            step = OPS[layer.op].training
        assert updated == set(step.updates)
        verdict = search.verify(candidate)
        assert "not compared" not in verdict.detail
        elements = sum(np.prod(layer.shapes()[role]) for role in written)
        assert (verdict.status, verdict.points) == ("ok", elements), plan.algorithm
