"""Native kernels of recorded forward steps compute what the modules do."""

import math
from collections import Counter

import numpy as np
import pytest

torch = pytest.importorskip("torch")
pytest.importorskip("pydlbench._cpu")

from torch import nn  # noqa: E402 - needs torch
from torch.nn import functional as F  # noqa: E402, N812 - PyTorch calls it so itself

from pydlbench.backends.native.links import list_step  # noqa: E402 - needs torch
from pydlbench.backends.native.listing import Listing, problem_text  # noqa: E402 - needs torch
from pydlbench.backends.native.model_chain import NativeChain  # noqa: E402 - needs torch
from pydlbench.backends.steps.inputs import make_batch, make_weights  # noqa: E402 - needs torch
from pydlbench.backends.torch import worker  # noqa: E402 - needs torch
from pydlbench.backends.torch.links import list_recording  # noqa: E402 - needs torch
from pydlbench.backends.torch.steps.recording import by_module, record  # noqa: E402 - needs torch
from pydlbench.backends.torch.steps.step import TorchModel  # noqa: E402 - needs torch
from pydlbench.errors import UnsupportedError  # noqa: E402 - needs torch
from pydlbench.models import build_model  # noqa: E402 - needs torch
from pydlbench.records.step import StepSpec  # noqa: E402 - needs torch


def listed(module, *inputs):
    """Return the kernels of a module, and what it computes."""
    module.eval()
    with torch.no_grad(), worker.without_fused_layers():
        found = record(lambda: [module(*inputs)], naming=by_module(module), parameters={})
        names = {one: name for name, one in module.named_parameters()}
        return list_recording(found, names).listing, module(*inputs).numpy()


def computed(listing, tmp_path):
    """Return what a chain of kernels computes that another process has listed."""
    listing.save(tmp_path)
    made = NativeChain(Listing.load(tmp_path), "channels last")
    made.chain.load()
    made.chain.run()
    return made.output()


def ops(listing):
    return [link.step_pass.layer.op for link in listing.links]


class Function(nn.Module):
    def __init__(self, function):
        super().__init__()
        self.function = function

    def forward(self, x):
        return self.function(x)


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv = nn.Conv2d(4, 4, 3, padding=1)
        self.norm = nn.BatchNorm2d(4)
        self.norm.running_mean.uniform_(-1, 1)
        self.norm.running_var.uniform_(1, 2)

    def forward(self, x):
        return torch.relu_(self.norm(self.conv(x)) + x)


class Transformer(nn.Module):
    """A block of attention and a multi-layer perceptron, as a whole or product by product."""

    def __init__(self, *, fused):
        super().__init__()
        self.fused = fused
        self.queries, self.keys, self.values, self.out = (nn.Linear(8, 8) for _ in range(4))
        self.first, self.second = nn.LayerNorm(8), nn.LayerNorm(8)
        self.mlp = nn.Sequential(nn.Linear(8, 32), nn.GELU(), nn.Linear(32, 8))

    def forward(self, x):
        projected = [one(self.first(x)) for one in (self.queries, self.keys, self.values)]
        heads = [one.view(*x.shape[:2], 2, 4).transpose(1, 2) for one in projected]
        if self.fused:
            attended = F.scaled_dot_product_attention(*heads)
        else:
            scores = heads[0] @ heads[1].transpose(-1, -2) / math.sqrt(4)
            attended = F.softmax(scores, -1) @ heads[2]
        x = x + self.out(attended.transpose(1, 2).reshape(x.shape))
        return x + self.mlp(self.second(x))


class Words(nn.Module):
    def __init__(self):
        super().__init__()
        self.words, self.places = nn.Embedding(11, 8), nn.Embedding(5, 8)
        self.head = nn.Linear(8, 11, bias=False)
        self.head.weight = self.words.weight

    def forward(self, words):
        return self.head(self.words(words) + self.places(torch.arange(words.shape[1]))).mean(1)


