"""Memory-bound layers: what they are compared with, piece by piece, and how closely."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from right_results import right_results

from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import IN_PLACE, Functions
from pydlbench.ops.table import OPS, build_layer
from pydlbench.verification.checksums import KernelRun
from pydlbench.verification.elements import (
    check_elements,
    expected_pieces,
    image_view,
)
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import tolerance, verify

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.ops.op import Layer
    from pydlbench.verification.checksums import ElementComparison


def all_expected(
    layer: Layer, pass_: str, inputs: Mapping[str, NDArray[Any]], propagation: str = "inference"
) -> dict[str, NDArray[np.float64]]:
    """Put the reference's pieces together; each element must be in one of them, and in one only."""
    roles = layer.writes(pass_, propagation)
    results = {role: np.zeros(layer.shapes()[role]) for role in roles}
    times = {role: np.zeros(layer.shapes()[role], np.int64) for role in roles}
    for piece in expected_pieces(layer, pass_, propagation, inputs):
        if piece.role not in roles:
            continue
        image_view(layer, piece.role, results[piece.role])[piece.cut] = piece.value
        image_view(layer, piece.role, times[piece.role])[piece.cut] += 1
        assert np.all(piece.size >= 0)
    assert all(np.all(count == 1) for count in times.values())
    return results


@settings(max_examples=25)
@given(
    batch=st.integers(1, 2),
    channels=st.integers(1, 9),
    size=st.tuples(st.integers(1, 3), st.integers(1, 2)),
    half=st.integers(0, 6),
    pass_=st.sampled_from(["forward", "backward-data"]),
)
def test_neighbourhoods_of_any_size(batch, channels, size, half, pass_):
    layer = build_layer(
        "lrn",
        batch=batch,
        channels=channels,
        height=size[0],
        width=size[1],
        local_size=2 * half + 1,
        alpha=3.0,
    )
    inputs = make_inputs(layer, pass_, "fp32", 1)
    (right,) = right_results(layer, pass_, inputs).values()
    (expected,) = all_expected(layer, pass_, inputs).values()
    np.testing.assert_allclose(expected, right, rtol=1e-6, atol=1e-7)


def test_one_value_per_channel_has_no_spread():
    layer = parse_problem("batchnorm:mb1ic4")
    inputs = make_inputs(layer, "forward", "fp32", 1, "training")
    expected = all_expected(layer, "forward", inputs, "training")
    np.testing.assert_array_equal(expected["variance"], 0)
    np.testing.assert_array_equal(expected["dst"][0, :, 0, 0], inputs["bias"])
    np.testing.assert_allclose(
        expected["running_variance"], 0.9 * inputs["running_variance"].astype(np.float64)
    )


def found_in(
    layer: Layer,
    pass_: str,
    propagation: str,
    inputs: dict[str, Any],
    results: dict[str, Any],
    precision: str = "fp32",
) -> dict[str, ElementComparison]:
    """What a comparison of some results with the reference finds."""
    computed = KernelRun(
        pass_=pass_,
        propagation=propagation,
        precision=precision,
        inputs=inputs,
        results=results,
        rng=np.random.default_rng(1),
    )
    return check_elements(layer, computed)


class InSteps(np.ndarray):
    """Numbers of which each result is rounded to bfloat16, as frameworks store them."""

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **options: Any) -> Any:
        plain = [one.view(np.ndarray) if isinstance(one, InSteps) else one for one in inputs]
        result = np.asarray(getattr(ufunc, method)(*plain, **options))
        return result if result.dtype == bool else round_to("bf16", result).view(InSteps)


class WithExponential(Functions):
    """Functions of which the sigmoid is computed as kernels do."""

    def sigmoid(self, x: Any) -> Any:
        return 1 / (1 + np.exp(-x))


@pytest.mark.parametrize(
    "op", [name for name, entry in OPS.items() if entry.elementwise and entry.kind == "pointwise"]
)
def test_formulas_may_be_rounded_in_each_step(op):
    width = 4096
    layer = parse_problem(f"{op}:mb1ic1ih1iw{width}")
    inputs = make_inputs(layer, "forward", "bf16", 1)
    inputs["src"].flat = np.arange(-8, 8, 16 / width)
    inputs = {role: round_to("bf16", array) for role, array in inputs.items()}
    tensors = SimpleNamespace(**{role: array.view(InSteps) for role, array in inputs.items()})
    stepwise = layer.entry.reference(WithExponential(), layer, tensors)
    if isinstance(stepwise, dict):  # of ops that overwrite what they read
        (stepwise,) = stepwise.values()
    verdict = verify(layer, "forward", "bf16", inputs, np.asarray(stepwise), 1)
    assert verdict.status == "ok", verdict


@pytest.mark.parametrize("seed", [0, 1, 2])
@pytest.mark.parametrize(("whole", "others"), [("64", ["1", "1"]), ("64x2", ["1x2", "1x1"])])
@pytest.mark.parametrize(
    "op", [name for name in OPS if name.startswith("elementwise:") and name.endswith(IN_PLACE)]
)
def test_a_kernel_in_place_that_does_nothing_is_wrong(op, whole, others, seed):
    shapes = {"power-in-place": "64by3", "leaky-relu-gradient-in-place": "64:64:1"}
    usual = ":".join([whole, *others][: OPS[op].operand_count])
    layer = parse_problem(f"{op}:{shapes.get(OPS[op].name, usual)}")
    inputs = make_inputs(layer, "forward", "fp32", seed)
    verdict = verify(layer, "forward", "fp32", inputs, inputs["src"].copy(), 1)
    assert verdict.status == "failed"


