"""What calls compute, held against the graphs of our models and against PyTorch's own counter."""

import dataclasses
from collections import Counter

import pytest
from hypothesis import assume, given, reject, settings
from hypothesis import strategies as st

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402 - below importorskip
from torch.nn import functional  # noqa: E402 - below importorskip
from torch.utils.flop_counter import FlopCounterMode, flop_registry  # noqa: E402 - below importorskip

from pydlbench.backends.torch.backend import create  # noqa: E402 - not installed everywhere
from pydlbench.backends.torch.steps.recording import by_module, record  # noqa: E402 - below importorskip
from pydlbench.backends.torch.steps.signature import signature  # noqa: E402 - below importorskip
from pydlbench.backends.torch.worker import serve_call_list  # noqa: E402 - below importorskip
from pydlbench.calls.seen import meaning_of  # noqa: E402 - below importorskip
from pydlbench.calls.seen.aten import leaves  # noqa: E402 - below importorskip
from pydlbench.models import build_model  # noqa: E402 - below importorskip
from pydlbench.models.passes import step_passes  # noqa: E402 - below importorskip
from pydlbench.records.step import StepSpec  # noqa: E402 - below importorskip
from pydlbench.records.trace import RecordedCall  # noqa: E402 - below importorskip

aten = torch.ops.aten


def products(items):
    """Return the convolutions and products among layers and passes, with their numbers."""
    found = Counter()
    for layer, pass_, count in items:
        if layer.multiply_adds:
            found[dataclasses.replace(layer, name=None), pass_] += count
    return found


# Training has the operators of the other phases too.
@pytest.mark.parametrize(
    ("name", "phase"),
    [
        ("mnist", "forward"),
        ("mnist", "training"),
        *(
            pytest.param(name, phase, marks=pytest.mark.deep)
            for name, phase in (
                ("mobilenet-v2", "forward"),
                ("mobilenet-v2", "training"),
                ("alexnet-owt", "training"),
                ("resnet50", "training"),
                ("densenet121", "training"),
            )
        ),
    ],
)
def test_the_products_of_a_recorded_step_are_those_of_its_graph(name, phase):
    model = build_model(name, 2)
    calls = serve_call_list(create("cpu"), StepSpec(model=name, batch=2, phase=phase)).facts.calls
    of_graph = [(one.layer, one.pass_, 1) for one in step_passes(model, phase)]
    mapped = [(one, meaning_of(one)) for one in calls]
    recorded = [(one.layer, one.pass_, call.count) for call, of in mapped for one in of.layers]
    assert products(recorded) == products(of_graph)
    assert sum(call.count * (of.product_flops or 0) for call, of in mapped) == sum(
        layer.flops(pass_) for layer, pass_, _ in of_graph if layer.multiply_adds
    )
    flops = [(call.count * (of.flops or 0), bool(of.layers)) for call, of in mapped]
    assert sum(one for one, native in flops if native) > 0.9 * sum(one for one, _ in flops)


# -----------------------------------------------------------------------------
# Calls on tensors without memory, against PyTorch's results and counter.


def recorded(function, *arguments, direction="forward"):
    """Return a call with its results, on tensors that need no memory."""
    results = function(*arguments)
    tensors = [*leaves([arguments, results], torch.Tensor)]
    return results, RecordedCall(
        signature=signature(function, arguments, {}, "meta"),
        operator=str(function.overloadpacket),
        direction=direction,
        bytes=sum(one.numel() * one.element_size() for one in tensors),
    )


def counted(function, *arguments):
    """Return the FLOPs that PyTorch's counter has for a call."""
    return flop_registry[function.overloadpacket](*arguments, out_val=function(*arguments))


def empty(*shape):
    return torch.empty(shape, device="meta")


@given(
    sides=st.lists(
        st.tuples(*[st.integers(1, n) for n in (12, 4, 3)], st.integers(0, 2), st.integers(1, 2)),
        min_size=1,
        max_size=3,
    ),
    channels=st.tuples(*[st.integers(1, 3)] * 4),
    transposed=st.booleans(),
)
@settings(max_examples=40)
def test_a_mapped_convolution_has_pytorchs_shapes_and_flops(sides, channels, transposed):
    batch, groups, inner, outer = channels
    sizes, kernel, stride, padding, dilation = map(list, zip(*sides, strict=True))
    source = empty(batch, groups * inner, *sizes)
    first, second = (groups * inner, outer) if transposed else (groups * outer, inner)
    weights = empty(first, second, *kernel)
    rest = None, stride, padding, dilation, transposed, [0] * len(sizes), groups
    try:
        result, call = recorded(aten.convolution.default, source, weights, *rest)
    except RuntimeError:
        reject()  # no such convolution
    assume(result.numel())
    found = meaning_of(call)
    (only,) = found.layers
    shapes = only.layer.shapes()
    assert shapes["dst"] == tuple(result.shape)
    assert shapes["weights"] == tuple(weights.shape)
    assert found.flops == only.layer.flops("forward")
    assert found.flops == counted(aten.convolution.default, source, weights, *rest)
    mask = [True, True, False]
    backward = result, source, weights, None, *rest[1:], mask
    _, call = recorded(aten.convolution_backward.default, *backward, direction="backward")
    assert meaning_of(call).product_flops == 2 * found.flops
    if groups == 1:  # others' gradients PyTorch counts as if all channels met all others
        assert counted(aten.convolution_backward.default, *backward) == 2 * found.flops


