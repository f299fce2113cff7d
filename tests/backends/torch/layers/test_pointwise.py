"""Memory-bound layers through PyTorch: every operation, pass, precision, layout and mode."""

import numpy as np
import problems
import pytest
import torch

from pydlbench.backends.base import Preparation
from pydlbench.backends.torch.backend import ways_to_run
from pydlbench.backends.torch.layers.operator import TensorPlace, TorchOperands
from pydlbench.ops.table import OPS, in_place
from pydlbench.records.measurement import KernelSpec
from pydlbench.timing.chunk import ChunkRequest
from pydlbench.verification.inputs import make_inputs

BY_OP = problems.POINTWISE


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("step", "mode"), problems.steps_by_mode("eager", "compiled"))
@pytest.mark.filterwarnings("default")  # of the compiler's
def test_right(backend, monkeypatch, step, precision, mode):
    layer, pass_, propagation = step
    words = {"layer": layer, "pass_": pass_, "propagation": propagation}
    monkeypatch.setattr("pydlbench.backends.torch.settings.emulated", lambda _: ())
    seen = []
    for variant, facts in problems.every_variant(
        backend, monkeypatch, precision=precision, mode=mode, **words
    ):
        correct = facts.correct
        assert correct.status == "ok", (variant.algorithm, variant.layout, correct)
        # Compiled, the statistics of a batch come rounded to the type of its images.
        rounded = (propagation, precision, mode) == ("training", "bf16", "compiled")
        left_out = correct.detail.partition("not compared: ")[2]
        assert left_out == ("mean, variance" if rounded else "")
        assert correct.points >= np.prod(layer.shapes()[layer.result(pass_)])
        seen.append(variant.variant)
    flat = OPS[layer.op].in_one_order
    assert set(seen) == ({"plain"} if flat else {"nchw", "nhwc"})


@pytest.mark.parametrize("op", ["relu", "relu6", "hardswish", "hardsigmoid", "silu", "add"])
def test_what_works_in_place_overwrites_its_source(backend, op):
    layer = in_place(BY_OP[op])
    facts = backend.prepare(KernelSpec(layer=layer, layout="nchw"), Preparation()).facts
    assert (facts.correct.status, facts.layout.partition(",")[0]) == ("ok", "src nchw")


@pytest.mark.parametrize("layout", ["nchw", "nhwc"])
@pytest.mark.parametrize("op", ["sgd", "relu"])
def test_layouts_choose_among_images_and_leave_weights_alone(backend, op, layout):
    facts = backend.prepare(KernelSpec(layer=BY_OP[op], layout=layout), Preparation()).facts
    expected = f"src {layout}, dst {layout}" if op == "relu" else "weights, gradient"
    assert facts.layout == expected


@pytest.mark.filterwarnings("default")  # of the compiler's
@pytest.mark.parametrize("mode", ["eager", "compiled"])
@pytest.mark.parametrize("op", ["sgd", "momentum", "batchnorm"])
def test_updates_do_not_drift(backend, op, mode):
    layer = BY_OP[op]
    case = KernelSpec(layer=layer, mode=mode, propagation="training", layout="nchw")
    (variant,) = [one for one in backend.variants(case) if one.variant in ("plain", "nchw")]
    inputs = make_inputs(layer, "forward", "fp32", 3, propagation="training")
    operator = variant.build(inputs)
    before = operator.outputs()
    operands = [one.clone() for one in operator.operands[: len(inputs)]]
    backend.clock(operator).sample(ChunkRequest(samples=3, inner=50))
    pairs = zip(operator.operands, operands, strict=False)
    moved = next(by for now, then in pairs if (by := (now - then).abs().max()) > 0)
    # One step of an SGD is at most rate * |gradient|, one with a velocity rate * 10 * |gradient|.
    bound = {"sgd": 0.011, "momentum": 0.11, "batchnorm": 1.5}[op]
    assert moved < bound
    after = operator.outputs()
    for role, array in before.items():
        assert np.array_equal(array, after[role]), role


def test_optimizers_do_what_torch_optim_does(backend):
    for op, mu in (("sgd", 0.0), ("momentum", 0.9)):
        inputs = make_inputs(BY_OP[op], "forward", "fp32", 3)
        (variant,) = backend.variants(KernelSpec(layer=BY_OP[op]))
        weights = torch.nn.Parameter(torch.from_numpy(inputs["weights"].copy()))
        weights.grad = torch.from_numpy(inputs["gradient"])
        optimizer = torch.optim.SGD([weights], lr=BY_OP[op].rate, momentum=mu)
        if mu:
            optimizer.state[weights]["momentum_buffer"] = torch.from_numpy(
                inputs["velocity"].copy()
            )
        optimizer.step()
        found = variant.build(inputs).outputs()["weights"]
        assert np.array_equal(found, weights.detach().numpy())


