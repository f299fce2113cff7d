"""What stands for recorded calls: native kernels, or the reason for none."""

import dataclasses
from collections import Counter

import pytest
from invented_calls import CALLS

from pydlbench.analysis.estimate import plan_step
from pydlbench.analysis.mapped import kernels_of, map_calls, recorded_plan
from pydlbench.calls.groups import CallGroup
from pydlbench.models import build_model
from pydlbench.records.step import StepSpec
from pydlbench.records.trace import RecordedCall


@pytest.fixture
def mapped():
    return map_calls(CALLS, "forward", "fp32", "cpu", None)


def test_native_kernels_are_measured_once_and_summed_as_often_as_they_are_called(mapped):
    kernels = kernels_of(mapped)
    assert len(kernels.terms) == 3
    assert {one.step_pass.layer.kind for one in kernels.terms} == {"conv2d"}
    assert len(kernels.specs) == 2


def test_the_work_of_a_recorded_step_is_that_of_its_modules():
    how = {"phase": "forward", "precision": "fp32", "device": "cpu", "cache_bytes": None}
    found = recorded_plan(CALLS, name="my.py:build", batch=2, notes=("drawn by chance",), **how)
    assert Counter(one.step_pass.node for one in found.terms) == {"a": 2, "b": 1}
    assert len(found.specs) == 2
    assert found.recorded.native_calls == 3 / 4  # a view is no work
    assert set(found.recorded.unmapped) == {"my.op"}
    assert found.recorded.notes == ("drawn by chance",)
    assert found.recorded.calls == CALLS


def test_an_operator_lacks_layers_for_all_of_its_reasons():
    calls = [
        RecordedCall(signature=f"aten.clone.default({one})", operator="aten.clone")
        for one in ("float32[4, 6](12, 2)", "int16[4](1)", "int16[8](1)")
    ]
    how = {"phase": "forward", "precision": "fp32", "device": "cpu", "cache_bytes": None}
    found = recorded_plan(calls, name="my.py:build", batch=2, **how).recorded.unmapped
    alone = [next(iter(map_calls([one], *list(how.values())).values())).lacks for one in calls]
    assert "" not in alone
    assert alone[1] == alone[2] != alone[0]
    assert found == {"aten.clone": f"{alone[0]}; {alone[1]}"}


@pytest.mark.parametrize(
    ("operator", "operands", "elsewhere"),
    [
        ("aten.mul_.Tensor", "float32[8](1), float32[8](1)", False),
        ("aten.mul.Tensor", "float32[8](1), float32[8](1)", False),
        ("aten.copy_.default", "float32[8](1), float32[8](1)", False),
        ("aten.zero_.default", "float32[8](1)", False),
        ("aten.as_strided_.default", "float32[8](1), [2, 4], [4, 1]", False),
        # A vector that is added to each row has no layer in place.
        ("aten.add_.Tensor", "float32[4, 8](8, 1), float32[8](1)", True),
    ],
)
def test_layers_that_write_elsewhere_are_known(operator, operands, elsewhere):
    name = operator.rpartition(".")[0]
    call = RecordedCall(signature=f"{operator}({operands})", operator=name)
    (found,) = map_calls([call], "training", "fp32", "cpu", None).values()
    assert found.terms or found.meaning.kind == "view"
    assert found.writes_elsewhere(name) is elsewhere


def test_a_group_has_what_its_calls_have_and_lacks_what_one_of_them_lacks():
    first, second = product("float32", "float32"), product("float32", "float32")
    group = CallGroup(calls=(first.signature, second.signature), links=((1, 0, 0, 0),))
    (alone,) = map_calls([first], "forward", "fp32", "cpu", None).values()
    call = RecordedCall(signature=group.text, operator="mm+mm", count=3)
    (found,) = map_calls([call], "forward", "fp32", "cpu", None).values()
    assert (found.count, found.lacks) == (3, "")
    assert found.meaning.flops == 2 * alone.meaning.flops
    assert len(found.terms) == 2 * len(alone.terms)
    other = CallGroup(calls=(first.signature, "no.such.call()"))
    call = RecordedCall(signature=other.text, operator="mm+call")
    (found,) = map_calls([call], "forward", "fp32", "cpu", None).values()
    assert "no.such" in found.lacks
    assert found.meaning.flops is None
    assert len(found.terms) == len(alone.terms)
    equation = RecordedCall(signature="jax.add[](float32[2])", operator="add")
    (found,) = map_calls([equation], "forward", "fp32", "cpu", None).values()
    assert (found.terms, "JAX" in found.lacks) == ((), True)


