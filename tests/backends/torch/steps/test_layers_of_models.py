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
    (nn.SELU(), ROWS, "elu:mb3ic8alpha1.6732632423543772by1.0507009873554805"),
    (nn.ELU(0.5), ROWS, "elu:mb3ic8alpha0.5"),
    (nn.LogSigmoid(), ROWS, "logsigmoid:mb3ic8"),
    (Calling(lambda x: x.masked_fill(x > 0.5, 0.0)), IMAGES, "elementwise:gt:240:1"),
    (Calling(lambda x: x.masked_fill(x > 0.5, 0.0)), IMAGES, "elementwise:select:240:1:240"),
    (Calling(lambda x: torch.where(x[:1] > 0.5, x, 1 - x)), ROWS, "elementwise:select:3x8:3x8:1x8"),
    (Calling(lambda x: x * (x >= 0.5)), ROWS, "elementwise:select:24:1:24"),
    (Calling(lambda x: torch.prod(x, 1)), IMAGES, "reduction:prod:2x6x20:2x1x20"),
    (Calling(lambda x: x.flip(1)), ROWS, "move:flip:3x8by1"),
    (Calling(lambda x: x.roll((1, 2), (2, 3))), IMAGES, "move:roll:2x6x5x4by23"),
    (Calling(lambda x: x.repeat(2, 1, 3)), ROWS, "move:tile:1x3x8:2x3x24"),
    (Calling(lambda x: x[:, None].expand(3, 4, 8).clone()), ROWS, "move:tile:3x1x8:3x4x8"),
    (nn.ReflectionPad2d((1, 1, 2, 2)), IMAGES, "move:reflect:2x6x5x4:2x6x9x6"),
    (Calling(torch.tril), IMAGES, "move:tril:2x6x5x4"),
    (Calling(torch.norm), ROWS, "reduction:norm:24:1"),
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