@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize("op", ["relu6", "hardswish", "hardsigmoid"])
def test_sources_lie_on_both_sides_of_where_a_formula_changes(op, precision):
    source = make_inputs(parse_problem(f"{op}:mb3ic5ih40"), "forward", precision, 1)["src"]
    sizes = np.abs(source)
    assert np.any(source < -6)
    assert np.any(source > 6)
    assert np.any(sizes < 1)
    for kink in (3, 6):
        # A rounding error of the formula is far below that.
        assert np.abs(sizes - kink).min() > 0.01


def test_large_layers_are_compared_in_pieces():
    for text in (
        *("lrn:mb2ic96ih40iw41", "relu:mb2ic96ih40iw41", "softmax-xent:mb300ic1000"),
        *("softmax:mb2ic96ih40iw41", "layernorm:mb1ic500ih1iw400"),
        "rmsnorm:mb1ic500ih1iw400",
    ):
        layer = parse_problem(text)
        inputs = make_inputs(layer, "forward", "fp32", 1)
        pieces = list(expected_pieces(layer, "forward", "inference", inputs))
        assert len(pieces) > 1
        assert max(piece.value.size for piece in pieces) <= 1 << 17
        all_expected(layer, "forward", inputs)


@pytest.mark.parametrize("text", ["softmax-xent:mb64ic1000", "dropout:mb64ic32ih32keep0.9"])
def test_results_below_the_smallest_normal_number_of_float16(text):
    """They have fewer digits: rounded right, they are off by more than the unit roundoff."""
    layer = parse_problem(text)
    inputs = make_inputs(layer, "backward-data", "fp16", 1)
    exact = all_expected(layer, "backward-data", inputs)["src"]
    assert np.any((exact != 0) & (np.abs(exact) < 2.0**-14))
    found = {}
    for precision in ("fp16", "fp16-tc", "bf16-tc", "fp32"):
        right = {"src": round_to("fp16", exact.astype(np.float32))}
        evidence = found_in(layer, "backward-data", "inference", inputs, right, precision)
        found[precision] = evidence["src"].worst.error
    allowed = tolerance("fp16", 2)
    assert found["fp16"] == found["fp16-tc"] < allowed
    # Other formats do have these digits.
    assert min(found["bf16-tc"], found["fp32"]) > allowed


def test_small_results_in_float16_are_not_anything():
    layer = parse_problem("softmax-xent:mb64ic1000")
    inputs = make_inputs(layer, "backward-data", "fp16", 1)
    exact = all_expected(layer, "backward-data", inputs)["src"]
    for factor in (0.97, 1.03):
        wrong = {"src": np.where(np.abs(exact) < 2.0**-14, exact * factor, exact)}
        evidence = found_in(layer, "backward-data", "inference", inputs, wrong, "fp16")
        assert evidence["src"].worst.error > tolerance("fp16", 2)


def test_a_mean_of_differences_from_an_element_is_right():
    """As kernels add them up that want to keep the digits of the variance."""
    layer = parse_problem("batchnorm:mb4ic256ih28")
    inputs = make_inputs(layer, "forward", "fp32", 1, "training")
    by_channel = inputs["src"].transpose(1, 0, 2, 3).reshape(256, -1)
    first = by_channel[:, :1]
    # 64 threads, and then a tree.
    sums = np.zeros((256, 64), np.float32)
    for part in np.split(by_channel - first, by_channel.shape[1] // 64, axis=1):
        sums += part
    while sums.shape[1] > 1:
        sums = sums[:, : sums.shape[1] // 2] + sums[:, sums.shape[1] // 2 :]
    mean = first[:, 0] + sums[:, 0] / np.float32(by_channel.shape[1])
    found = found_in(layer, "forward", "training", inputs, {"mean": mean})["mean"]
    allowed = tolerance("fp32", found.terms)
    assert found.worst.error < allowed / 2
    wrong = mean.copy()
    wrong[7] += np.float32(2e-6)  # an element of 3136 off by 0.006
    found = found_in(layer, "forward", "training", inputs, {"mean": wrong})["mean"]
    assert found.worst.error > allowed


@pytest.mark.parametrize("problem", ["relu:mb64ic16ih32", "batchnorm:mb64ic16ih32", "relu:ic5ih4"])
def test_a_sample_has_the_first_elements_the_last_and_all_that_are_not_finite(problem):
    layer = parse_problem(problem)
    inputs = make_inputs(layer, "forward", "fp32", 1, "training")
    arguments = layer, "forward", "fp32", inputs
    output = right_results(layer, "forward", inputs, "training")["dst"].astype(np.float32)
    whole, some = (
        verify(*arguments, output, seed=1, propagation="training", points=points)
        for points in (None, 1)
    )
    assert whole.status == some.status == "ok"
    assert whole.points == output.size
    assert some.points == min(output.size, 2 << 17)
    wrong = ((0, 9), (-1, 9), (output.size // 2, np.nan), (output.size // 2, np.inf))
    for place, value in wrong:
        broken = output.copy()
        broken.flat[place] = value
        verdict = verify(*arguments, broken, seed=1, propagation="training", points=1)
        assert verdict.status == "failed", (place, value)