def operators(call):
    """The operators of ATen that compute, views and allocations left out, each with its count."""
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profile:
        call()
    counted = ("mul", "div", "pow", "neg", "add", "add_", "avg_pool3d", "avg_pool3d_backward")
    counted += ("hardtanh_backward", "hardswish_backward", "hardsigmoid_backward")
    counted += ("constant_pad_nd", "native_batch_norm", "threshold_backward", "cat", "sum")
    counted += ("_log_softmax", "nll_loss_forward", "nll_loss_backward", "bernoulli_", "div_")
    counted += ("_log_softmax_backward_data", "native_batch_norm_backward", "mul_", "contiguous")
    found = [event.name.removeprefix("aten::") for event in profile.events()]
    return sorted(name.removesuffix("_") for name in found if name in counted)


def users_of(layer, inputs):
    """What a user writes for the forward pass, and the tensors that its gradient is taken of."""
    tensor = {
        role: torch.from_numpy(array.copy()).requires_grad_(role != "labels")
        for role, array in inputs.items()
        if role not in ("running_mean", "running_variance", "dst")
    }
    functional = torch.nn.functional
    if layer.op == "lrn":
        words = layer.local_size, layer.alpha, layer.beta, layer.k
        return functional.local_response_norm(tensor["src"], *words), tensor["src"]
    if layer.op in ("relu", "relu6", "hardswish", "hardsigmoid"):
        return getattr(functional, layer.op)(tensor["src"]), tensor["src"]
    if layer.op == "bias":
        images = torch.zeros(layer.shapes()["src"])
        bias = torch.zeros(layer.channels, requires_grad=True)
        return images + bias.view(1, -1, 1, 1), bias
    if layer.op == "dropout":
        images = torch.ones(layer.shapes()["src"], requires_grad=True)
        return functional.dropout(images, 1 - layer.keep, True), images
    assert layer.op == "softmax-xent"
    logits = torch.zeros(layer.shapes()["src"][:2], requires_grad=True)
    labels = torch.from_numpy(inputs["labels"].astype(np.int64))
    return functional.cross_entropy(logits, labels), logits


@pytest.mark.filterwarnings("default")  # of the profiler's
@pytest.mark.parametrize(
    "op",
    ["lrn", "relu", "relu6", "hardswish", "hardsigmoid", "bias", "dropout", "softmax-xent"],
)
def test_gradients_are_the_operators_that_autograd_runs(backend, op):
    layer = BY_OP[op]
    pass_ = layer.passes[1]
    inputs = make_inputs(layer, pass_, "fp32", 3)
    result, leaf = users_of(layer, inputs)
    gradient = torch.ones_like(result)
    expected = operators(lambda: torch.autograd.grad(result, leaf, gradient, retain_graph=True))
    variants = backend.variants(KernelSpec(layer=layer, pass_=pass_))
    (variant,) = [one for one in variants if one.variant in ("nchw", "plain")]
    operator = variant.build(inputs)
    with operator.guard():
        assert operators(operator.call) == expected
    assert expected


def test_weights_of_a_root_mean_square_have_the_type_of_its_rows_as_fused_kernels_require():
    place = TensorPlace(torch.device("cpu"), torch.bfloat16)
    types = {}
    for op in ("rmsnorm", "layernorm"):
        operands = TorchOperands(BY_OP[op], {}, place, "plain")
        types[op] = [operands.tensor(role).dtype for role in ("src", "weights")]
    assert types["rmsnorm"] == [torch.bfloat16, torch.bfloat16]
    # Its fused kernels take parameters of either type.
    assert types["layernorm"] == [torch.bfloat16, torch.float32]


def test_operators_that_a_cpu_lacks_in_bfloat16_run_in_float32(backend, monkeypatch):
    monkeypatch.setattr("pydlbench.backends.torch.settings.emulated", lambda _: ())
    for pass_ in ("forward", "backward-data"):
        words = {"layer": BY_OP["lrn"], "pass_": pass_, "precision": "bf16"}
        for variant, _ in problems.every_variant(backend, monkeypatch, **words):
            assert variant.algorithm.startswith("aten::_to_copy + ")
            assert any("no avg_pool3d in bfloat16" in note for note in variant.notes)
    case = KernelSpec(layer=BY_OP["lrn"], device="cuda:0", precision="bf16-tc")
    on_gpu = ways_to_run(case, torch.device("cpu"))
    assert {one.accumulate for one in on_gpu} == {"bfloat16"}
    assert not any("_to_copy" in one.algorithm for one in on_gpu)


def test_a_concatenation_is_taken_apart_by_views(backend):
    layer = BY_OP["concat"]
    for variant in backend.variants(KernelSpec(layer=layer, pass_="backward-data")):
        operator = variant.build(make_inputs(layer, "backward-data", "fp32", 3))
        incoming = operator._first.args[0]
        shared = {part.untyped_storage().data_ptr() for part in operator.call()}
        assert shared == {incoming.untyped_storage().data_ptr()}
        assert variant.algorithm == "aten::slice"
        assert any("copies its part first" in note for note in variant.notes)
