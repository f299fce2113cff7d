"""Calls of small models with ops that catalogue models lack: which have a layer, and which one."""

import pytest

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - below importorskip
from torch.nn import functional as F  # noqa: E402, N812 - as PyTorch calls it

from pydlbench.backends.torch.steps.recording import by_module, record  # noqa: E402 - below importorskip
from pydlbench.calls.seen import meaning_of  # noqa: E402 - below importorskip
from pydlbench.records.trace import RecordedCall  # noqa: E402 - below importorskip

IMAGES, ROWS = (2, 6, 5, 4), (3, 8)


class Calling(nn.Module):
    def __init__(self, function, *modules):
        super().__init__()
        self.function, self.parts = function, nn.ModuleList(modules)

    def forward(self, x):
        return self.function(*self.parts, x)


MODELS = [
    (nn.GroupNorm(3, 6), IMAGES, "groupnorm:mb2ic6ih5iw4g3"),
    (nn.InstanceNorm2d(6), IMAGES, "groupnorm:mb1ic12ih5iw4g12factors0"),
    (nn.Softmax(1), IMAGES, "softmax:mb2ic6ih1iw20axis1"),
    (nn.Hardtanh(-2, 1), IMAGES, "hardtanh:mb2ic6ih5iw4alpha-2"),
    (nn.PReLU(6), IMAGES, "elementwise:leaky-relu:2x6x20:1x6x1"),
    (Calling(lambda x: torch.cumsum(x, 1)), ROWS, "cumsum:mb3ic1ih1iw8"),
    (Calling(lambda x: torch.max(x, 1)[0]), IMAGES, "reduction:max-indices:2x6x20:2x1x20"),
    (Calling(lambda x: torch.argmin(x, 1)), ROWS, "reduction:argmin:3x8:3x1"),
    (Calling(lambda x: torch.logsumexp(x, 1)), ROWS, "reduction:logsumexp:3x8:3x1"),
    (Calling(lambda x: torch.cat([x, x], 2)), IMAGES, "concat:mb12ic5+5ih1iw4"),
    (
        Calling(lambda x: x.view(2, 2, 3, 20).transpose(1, 2).contiguous()),
        IMAGES,
        "move:permute:2x2x3x20by0213",
    ),
    (Calling(lambda lin, n, x: F.hardtanh(n(lin(x))), nn.Linear(8, 8), nn.LayerNorm(8)), ROWS, ""),
]


@pytest.mark.parametrize(("model", "shape", "layer"), MODELS)
def test_every_call_has_a_layer(model, shape, layer):
    images = torch.rand(shape)

    def step():
        with torch.no_grad():
            return model(images)

    found = []
    for call in record(step, naming=by_module(model), parameters={}).calls:
        recorded = RecordedCall(signature=call.signature, operator=call.operator, bytes=call.bytes)
        meaning = meaning_of(recorded)
        assert meaning.kind == "view" or meaning.layers, (call.signature, meaning.layers_missing)
        found += [one.layer.problem for one in meaning.layers]
    assert layer in found or not layer, found
