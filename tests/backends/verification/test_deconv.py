"""Transposed convolutions: PyTorch in float64 says what is right, and what is not is found."""

from typing import Any

import numpy as np
import pytest

from pydlbench.backends.verification.inputs import make_inputs, round_to
from pydlbench.backends.verification.verify import verify
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer
from pydlbench.ops.table import build_layer

torch = pytest.importorskip("torch")

PROBLEMS = (
    "deconv:mb2ic8ih5iw6oc6kh2sh2",
    "deconv:mb3ic4ih5iw3oc6kh3kw2sh2sw3ph1pw0",
    "deconv:mb2ic4ih5oc6oh10kh3sh2ph1",
    "deconv:g2mb2ic4ih5oc6kh3dh1ph1",
    "deconv:g3mb2ic3ih4oc3kh4sh3",
)
STEPS = [(text, pass_) for text in PROBLEMS for pass_ in parse_problem(text).passes]


def in_torch(layer: Layer, pass_: str, inputs: dict[str, Any], dtype: Any) -> Any:
    """Compute a pass with PyTorch's own function, gradients by its own differentiation."""
    stride = layer.stride[0], layer.stride[1]
    padding = layer.pad_before[0], layer.pad_before[1]
    dilation = layer.dilation[0], layer.dilation[1]
    least = build_layer(
        "deconv",
        batch=1,
        in_channels=1,
        in_size=(layer.in_size[0], layer.in_size[1]),
        out_channels=1,
        kernel=(
            (layer.kernel[0] - 1) * dilation[0] + 1,
            (layer.kernel[1] - 1) * dilation[1] + 1,
        ),
        stride=stride,
        padding=padding,
    )
    further = layer.out_size[0] - least.out_size[0], layer.out_size[1] - least.out_size[1]
    tensors = {
        role: torch.from_numpy(inputs[role]).to(dtype)
        if role in inputs
        else torch.zeros(shape, dtype=dtype)
        for role, shape in layer.shapes().items()
    }
    source, weights = tensors["src"].requires_grad_(), tensors["weights"].requires_grad_()
    result = torch.nn.functional.conv_transpose2d(
        source, weights, None, stride, padding, further, layer.groups, dilation
    )
    if pass_ == "forward":
        return result.detach().numpy()
    result.backward(tensors["dst"])
    return (source if pass_ == "backward-data" else weights).grad.numpy()


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
@pytest.mark.parametrize(("text", "pass_"), STEPS)
def test_right_results_pass(text, pass_, precision):
    layer = parse_problem(text)
    assert layer.op == "deconv"
    inputs = make_inputs(layer, pass_, precision, 3)
    assert set(inputs) == set(layer.reads(pass_))
    exact = in_torch(layer, pass_, inputs, torch.float64)
    verdict = verify(layer, pass_, "fp32", inputs, exact, 3)
    assert verdict.status == "ok"
    assert verdict.rel_error is not None
    assert verdict.rel_error < 1e-12
    assert verdict.points == exact.size
    rounded = round_to(precision, in_torch(layer, pass_, inputs, torch.float32))
    assert verify(layer, pass_, precision, inputs, rounded, 3).status == "ok"


@pytest.mark.parametrize(("text", "pass_"), STEPS)
def test_one_wrong_element_is_found(text, pass_):
    layer = parse_problem(text)
    assert layer.op == "deconv"
    inputs = make_inputs(layer, pass_, "fp32", 3)
    wrong = in_torch(layer, pass_, inputs, torch.float32)
    place = tuple(size // 2 for size in wrong.shape)
    wrong[place] += 1e-3
    verdict = verify(layer, pass_, "fp32", inputs, wrong, 3)
    assert verdict.status == "failed"
    # Its role and place; of weights the last two are taps.
    (role,) = layer.writes(pass_)
    assert verdict.detail.startswith(role)
    assert all(str(index) in verdict.detail for index in place)


def test_checksums_cover_what_points_do_not():
    layer = parse_problem("deconv:mb8ic64ih16oc64kh2sh2")
    assert layer.op == "deconv"
    inputs = make_inputs(layer, "forward", "fp32", 3)
    right = in_torch(layer, "forward", inputs, torch.float32)
    verdict = verify(layer, "forward", "fp32", inputs, right, 3)
    assert verdict.status == "ok"
    assert verdict.points < right.size
    assert verdict.checksums == 8 * 64
    right[5, 17] = np.roll(right[5, 17], 1)
    assert verify(layer, "forward", "fp32", inputs, right, 3).status == "failed"