class Rotary(nn.Module):
    """A block as Llama's: rotated queries and keys, a causal attention, a gated perceptron."""

    def __init__(self):
        super().__init__()
        self.projection, self.out = nn.Linear(8, 24, bias=False), nn.Linear(8, 8, bias=False)
        self.gates, self.down = nn.Linear(8, 32, bias=False), nn.Linear(16, 8, bias=False)
        self.first, self.second = nn.RMSNorm(8, eps=1e-5), nn.RMSNorm(8, eps=1e-5)

    def forward(self, x):
        angles = torch.arange(x.shape[1])[:, None] / 10.0 ** torch.arange(2)
        angles = torch.cat([angles, angles], -1)
        queries, keys, values = self.projection(self.first(x)).chunk(3, -1)
        heads = [one.unflatten(-1, (2, 4)).transpose(1, 2) for one in (queries, keys, values)]
        for place in (0, 1):
            low, high = heads[place].chunk(2, -1)
            turned = torch.cat([-high, low], -1)
            heads[place] = heads[place] * angles.cos() + turned * angles.sin()
        attended = F.scaled_dot_product_attention(*heads, is_causal=True)
        x = x + self.out(attended.transpose(1, 2).flatten(2))
        gate, value = self.gates(self.second(x)).split(16, -1)
        return x + self.down(F.silu(gate) * value)


class Token(nn.Module):
    """A token that is learnt, in front of each sequence; the result is the one in its place."""

    def __init__(self):
        super().__init__()
        self.token = nn.Parameter(torch.randn(1, 1, 8))
        self.mix = nn.Linear(8, 8)

    def forward(self, x):
        tokens = torch.cat([self.token.expand(x.shape[0], -1, -1), x], 1)
        return self.mix(tokens)[:, 0] * 2


class Parts(nn.Module):
    """Parts of results, first, last and within, and sums over all but the channels."""

    def forward(self, x):
        y = torch.tanh(x)
        inner = y[:, 1:3] * y[:, :2].transpose(2, 3).transpose(2, 3)
        return torch.relu(inner[..., 1:].transpose(1, 3)).sum((0, 2, 3)) + y[0, 1, 2, 1:5]


class Arithmetic(nn.Module):
    """Numbers, factors, operands the other way round, what is overwritten, turned and joined."""

    def forward(self, x):
        y = torch.sub(x * 2 - x.clamp(-0.5, 0.5), x, alpha=3)
        z = F.pixel_shuffle(torch.cat([y, x], 1), 2)
        z += 1
        z.mul_(z.mean((2, 3), keepdim=True))
        return 1 - F.interpolate(z, scale_factor=2, mode="bilinear").transpose(2, 3).contiguous()


def plain():
    return nn.Sequential(
        *(
            nn.Conv2d(3, 8, 3, 2, 1),
            nn.LeakyReLU(0.2),
            nn.MaxPool2d(2),
            nn.Conv2d(8, 8, 3, groups=8),
        ),
        *(nn.GELU(), nn.ConvTranspose2d(8, 6, 2, 2), nn.AdaptiveAvgPool2d(1), nn.Flatten()),
        *(nn.Linear(6, 5), nn.Softmax(-1)),
    )


IMAGES = torch.randn(2, 4, 6, 5, generator=torch.Generator().manual_seed(0))
SENTENCES = torch.randn(2, 5, 8, generator=torch.Generator().manual_seed(1))
MODELS = {
    "residual": lambda: (nn.Sequential(Residual(), Residual(), nn.Flatten()), IMAGES),
    "sequential": lambda: (plain(), torch.ones(2, 3, 20, 24)),
    "sequential, channels last": lambda: (
        plain().to(memory_format=torch.channels_last),
        torch.ones(2, 3, 20, 24).to(memory_format=torch.channels_last),
    ),
    "attention": lambda: (Transformer(fused=True), SENTENCES),
    "attention by products": lambda: (Transformer(fused=False), SENTENCES),
    "words": lambda: (Words(), torch.tensor([[1, 2, 3, 4, 10], [0, 5, 6, 7, 8]])),
    "rotary": lambda: (Rotary(), SENTENCES),
    "encoder": lambda: (nn.TransformerEncoderLayer(8, 2, 16, batch_first=True), SENTENCES),
    "token": lambda: (Token(), SENTENCES),
    "parts": lambda: (Parts(), IMAGES),
    "arithmetic": lambda: (Arithmetic(), IMAGES),
}


@pytest.mark.product
@pytest.mark.parametrize("name", MODELS)
def test_a_chain_computes_what_the_module_does(name, tmp_path):
    torch.manual_seed(0)
    listing, expected = listed(*MODELS[name]())
    found = computed(listing, tmp_path)
    assert found.shape == expected.shape
    np.testing.assert_allclose(found, expected, rtol=1e-4, atol=1e-5)