def product(left, right):
    text = f"aten.mm.default({left}[4, 4](4, 1), {right}[4, 4](4, 1))"
    return RecordedCall(signature=text, operator="aten.mm")


@pytest.mark.parametrize(
    ("dtypes", "device", "precision"),
    [
        (("bfloat16", "bfloat16"), "cpu", "bf16"),
        # As autocast has left it.
        (("float32", "float32"), "cpu", "fp32"),
        (("float16", "float16"), "cpu", "fp16"),
        (("bfloat16", "bfloat16"), "cuda:0", "bf16-tc"),
        (("float32", "float32"), "cuda:0", "fp32"),
    ],
)
def test_a_call_has_layers_in_its_own_precision_whatever_the_step_s_is(dtypes, device, precision):
    step = "bf16" if device == "cpu" else "bf16-tc"
    (found,) = map_calls([product(*dtypes)], "forward", step, device, None).values()
    assert {case.precision for one in found.terms for case in (one.hot, one.cold)} == {precision}
    assert found.lacks == ""


@pytest.mark.parametrize(
    "dtypes", [("float64", "float64"), ("int64", "int64"), ("float32", "bfloat16")]
)
def test_calls_in_types_that_no_precision_of_ours_has_are_told_with_them(dtypes):
    (found,) = map_calls([product(*dtypes)], "forward", "fp32", "cpu", None).values()
    assert found.terms == ()
    assert all(one in found.lacks for one in dtypes)
    assert found.meaning.flops == 2 * 4 * 4 * 4
    (complexes,) = map_calls(
        [product("complex64", "complex64")], "forward", "fp32", "cpu", None
    ).values()
    assert complexes.terms == ()
    assert "complex" in complexes.lacks


def test_the_native_kernels_of_a_recorded_step_are_those_of_its_graph():
    pytest.importorskip("torch")
    from pydlbench.backends.torch.backend import create
    from pydlbench.backends.torch.worker import serve_call_list

    model = build_model("mnist", 2)
    case = StepSpec(model="mnist", batch=2, phase="training")
    calls = serve_call_list(create("cpu"), case).facts.calls

    def products(kernels):
        terms = [one for one in kernels.terms if one.step_pass.layer.multiply_adds]
        return Counter(
            (dataclasses.replace(each.layer, name=None), each.pass_, each.propagation)
            for each in (term.step_pass for term in terms)
        )

    recorded = kernels_of(map_calls(calls, "training", "fp32", "cpu", None))
    assert products(recorded) == products(plan_step(model, "training"))


def test_an_attention_has_no_native_layers_on_a_gpu_where_frameworks_have_one_kernel():
    shape = "bfloat16[1, 2, 8, 16](256, 128, 16, 1)"
    call = RecordedCall(
        signature=f"aten._scaled_dot_product_cudnn_attention.default({shape}, {shape}, {shape}, "
        "None, True, 0.0, True)",
        operator="aten._scaled_dot_product_cudnn_attention",
    )

    def stands_for(precision, device):
        (found,) = map_calls([call], "forward", precision, device, None).values()
        return found

    assert stands_for("bf16", "cpu").terms
    found = stands_for("bf16-tc", "cuda:0")
    assert found.lacks
    assert not found.terms


@pytest.mark.parametrize("device", ["cpu", "cuda:0"])
@pytest.mark.parametrize("operand", ["float32[8, 3](3, 1)", "float32[8, 3](3, 1, on='cpu')"])
def test_a_copy_from_the_hosts_memory_has_no_layer(device, operand):
    text = f"aten._to_copy.default({operand}, memory_format=torch.channels_last)"
    call = RecordedCall(signature=text, operator="aten._to_copy", bytes=192)
    (stands_for,) = map_calls([call], "forward", "fp32", device, None).values()
    between = device != "cpu" and "on=" in operand
    assert bool(stands_for.lacks) is between
    assert bool(stands_for.terms) is not between
