"""Which kernels an estimate measures: one for each distinct piece of a model's work."""

import pytest

from pydlbench.analysis.estimate import plan_step
from pydlbench.errors import UsageError
from pydlbench.models import build_model
from pydlbench.models.passes import step_passes


def test_a_plan_has_a_term_for_each_piece_of_work():
    model = build_model("alexnet-owt", 2)
    found = plan_step(model, "training")
    assert [term.step_pass for term in found.terms] == list(step_passes(model, "training"))


def test_identical_kernels_are_measured_once():
    model = build_model("resnet152", 2)
    found = plan_step(model, "training")
    assert len(found.terms) > 1000
    assert len({term.hot for term in found.terms}) < 300
    assert len(found.specs) == len(set(found.specs))


def test_kernels_that_differ_in_their_names_only_are_one_case():
    found = plan_step(build_model("vgg16", 1))
    conv = [t for t in found.terms if t.step_pass.node in ("conv3_2", "conv3_3")]
    convolutions = [t for t in conv if t.step_pass.layer.kind == "conv2d"]
    assert len({t.step_pass.layer.name for t in convolutions}) == 2
    assert len({t.hot for t in convolutions}) == 1


def test_hot_and_cold_stand_beside_each_other():
    cases = plan_step(build_model("mnist", 1)).specs
    assert [case.cache for case in cases[:4]] == ["hot", "all-cold", "hot", "all-cold"]


def test_what_no_cache_holds_is_measured_once():
    model = build_model("vgg11", 4)
    some = plan_step(model, cache_bytes=1 << 20)
    none = plan_step(model, cache_bytes=1)
    both = plan_step(model, cache_bytes=1 << 40)
    assert {case.cache for case in none.specs} == {"hot"}
    assert len(none.specs) < len(some.specs) < len(both.specs)
    for term in some.terms:
        big = term.step_pass.layer.bytes(term.step_pass.pass_, 4) >= 4 << 20
        assert term.cold.cache == ("hot" if big else "all-cold")


def test_bf16_needs_half_the_bytes():
    model = build_model("vgg11", 4)
    assert len(plan_step(model, precision="bf16", cache_bytes=1 << 22).specs) > len(
        plan_step(model, precision="fp32", cache_bytes=1 << 22).specs
    )


def test_an_unknown_phase_is_refused():
    with pytest.raises(UsageError, match="training"):
        plan_step(build_model("mnist", 1), "trainin")