class Mixed(nn.Module):
    """What a kernel of a gradient is made for of other forward kernels."""

    def __init__(self):
        super().__init__()
        self.words, self.mix = nn.Embedding(7, 8), nn.Linear(8, 6)
        self.first, self.second = nn.Linear(6, 3), nn.Linear(6, 3)
        self.norm = nn.LayerNorm(6)

    def forward(self, words):
        x = self.norm(self.mix(self.words(words)))
        left, right = self.first(x), self.second(x)
        scores = F.softmax(left @ right.transpose(-1, -2) / 2, -1)
        y = torch.cat([left - right, scores @ (left * right)], -1)
        return -F.leaky_relu(y[..., 1:]).square()


def normalised():
    return nn.Sequential(
        *(nn.Conv2d(4, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU(inplace=True)),
        *(nn.MaxPool2d(2), Residual8(), nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(8, 5)),
    )


class Residual8(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.second = nn.Conv2d(8, 8, 3, padding=1), nn.Conv2d(8, 8, 1)

    def forward(self, x):
        return torch.relu_(self.second(F.gelu(self.first(x))) + x)


def of_labels(output):
    return F.cross_entropy(output, torch.tensor([3, 1]))


TRAINED = {
    "normalised": lambda: (normalised(), IMAGES, of_labels),
    "attention": lambda: (Transformer(fused=False), SENTENCES, lambda y: y.square().mean()),
    "encoder": lambda: (
        nn.TransformerEncoderLayer(8, 2, 16, dropout=0, batch_first=True),
        SENTENCES,
        lambda y: y.square().mean(),
    ),
    "mixed": lambda: (Mixed(), torch.tensor([[1, 2, 3], [0, 6, 2]]), torch.sum),
}


def trained_listing(module, inputs, loss_of, optimizer):
    """Return the kernels of a training step, and what makes one more."""

    def step():
        optimizer.zero_grad()
        output = module(inputs)
        loss = loss_of(output)
        loss.backward()
        optimizer.step()
        return [output, loss]

    step()
    parameters = {tensor: name for name, tensor in module.named_parameters()}
    recording = record(step, naming=by_module(module), parameters=parameters, optimizer=optimizer)
    names = {**parameters, **{tensor: name for name, tensor in module.named_buffers()}}
    return list_recording(recording, names, parameters), step


@pytest.mark.parametrize(
    ("module", "inputs", "loss_of", "kind", "named"),
    [
        (nn.Linear(8, 2), SENTENCES, torch.mean, torch.optim.Adam, "aten.addcdiv_"),
        (Words(), torch.tensor([[1, 2, 0, 3, 4]]), torch.mean, torch.optim.SGD, "several ways"),
        (nn.Linear(8, 2), SENTENCES, lambda y: y.exp().sum(), torch.optim.SGD, "gradient of exp"),
        (
            nn.Linear(8, 2),
            SENTENCES[0],
            lambda y: F.cross_entropy(y, torch.ones(5, dtype=torch.int64), reduction="sum"),
            torch.optim.SGD,
            "mean over all labels",
        ),
        (
            nn.Sequential(nn.BatchNorm2d(4).eval(), nn.Conv2d(4, 2, 1)),
            IMAGES,
            torch.mean,
            torch.optim.SGD,
            "fixed statistics",
        ),
    ],
    ids=["adam", "tied weights", "exp", "loss", "fixed statistics"],
)
def test_what_has_no_native_gradient_is_named(module, inputs, loss_of, kind, named):
    with pytest.raises(UnsupportedError, match=named):
        trained_listing(module, inputs, loss_of, kind(module.parameters(), lr=0.1))


@pytest.mark.product
@pytest.mark.parametrize("momentum", [0, 0.9])
@pytest.mark.parametrize("name", TRAINED)
def test_a_chain_of_training_steps_has_the_gradients_and_updates(name, momentum, tmp_path):
    torch.manual_seed(0)
    module, inputs, loss_of = TRAINED[name]()
    optimizer = torch.optim.SGD(module.parameters(), lr=0.01, momentum=momentum)

    made, step = trained_listing(module, inputs, loss_of, optimizer)
    output, _ = step()
    parameters = dict(module.named_parameters())
    made.listing.save(tmp_path)
    chain = NativeChain(Listing.load(tmp_path), "channels last")
    for _ in range(2):
        chain.chain.load()
        chain.chain.run()
        np.testing.assert_allclose(chain.output(), output.detach(), rtol=1e-4, atol=1e-5)
        gradients, expected = dict(chain.gradients()), dict(made.gradients())
        assert gradients.keys() == expected.keys() == parameters.keys()
        for tensor, gradient in expected.items():
            np.testing.assert_allclose(gradients[tensor], gradient, rtol=1e-3, atol=1e-5)
    assert chain.check_update().status == "ok"


def test_views_and_copies_have_no_kernel_and_heads_are_turned():
    listing, _ = listed(Transformer(fused=False), SENTENCES)
    gemm = ["gemm", "bias"]
    assert ops(listing) == [
        *(["layernorm", *gemm] * 3),
        *("permute", "permute", "gemm", "div", "softmax", "permute", "gemm", "permute"),
        *(*gemm, "add", "layernorm", *gemm, "gelu", *gemm, "add"),
    ]
    given = {"first.weight", "queries.weight", "mlp.2.bias"}
    assert given <= listing.given.keys()


def test_what_a_part_is_cut_from_is_cut_once():
    listing, _ = listed(Function(lambda x: torch.add(*torch.tanh(x).chunk(2, 1))), IMAGES)
    first, cut, last = listing.links
    assert (cut.step_pass.layer.op, cut.step_pass.pass_) == ("concat", "backward-data")
    assert cut.reads == {"dst": first.writes["dst"]}
    assert set(last.reads.values()) == set(cut.writes.values())


def test_what_is_overwritten_is_read_as_it_was_before_and_after():
    def twice(x):
        y = x * 2
        z = y + 1
        return torch.mul(y, 3, out=y) + z

    with torch.no_grad():
        found = record(lambda: [twice(IMAGES)], naming=by_module(nn.Identity()), parameters={})
    first, second, third, last = list_recording(found, {}).listing.links
    assert second.reads["src"] == third.reads["src"] == first.writes["dst"]
    assert set(last.reads.values()) == {third.writes["dst"], second.writes["dst"]}


def overwrite(x):
    y = torch.relu(x)
    y[:, 0] = 0
    return torch.relu(y)


def fill(x):
    y = torch.zeros(2, 4, 6, 5)
    y[:, :2] = torch.relu(x[:, 2:])
    return torch.relu(y)


@pytest.mark.parametrize(
    ("module", "named"),
    [
        (nn.Sequential(nn.ReLU(), nn.GroupNorm(2, 4)), "aten.native_group_norm of 1"),
        (Function(fill), "aten.relu"),
        (
            Function(lambda x: torch.cat([torch.tanh(x[:, :1]).expand(-1, 4, -1, -1), x], 1)),
            "aten.cat: elements that are repeated",
        ),
        (Function(lambda x: x.add_(1)), "overwrites what it was given"),
        (Function(overwrite), "aten.fill_"),
        (Function(lambda x: torch.relu(x).topk(2)[0]), "aten.topk"),
        (Function(lambda x: F.dropout(x, training=True)), "aten.bernoulli_"),
        (Function(lambda x: torch.addmm(x[0, 0], x[0, 1], x[0, 2, :5], alpha=2)), "aten.addmm"),
        (nn.Identity(), "returns no result of a call"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_what_has_no_native_kernel_is_named(module, named):
    with pytest.raises(UnsupportedError, match=named) as raised:
        listed(module, IMAGES)
    assert "\n" not in str(raised.value)


@pytest.mark.parametrize("name", ["mnist", "mobilenet-v2"])
@pytest.mark.parametrize("layout", ["nhwc", "nchw"])
def test_a_model_of_the_catalogue_has_the_kernels_of_its_graph(name, layout):
    """Whether its images lie with their channels last or not."""
    model = build_model(name, 1)
    case = StepSpec(model=name, batch=1, layout=layout)
    with TorchModel(model, make_weights(model), case, make_batch(model)) as made:
        made_list = list_recording(made.record().recording, {})

    def problems(links):
        each = (link.step_pass for link in links)
        return Counter(problem_text(one.layer, one.pass_, one.propagation) for one in each)

    assert made_list.notes == ()
    assert problems(made_list.listing.links) == problems(list_step(model, "forward").links)
