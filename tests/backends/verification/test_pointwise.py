"""Memory-bound layers: PyTorch in float64 says what is right, and in float32 what must pass."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from pydlbench.backends.verification.checksums import Computed
from pydlbench.backends.verification.inputs import make_inputs, round_to
from pydlbench.backends.verification.pointwise import check_pointwise, expected_pieces
from pydlbench.backends.verification.verify import tolerance, verify
from pydlbench.ops.descriptor import parse_problem
from pydlbench.ops.table import OPS, build_layer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from pydlbench.backends.verification.checksums import Evidence
    from pydlbench.ops.op import Layer

torch = pytest.importorskip("torch")
functional = torch.nn.functional

PROBLEMS = (
    "bias:mb3ic5ih4iw6",
    "relu:mb3ic5ih4iw6",
    "relu6:mb3ic5ih4iw6",
    "hardswish:mb3ic5ih4iw6",
    "hardsigmoid:mb3ic5ih4iw6",
    "scale:mb3ic5ih4iw6",
    "sigmoid:mb3ic5ih4iw6",
    "tanh:mb3ic5ih4iw6",
    "softplus:mb3ic5ih4iw6",
    "elu:mb3ic5ih4iw6",
    "silu:mb3ic5ih4iw6",
    "mish:mb3ic5ih4iw6",
    "gelu:mb3ic5ih4iw6",
    "gelu-tanh:mb3ic5ih4iw6",
    "softmax:mb3ic5ih4iw6",
    "log-softmax:mb3ic5ih4iw6",
    "layernorm:mb3ic5ih4iw6eps0.1",
    "rmsnorm:mb3ic5ih4iw6eps0.1",
    "rmsnorm:mb2ic7ih3iw65",
    "lrn:mb3ic7ih4iw6ls5alpha2k1",
    "lrn:mb2ic3ih4iw6ls11alpha0.5beta0.5",
    "batchnorm:mb3ic5ih4iw6eps0.1mom0.3",
    "batchnorm:mb2ic5",
    "add:mb3ic5ih4iw6",
    "concat:mb3ic2+3+1ih4",
    "softmax-xent:mb5ic7",
    "l2:ic101decay0.25",
    "sgd:ic101lr0.3",
    "momentum:ic101lr0.3mu0.75",
)
STEPS = [
    (text, pass_, propagation)
    for text in PROBLEMS
    for pass_ in parse_problem(text).passes
    for propagation in ("inference", "training")
    if propagation == "inference" or (parse_problem(text).entry.training and pass_ == "forward")
]


def all_expected(
    layer: Layer, pass_: str, inputs: Mapping[str, NDArray[Any]], propagation: str = "inference"
) -> dict[str, NDArray[np.float64]]:
    """Put the reference's pieces together; each element must be in one of them, and in one only."""
    roles = layer.writes(pass_, propagation)
    results = {role: np.zeros(layer.shapes()[role]) for role in roles}
    times = {role: np.zeros(layer.shapes()[role], np.int64) for role in roles}
    for piece in expected_pieces(layer, pass_, propagation, inputs):
        results[piece.role][piece.cut] = piece.value
        times[piece.role][piece.cut] += 1
        assert np.all(piece.size >= 0)
    assert all(np.all(count == 1) for count in times.values())
    return results


def in_torch(
    layer: Layer,
    pass_: str,
    inputs: Mapping[str, NDArray[Any]],
    propagation: str,
    dtype: Any,
) -> dict[str, Any]:
    """Compute a pass with PyTorch's own functions, gradients by its own differentiation."""
    t = {role: torch.tensor(np.asarray(array), dtype=dtype) for role, array in inputs.items()}
    if pass_ == "forward":
        return torch_forward(layer, t, propagation)
    if layer.op == "batchnorm":
        inverse = 1 / torch.sqrt(t["variance"] + layer.epsilon)
        args = t["dst"], t["src"], t["weights"], None, None, t["mean"], inverse, True
        found = torch.ops.aten.native_batch_norm_backward(*args, layer.epsilon, (True, True, True))
        return dict(zip(("src", "weights", "bias"), found, strict=True))
    if layer.op == "layernorm":
        of_rows = (*layer.shapes()["src"][:-1], 1)
        inverse = 1 / torch.sqrt(t["variance"] + layer.epsilon)
        rows = t["mean"].reshape(of_rows), inverse.reshape(of_rows)
        args = t["dst"], t["src"], [layer.width], *rows, t["weights"], t["weights"]
        found = torch.ops.aten.native_layer_norm_backward(*args, [True, True, True])
        return dict(zip(("src", "weights", "bias"), found, strict=True))
    if layer.op in ("softmax", "log-softmax"):
        name = f"_{layer.op.replace('-', '_')}_backward_data"
        backward = getattr(torch.ops.aten, name)
        return {"src": backward(t["dst"], t["result"], -1, dtype)}
    if layer.op == "softmax-xent":
        logits = torch.log(t["dst"])[:, :, 0, 0].requires_grad_()
        functional.cross_entropy(logits, t["labels"].long()).backward()
        return {"src": logits.grad[:, :, None, None]}
    if layer.op == "l2":
        t["weights"].requires_grad_()
        (layer.decay * t["weights"].square().sum() / 2).backward()
        return {"gradient": t["gradient"] + t["weights"].grad}
    if layer.op == "bias":
        t |= {"src": torch.zeros_like(t["dst"]), "bias": torch.zeros(layer.channels, dtype=dtype)}
    wanted = layer.writes(pass_)
    for role in wanted:
        t[role] = t.get(role, torch.zeros(layer.shapes()[role], dtype=dtype)).requires_grad_()
    result = torch_forward(layer, t, propagation)["dst"]
    result.backward(t["dst"])
    return {role: t[role].grad for role in wanted}