@given(
    sides=st.tuples(*[st.tuples(*[st.integers(1, n) for n in (12, 4, 4)])] * 2),
    padding=st.tuples(*[st.integers(0, 2)] * 2),
    flags=st.tuples(st.booleans(), st.booleans()),
    mode=st.sampled_from(["max", "avg"]),
)
@settings(max_examples=60)
def test_a_mapped_pooling_has_pytorchs_shapes(sides, padding, flags, mode):
    sizes, kernel, stride = map(list, zip(*sides, strict=True))
    ceil, counted_pads = flags
    if mode == "max":
        function, rest = aten.max_pool2d_with_indices.default, ([1, 1], ceil)
    else:
        function, rest = aten.avg_pool2d.default, (ceil, counted_pads)
    try:
        result, call = recorded(function, empty(2, 3, *sizes), kernel, stride, [*padding], *rest)
    except RuntimeError:
        reject()  # no such pooling
    found = meaning_of(call)
    shape = tuple((result[0] if mode == "max" else result).shape)
    assert found.flops == 6 * shape[2] * shape[3] * kernel[0] * kernel[1]
    for one in found.layers:
        assert one.layer.shapes()["dst"] == shape
        assert one.layer.flops("forward") == found.flops


@given(sizes=st.tuples(*[st.integers(1, 9)] * 4), turned=st.tuples(st.booleans(), st.booleans()))
@settings(max_examples=40)
def test_products_have_pytorchs_flops_however_their_operands_lie(sizes, turned):
    count, m, k, n = sizes
    left = empty(count, k, m).mT if turned[0] else empty(count, m, k)
    right = empty(count, n, k).mT if turned[1] else empty(count, k, n)
    for function, operands in (
        (aten.bmm.default, (left, right)),
        (aten.mm.default, (left[0], right[0])),
        (aten.addmm.default, (empty(n), left[0], right[0])),
    ):
        for direction in ("forward", "backward"):
            found = meaning_of(recorded(function, *operands, direction=direction)[1])
            assert found.product_flops == counted(function, *operands)
            product = found.layers[0]
            assert product.layer.flops(product.pass_) == found.product_flops


# -----------------------------------------------------------------------------
# A step of a small transformer.


class Transformer(nn.Module):
    """A block of attention, a product with a GELU behind it, and scores of words."""

    def __init__(self, *, causal):
        super().__init__()
        self.table, self.norm = nn.Embedding(20, 16), nn.LayerNorm(16)
        self.inner, self.outer, self.scores = (
            nn.Linear(16, 48),
            nn.Linear(16, 16),
            nn.Linear(16, 20),
        )
        self.causal = causal

    def forward(self, words):
        found = self.table(words)
        heads = self.inner(self.norm(found)).unflatten(-1, (3, 4, 4)).permute(2, 0, 3, 1, 4)
        seen = functional.scaled_dot_product_attention(*heads, is_causal=self.causal)
        found = found + self.outer(seen.transpose(1, 2).flatten(2))
        return self.scores(functional.gelu(found))


@pytest.mark.parametrize("causal", [False, True])
def test_a_transformers_flops_are_those_that_pytorch_counts_but_for_hidden_pairs(causal):
    module, words = Transformer(causal=causal), torch.arange(14).reshape(2, 7)
    optimizer = torch.optim.AdamW(module.parameters())

    def step():
        optimizer.zero_grad()
        loss = functional.cross_entropy(module(words).flatten(0, 1), words.flatten())
        loss.backward()
        optimizer.step()

    step()
    parameters = {one: name for name, one in module.named_parameters()}
    calls = record(step, naming=by_module(module), parameters=parameters, optimizer=optimizer)
    found = [(one, meaning_of(one)) for one in calls.distinct()]
    with FlopCounterMode(display=False) as counter:
        step()
    products = sum(one.count * (of.product_flops or 0) for one, of in found)
    attention = sum(one.count * of.product_flops for one, of in found if of.kind == "attention")
    # The counter does not know the CPU's attention: of 8 heads two products and five, each of 7 by
    # 7 pairs and 4 elements; causal ones meet 28 of these pairs.
    assert attention == 2 * 8 * 7 * 4 * (28 if causal else 49)
    assert products - attention == counter.get_total_flops()
    assert [of.flops_missing for _, of in found if of.flops_missing] == []
