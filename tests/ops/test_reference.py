"""Float64 references of some ops by hand; tests of the verification cover the others."""

import itertools
import math
from typing import Any

import pytest
from hypothesis import given, settings

from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.op import Layer

from .conftest import convolutions, poolings, transposed
from .test_windows import meetings

np = pytest.importorskip("numpy")


def drawn(layer: Layer) -> dict[str, Any]:
    rng = np.random.default_rng(3)
    return {role: rng.uniform(-1, 1, layer.shapes()[role]) for role in layer.reads("forward")}


def cross_correlation(layer: Layer, images: Any, weights: Any) -> Any:
    """A convolution by its definition: a sum over taps and elements that meet."""
    result = np.zeros((layer.batch, layer.out_channels, *layer.out_size))
    per_group = layer.out_channels // layer.groups, layer.in_channels // layer.groups
    for out, tap, place in meetings(layer):
        for channel in range(layer.out_channels):
            first = channel // per_group[0] * per_group[1]
            seen = images[(slice(None), slice(first, first + per_group[1]), *place)]
            result[(slice(None), channel, *out)] += seen @ weights[(channel, slice(None), *tap)]
    return result


@settings(max_examples=40)
@given(convolutions())
def test_convolutions_of_any_sides_follow_the_definition(layer):
    given_ = drawn(layer)
    expected = cross_correlation(layer, given_["src"], given_["weights"])
    np.testing.assert_allclose(layer.reference(given_)["dst"], expected, atol=1e-12)
    # The transposed one is the adjoint: <y, conv(x)> = <deconv(y), x>.
    other = transposed(layer)
    outer = np.random.default_rng(4).uniform(-1, 1, other.shapes()["src"])
    back = other.reference({"src": outer, "weights": given_["weights"]})["dst"]
    assert back.shape == layer.shapes()["src"]
    assert np.sum(back * given_["src"]) == pytest.approx(np.sum(outer * expected), abs=1e-9)


@settings(max_examples=40)
@given(poolings())
def test_poolings_of_any_sides_follow_the_definition(layer):
    images = drawn(layer)["src"]
    held: dict[tuple[int, ...], list[Any]] = {}
    for out, _, place in meetings(layer):
        held.setdefault(out, []).append(images[(slice(None), slice(None), *place)])
    found = layer.reference({"src": images})["dst"]
    for out in itertools.product(*map(range, layer.out_size)):
        values = np.array(held.get(out, [np.full(images.shape[:2], -np.inf)]))
        if layer.mode == "avg":
            count = math.prod(layer.kernel) if layer.count_include_pad else len(held.get(out, ()))
            nothing = np.full(images.shape[:2], 0.0 if layer.count_include_pad else np.nan)
            values = np.sum(values, 0) / count if out in held else nothing
        else:
            values = values.max(0)
        np.testing.assert_allclose(found[(slice(None), slice(None), *out)], values, atol=1e-12)


def test_products_spread_over_a_batch():
    given_ = drawn(parse_problem("2x1x5x3:1x4x3x6"))
    found = parse_problem("2x1x5x3:1x4x3x6").reference(given_)["dst"]
    for one, other in itertools.product(range(2), range(4)):
        expected = given_["src"][one, 0] @ given_["weights"][0, other]
        np.testing.assert_allclose(found[one, other], expected)


def test_rows_are_divided_by_their_root_mean_square():
    layer = parse_problem("rmsnorm:mb1ic1ih2iw2eps0.5")
    src = np.array([[[[1.0, 2.0], [3.0, 0.0]]]])
    found = layer.reference({"src": src, "weights": np.array([1.0, 10.0])})["dst"]
    one, other = math.sqrt(2.5 + 0.5), math.sqrt(4.5 + 0.5)
    np.testing.assert_allclose(found, [[[[1 / one, 20 / one], [3 / other, 0]]]])


@pytest.mark.parametrize("causal", [0, 1])
def test_attention_weighs_values_by_the_softmax_of_its_scores(causal):
    layer = parse_problem(f"attention:mb2h4kvh2q3k5d6dv2causal{causal}")
    given_ = drawn(layer)
    found = layer.reference(given_)["dst"]
    for batch, head, query in itertools.product(range(2), range(4), range(3)):
        keys = range(query + 1 if causal else 5)
        q = given_["query"][batch, head, query]
        scores = [math.exp(q @ given_["key"][batch, head // 2, at] / math.sqrt(6)) for at in keys]
        values = [given_["value"][batch, head // 2, at] for at in keys]
        expected = sum(s * v for s, v in zip(scores, values, strict=True)) / sum(scores)
        np.testing.assert_allclose(found[batch, head, query], expected)
