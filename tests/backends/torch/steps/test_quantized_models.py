"""Steps of PyTorch's quantized models: types, FLOPs and operands of their calls."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - below importorskip
from torch.ao.quantization import quantize_dynamic  # noqa: E402 - below importorskip

from pydlbench.backends.torch.steps.calls_alone import StepOperands, prepare_calls  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.recording import DispatchRecorder  # noqa: E402 - below importorskip
from pydlbench.calls.seen.aten import meaning_of  # noqa: E402 - below importorskip

pytestmark = pytest.mark.filterwarnings("ignore")


class Convolutions(nn.Module):
    """Two convolutions of bytes, as a converted model makes them."""

    def __init__(self):
        super().__init__()
        weights = torch.quantize_per_tensor(torch.randn(4, 3, 3, 3), 0.1, 0, torch.qint8)
        settings = ([2, 2], [1, 1], [1, 1], 1)
        self.packed = torch.ops.quantized.conv2d_prepack(weights, torch.zeros(4), *settings)

    def forward(self, images):
        source = torch.quantize_per_tensor(images, 0.1, 128, torch.quint8)
        maps = torch.ops.quantized.conv2d_relu(source, self.packed, 0.1, 128)
        return torch.quantized_max_pool2d(maps, [2, 2], [2, 2]).dequantize()


def recorded(model, images):
    with torch.no_grad():
        recorder = DispatchRecorder("cpu", {})
        with recorder:
            model(images)
    return recorder.finish(None).distinct()


def dynamic():
    model = nn.Sequential(nn.Linear(6, 8), nn.ReLU())
    return quantize_dynamic(model, {nn.Linear}), torch.randn(5, 6)


def test_dynamic_products_are_of_integers():
    call, _ = recorded(*dynamic())
    found = meaning_of(call)
    assert (found.dtypes, found.product_flops) == (("u8s8f32",), 2 * 5 * 6 * 8)
    assert [step.layer.problem for step in found.layers] == ["5x6:6x8"]
    # Source, weights and bias, result.
    assert found.bytes == 4 * 5 * 6 + 6 * 8 + 4 * 8 + 4 * 5 * 8


def test_convolutions_and_poolings_of_bytes():
    calls = recorded(Convolutions(), torch.randn(2, 3, 16, 16))
    by_operator = {call.operator: meaning_of(call) for call in calls}
    convolution = by_operator["quantized.conv2d_relu"]
    assert convolution.dtypes == ("u8s8u8",)
    assert convolution.product_flops == 2 * 2 * 4 * 64 * 27
    (step,) = convolution.layers
    assert step.layer.problem == "mb2ic3ih16oc4oh8kh3sh2ph1"
    assert convolution.bytes == 2 * 3 * 256 + 4 * 27 + 4 * 4 + 2 * 4 * 64
    assert by_operator["aten.quantized_max_pool2d"].dtypes == ("u8s8u8",)
    conversion = by_operator["aten.quantize_per_tensor"]
    assert (conversion.flops, conversion.bytes) == (0, 5 * 2 * 3 * 256)


def test_calls_run_alone_on_operands_of_the_step_only():
    model, images = Convolutions(), torch.randn(2, 3, 16, 16)
    signatures = [call.signature for call in recorded(model, images)]
    operands = StepOperands("cpu", signatures)
    with torch.no_grad(), operands:
        model(images)
    ready, reasons = prepare_calls(signatures, "cpu", operands=operands.copied)
    assert set(ready) == set(signatures)
    assert not reasons
    _, reasons = prepare_calls(signatures, "cpu")
    assert any("no operand can be made up for quint8" in why for why in reasons.values())
