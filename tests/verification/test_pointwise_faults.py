"""Wrong results of memory-bound layers are seen, in the main result and in the others."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from right_results import judged

from pydlbench.errors import UsageError
from pydlbench.ops.descriptor import parse_problem
from pydlbench.verification.elements import expected_pieces, image_view
from pydlbench.verification.inputs import make_inputs, round_to
from pydlbench.verification.verify import Verdict, verify

if TYPE_CHECKING:
    from pydlbench.ops.op import Layer


class Outcome:
    """The inputs and the right results of a pass, to be spoilt and judged."""

    def __init__(
        self, layer: Layer, pass_: str, precision: str = "fp32", propagation: str = "inference"
    ) -> None:
        self.step = layer, pass_, precision
        self.propagation = propagation
        self.inputs = make_inputs(layer, pass_, precision, 5, propagation)
        self.results = right_results(layer, pass_, precision, self.inputs, propagation)

    def judge(self) -> Verdict:
        return judged(*self.step, self.inputs, self.results, self.propagation)

    def becomes(self, other: Layer, **inputs: Any) -> Verdict:
        """Judge what another layer would make of these inputs, or of some others."""
        _, pass_, precision = self.step
        given = {**self.inputs, **inputs}
        self.results = right_results(other, pass_, precision, given, self.propagation)
        return self.judge()


def right_results(
    layer: Layer, pass_: str, precision: str, inputs: Any, propagation: str
) -> dict[str, np.ndarray]:
    roles = layer.writes(pass_, propagation)
    results = {role: np.zeros(layer.shapes()[role], np.float32) for role in roles}
    for piece in expected_pieces(layer, pass_, propagation, inputs):
        stored = "fp32" if layer.in_float32(piece.role) else precision
        place = image_view(layer, piece.role, results[piece.role])
        place[piece.cut] = round_to(stored, piece.value)
    return results


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
@pytest.mark.parametrize(
    "changes",
    [
        {"local_size": 3, "alpha": 3e-4 / 5},
        {"local_size": 7, "alpha": 7e-4 / 5},
        {"alpha": 5e-4},
        {"alpha": 1e-4 / 5},
        {"beta": 0.5},
        {"k": 1.0},
    ],
)
def test_another_neighbourhood(pass_, changes):
    outcome = Outcome(parse_problem("lrn:mb3ic16ih9"), pass_)
    other = outcome.step[0].replace(**changes)
    assert outcome.becomes(other).status == "failed"


@pytest.mark.parametrize("changes", [{"epsilon": 1e-3}, {"momentum": 0.9}])
def test_another_normalisation(changes):
    outcome = Outcome(parse_problem("batchnorm:mb3ic5ih4"), "forward", propagation="training")
    assert outcome.becomes(outcome.step[0].replace(**changes)).status == "failed"


def test_a_biased_running_variance():
    outcome = Outcome(parse_problem("batchnorm:mb3ic5ih4"), "forward", propagation="training")
    old = outcome.inputs["running_variance"]
    new = outcome.results["variance"]
    outcome.results["running_variance"] = np.float32(0.9) * old + np.float32(0.1) * new
    verdict = outcome.judge()
    assert verdict.status == "failed"
    assert verdict.detail.startswith("running_variance[")


def test_inference_is_not_training():
    outcome = Outcome(parse_problem("batchnorm:mb3ic5ih4"), "forward")
    source = outcome.inputs["src"].astype(np.float64)
    own = {
        "mean": source.mean(axis=(0, 2, 3)),
        "variance": source.var(axis=(0, 2, 3)),
    }
    assert outcome.becomes(outcome.step[0], **own).status == "failed"


@pytest.mark.parametrize("pass_", ["forward", "backward-data"])
def test_labels_off_by_one(pass_):
    outcome = Outcome(parse_problem("softmax-xent:mb6ic10"), pass_)
    labels = (outcome.inputs["labels"] + 1) % 10
    verdict = outcome.becomes(outcome.step[0], labels=labels)
    assert verdict.status == "failed"
    assert verdict.detail.startswith("loss[" if pass_ == "forward" else "src[")


def test_the_old_velocity():
    outcome = Outcome(parse_problem("momentum:ic50"), "forward")
    old, velocity = (outcome.inputs[role] for role in ("weights", "velocity"))
    outcome.results["weights"] = old - np.float32(0.01) * velocity
    verdict = outcome.judge()
    assert verdict.status == "failed"
    assert verdict.detail.startswith("weights[")


def test_sources_in_another_order():
    outcome = Outcome(parse_problem("concat:mb2ic3+3ih2"), "forward")
    swapped = {"src": outcome.inputs["src2"], "src2": outcome.inputs["src"]}
    assert outcome.becomes(outcome.step[0], **swapped).status == "failed"


def test_copies_are_exact():
    outcome = Outcome(parse_problem("relu:mb2ic3ih2"), "forward")
    kept = outcome.results["dst"]
    at = np.unravel_index(np.argmax(kept), kept.shape)
    kept[at] = np.nextafter(kept[at], np.float32(2))
    verdict = outcome.judge()
    assert (verdict.status, verdict.tolerance) == ("failed", 0.0)


def test_half_precision_sums_are_seen():
    outcome = Outcome(parse_problem("bias:mb16ic3ih16"), "backward-weights")
    exact = outcome.results["bias"]
    outcome.results["bias"] = round_to("bf16", exact)
    assert outcome.judge().status == "failed"


def test_what_is_not_given_is_said():
    layer = parse_problem("softmax-xent:mb5ic7")
    outcome = Outcome(layer, "forward")
    args = layer, "forward", "fp32", outcome.inputs, outcome.results["dst"], 5
    verdict = verify(*args)
    assert verdict.status == "ok"
    assert verdict.detail == "35 of 35 elements recomputed; not compared: loss"
    assert outcome.judge().detail == "36 of 36 elements of 2 results recomputed"
    with pytest.raises(UsageError, match=r"^extra mean: .*dst, loss$"):
        verify(*args, extra={"mean": outcome.results["loss"]})
    with pytest.raises(UsageError, match=r"loss: has shape \(2,\); expected \(1,\)"):
        verify(*args, extra={"loss": np.zeros(2, np.float32)})
    with pytest.raises(UsageError, match="'labels' is missing"):
        verify(layer, "forward", "fp32", {"src": outcome.inputs["src"]}, args[4], 5)


def test_inputs_of_their_kind():
    norm = parse_problem("batchnorm:mb3ic500")
    for propagation, role in (("inference", "variance"), ("training", "running_variance")):
        variance = make_inputs(norm, "forward", "fp16", 1, propagation)[role]
        assert variance.min() >= 0.5
        assert variance.max() < 1.5
        assert len(np.unique(variance)) > 400
    loss = parse_problem("softmax-xent:mb400ic10")
    labels = make_inputs(loss, "forward", "fp16", 1)["labels"]
    np.testing.assert_array_equal(np.unique(labels), np.arange(10))
    backward = make_inputs(loss, "backward-data", "fp16", 1)
    np.testing.assert_array_equal(backward["labels"], labels)
    np.testing.assert_allclose(backward["dst"].sum(axis=1), 1, atol=0.005)
    np.testing.assert_array_equal(backward["dst"], round_to("fp16", backward["dst"]))
    joined = make_inputs(parse_problem("concat:ic40+40"), "forward", "fp32", 1)
    assert np.mean(joined["src"] == joined["src2"]) < 0.1