def torch_forward(layer: Layer, t: dict[str, Any], propagation: str) -> dict[str, Any]:
    if OPS[layer.op].spread or layer.op == "relu":
        op, _, how = layer.op.partition("-")
        words = {"approximate": how} if how else {}
        return {"dst": getattr(functional, op)(t["src"], **words)}
    if OPS[layer.op].form == "rows":
        return torch_rows(layer, t, propagation)
    if layer.op in ("bias", "scale", "add"):
        return {"dst": torch_binary(layer, t)}
    if layer.op in ("lrn", "batchnorm"):
        return torch_normalised(layer, t, propagation)
    if layer.op == "concat":
        return {"dst": torch.cat([t[role] for role in layer.reads("forward")], dim=1)}
    if layer.op == "softmax-xent":
        logits = t["src"][:, :, 0, 0]
        loss = functional.cross_entropy(logits, t["labels"].long())
        return {"dst": torch.softmax(t["src"], dim=1), "loss": loss[None]}
    if layer.op == "l2":
        return {"dst": t["weights"].square().sum()[None] / 2}
    weights = torch.nn.Parameter(t["weights"])
    mu = layer.mu if layer.op == "momentum" else 0
    optimizer = torch.optim.SGD([weights], lr=layer.rate, momentum=mu)
    weights.grad = t["gradient"]
    if mu:
        optimizer.state[weights]["momentum_buffer"] = t["velocity"]
    optimizer.step()
    return {"weights": weights.detach()} | ({"velocity": t["velocity"]} if mu else {})


def torch_rows(layer: Layer, t: dict[str, Any], propagation: str) -> dict[str, Any]:
    if layer.op == "rmsnorm":
        return {"dst": functional.rms_norm(t["src"], (layer.width,), t["weights"], layer.epsilon)}
    if layer.op != "layernorm":
        return {"dst": getattr(functional, layer.op.replace("-", "_"))(t["src"], -1)}
    args = t["src"], (layer.width,), t["weights"], t["bias"], layer.epsilon
    found = {"dst": functional.layer_norm(*args)}
    if propagation == "training":
        found["mean"] = t["src"].mean(-1).ravel()
        found["variance"] = t["src"].var(-1, unbiased=False).ravel()
    return found


def torch_binary(layer: Layer, t: dict[str, Any]) -> Any:
    if layer.op == "bias":
        return t["src"] + t["bias"][:, None, None]
    return t["src"] * t["src2"] if layer.op == "scale" else t["src"] + t["src2"]


def torch_normalised(layer: Layer, t: dict[str, Any], propagation: str) -> dict[str, Any]:
    if layer.op == "lrn":
        args = t["src"], layer.local_size, layer.alpha, layer.beta, layer.k
        return {"dst": functional.local_response_norm(*args)}
    if propagation == "inference":
        args = t["src"], t["mean"], t["variance"], t["weights"], t["bias"]
        return {"dst": functional.batch_norm(*args, eps=layer.epsilon)}
    running = t["running_mean"].clone(), t["running_variance"].clone()
    options = {"training": True, "momentum": layer.momentum, "eps": layer.epsilon}
    dst = functional.batch_norm(t["src"], *running, t["weights"], t["bias"], **options)
    over = (0, 2, 3)
    return {
        "dst": dst,
        "mean": t["src"].mean(over),
        "variance": t["src"].var(over, unbiased=False),
        "running_mean": running[0],
        "running_variance": running[1],
    }


@pytest.mark.parametrize(("text", "pass_", "propagation"), STEPS)
def test_the_reference_is_what_torch_computes(text, pass_, propagation):
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, "fp32", 3, propagation)
    assert set(inputs) == set(layer.reads(pass_, propagation))
    right = in_torch(layer, pass_, inputs, propagation, torch.float64)
    expected = all_expected(layer, pass_, inputs, propagation)
    assert set(right) == set(expected)
    for role, array in expected.items():
        if (layer.op, pass_) == ("softmax-xent", "backward-data"):
            # Rounded probabilities are not quite those of their own logarithms.
            np.testing.assert_allclose(array, right[role].numpy(), rtol=0, atol=1e-7)
        elif (layer.op, pass_) == ("hardsigmoid", "backward-data"):
            # Torch's sixth is a float32, whatever the type of its tensors.
            np.testing.assert_allclose(array, right[role].numpy(), rtol=1e-7)
        else:
            np.testing.assert_allclose(array, right[role].numpy(), rtol=1e-11, atol=1e-14)


@pytest.mark.product
@pytest.mark.parametrize("precision", ["fp32", "fp16", "bf16-tc"])
@pytest.mark.parametrize(("text", "pass_", "propagation"), STEPS)
def test_right_results_in_float32_pass(text, pass_, propagation, precision):
    layer = parse_problem(text)
    inputs = make_inputs(layer, pass_, precision, 3, propagation)
    found = in_torch(layer, pass_, inputs, propagation, torch.float32)
    results = {
        role: round_to("fp32" if layer.in_float32(role) else precision, tensor.numpy())
        for role, tensor in found.items()
    }
    main, *others = layer.writes(pass_, propagation)
    verdict = verify(
        layer,
        pass_,
        precision,
        inputs,
        results[main],
        3,
        extra={role: results[role] for role in others},
        propagation=propagation,
    )
    if precision == "fp32" and (layer.op, pass_) == ("softmax-xent", "backward-data"):
        # Torch starts from logarithms, which cost it some precision.
        assert verdict.rel_error < 1e-6
    else:
        assert verdict.status == "ok", verdict
    assert verdict.points == sum(array.size for array in results.values())
    assert verdict.checksums == 0


@settings(max_examples=25)
@given(
    batch=st.integers(1, 3),
    channels=st.integers(1, 9),
    size=st.tuples(st.integers(1, 5), st.integers(1, 5)),
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
    (right,) = in_torch(layer, pass_, inputs, "inference", torch.float64).values()
    (expected,) = all_expected(layer, pass_, inputs).values()
    np.testing.assert_allclose(expected, right.numpy(), rtol=1e-11, atol=1e-14)


def test_batchnorm_gradients_are_those_of_the_batchs_own_statistics():
    layer = parse_problem("batchnorm:mb4ic3ih5eps0.01")
    inputs = make_inputs(layer, "backward-data", "fp32", 1)
    source = inputs["src"].astype(np.float64)
    inputs["mean"] = source.mean(axis=(0, 2, 3))
    inputs["variance"] = source.var(axis=(0, 2, 3))
    t = {role: torch.tensor(array, dtype=torch.float64) for role, array in inputs.items()}
    leaves = [t["src"], t["weights"], torch.zeros(3, dtype=torch.float64)]
    x, scale, shift = (leaf.requires_grad_() for leaf in leaves)
    result = functional.batch_norm(x, None, None, scale, shift, training=True, eps=0.01)
    result.backward(t["dst"])
    expected = all_expected(layer, "backward-data", inputs)
    for role, leaf in zip(("src", "weights", "bias"), leaves, strict=True):
        np.testing.assert_allclose(expected[role], leaf.grad.numpy(), rtol=1e-10, atol=1e-13)


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
) -> dict[str, Evidence]:
    """What a comparison of some results with the reference finds."""
    computed = Computed(
        pass_=pass_,
        propagation=propagation,
        precision=precision,
        inputs=inputs,
        results=results,
        rng=np.random.default_rng(1),
    )
    return check_pointwise(layer, computed)


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
        assert len(pieces) > 2
        assert max(piece.value.size for piece in pieces) <= 1 << 17
        all_expected(layer, "forward", inputs)


def test_shapes_are_those_of_all_passes():
    layer = parse_problem("batchnorm:mb2ic3ih4")
    shapes = layer.shapes()
    assert shapes["src"] == shapes["dst"] == (2, 3, 4, 4)
    assert shapes.keys() == {
        *("src", "dst", "weights", "bias", "mean", "variance"),
        *("running_mean", "running_variance"),
    }
    assert parse_problem("concat:ic2+5").shapes()["src2"] == (1, 5, 1, 1)


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
    assert found["bf16-tc"] == found["fp32"] > allowed


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
