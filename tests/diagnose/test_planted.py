"""Each planted fault is named, with what it costs; where it is absent, nobody names it."""

import pytest
from planted import KERNEL_S, Bench, World, explainer, run
from said import says

from pydlbench.diagnose.run import diagnoses
from pydlbench.errors import UnsupportedError
from pydlbench.grouping import group_by
from pydlbench.models import build_model
from pydlbench.records.diagnosis import Diagnosis
from pydlbench.records.step import StepSpec

SLOW, UNPACKED, ONE_BY_ONE = "slow operators", "weights not packed", "operators run one by one"
FRESH = "first touch of fresh memory"


def named(found):
    return {one.problem: one.saving.seconds for one in found.findings}


def causes(finding):
    return {one.name: one.seconds for one in finding.causes}


def near(**seconds):
    # The machine drifts while it is sampled.
    return {name.replace("_", " "): pytest.approx(s, rel=0.05) for name, s in seconds.items()}


@pytest.mark.parametrize("explained", [True, False])
@pytest.mark.parametrize("phase", ["forward", "training"])
def test_without_a_fault_there_is_no_finding(phase, explained):
    found = run(World(), phase=phase, explained=explained)
    assert found.findings == ()
    assert any("no breakdown today" in note for note in found.notes) is not explained


def test_unpacked_weights_of_several_layers_are_one_finding_and_summed():
    found = run(World(unpacked_s={"fc1": 0.02, "fc2": 0.03}))
    assert named(found) == {SLOW: pytest.approx(0.05, rel=0.01)}
    (one,) = found.findings
    assert causes(one) == {UNPACKED: pytest.approx(0.05, rel=0.01)}
    assert set(one.causes[0].where) == {"fc1 forward", "fc2 forward"}
    assert set(one.where) == {"fc1 forward", "fc2 forward"}
    assert one.saving.subject == "layer"
    assert one.saving.share == pytest.approx(0.05 / 0.25, rel=0.05)
    assert one.saving.low < one.saving.seconds < one.saving.high
    assert one.next.startswith("pydlbench layers --shape 4x")
    assert says(one.symptom, "fc2", "torch")
    assert not says(one.symptom, "fc2", "32.0 ms")  # bias rows count too


def equal_layers():
    """Names of convolutions of a model that compute the same."""
    convolutions = [node for node in build_model("vgg16", 4) if node.op == "conv"]
    groups = group_by(convolutions, lambda node: node.layer.replace(name=None))
    return [node.name for node in max(groups.values(), key=len)]


def test_equal_layers_are_a_finding_with_their_number():
    names = equal_layers()
    found = run(World(step_s=0.3, unpacked_s=dict.fromkeys(names, 0.02)), model="vgg16")
    (slow,) = [finding for finding in found.findings if finding.problem == SLOW]
    assert slow.where == (f"{names[0]} and {len(names) - 1} like it forward",)
    assert slow.saving.seconds == pytest.approx(0.02 * len(names), rel=0.01)
    assert slow.parts == {f"{names[0]} forward"}


def test_equal_layers_below_their_roof_are_tried_once():
    found = run(World(step_s=0.1, efficiency=0.1), model="vgg16")
    tried = [each.what for each in found.tried if each.what.endswith("with twice the batch")]
    assert len(set(tried)) == len(tried) == 5
    names = equal_layers()
    assert f"{names[0]} and {len(names) - 1} like it forward with twice the batch" in tried
    assert not any(text.startswith(f"{name} ") for text in tried for name in names[1:])


def test_without_a_breakdown_large_layers_timed_interleaved_still_find_them():
    found = run(World(step_s=0.05, unpacked_s={"fc1": 0.02}), explained=False)
    assert named(found) == {SLOW: pytest.approx(0.02, rel=0.01)}
    assert causes(found.findings[0]) == {UNPACKED: pytest.approx(0.02, rel=0.01)}


def test_a_slower_kernel_is_another_cause_than_unpacked_weights():
    found = run(World(unpacked_s={"fc1": 0.01}, slow_s={"conv2": 0.04}))
    assert named(found) == {SLOW: pytest.approx(0.05, rel=0.01)}
    (one,) = found.findings
    assert [(cause.name, cause.where) for cause in one.causes] == [
        ("slower kernel", ("conv2 forward",)),
        (UNPACKED, ("fc1 forward",)),
    ]
    assert causes(one) == {
        "slower kernel": pytest.approx(0.04, rel=0.01),
        UNPACKED: pytest.approx(0.01, rel=0.01),
    }
    assert one.overlaps == ()


def test_one_operator_with_two_causes_has_shares_of_both():
    found = run(World(unpacked_s={"fc1": 0.01}, slow_s={"fc1": 0.03}))
    (one,) = found.findings
    assert one.problem == SLOW
    assert list(causes(one)) == ["slower kernel", UNPACKED]
    assert causes(one)["slower kernel"] == pytest.approx(3 * causes(one)[UNPACKED])
    assert sum(causes(one).values()) == pytest.approx(one.saving.seconds)


def test_a_slow_layout_is_found_by_the_other_one():
    found = run(World(reorder_s=0.06), layout="nchw")
    assert named(found) == near(layout_reorders=0.06)
    (one,) = found.findings
    assert one.next == "pydlbench diagnose mnist --batch 4 --framework torch"
    assert says(one.symptom, "60.0 ms")
    assert "an invented breakdown" in found.notes


def test_the_right_layout_is_kept():
    found = run(World(reorder_s=-0.05), layout="nchw")
    assert found.findings == ()
    assert any(says(one.what, "channels last") and one.ran for one in found.tried)


def test_fresh_memory_is_found_and_the_better_remedy_leads():
    found = run(World(fresh_s=0.08), phase="training")
    assert named(found) == {FRESH: pytest.approx(0.08, rel=0.05)}
    (one,) = found.findings
    assert one.saving.subject == "step"
    assert says(one.symptom, "80000")
    (other,) = one.alternatives
    assert "GLIBC_TUNABLES=glibc.malloc.hugetlb=1" in other
    assert one.next == "pydlbench breakdown mnist --batch 4 --phase training --framework torch"


@pytest.mark.parametrize(
    ("returned_s", "terms"), [(0.0, ["80.0 ms"]), (0.02, ["80.0 ms", "20.0 ms"])]
)
def test_memory_that_is_returned_is_evidence_of_the_same_finding(returned_s, terms):
    found = run(World(fresh_s=0.08, returned_s=returned_s), phase="training")
    assert named(found) == {FRESH: pytest.approx(0.08 + returned_s, rel=0.05)}
    (one,) = found.findings
    _timed, _counted, *of_breakdown = one.evidence
    assert len(of_breakdown) == len(terms)
    assert all(says(line, term) for line, term in zip(of_breakdown, terms, strict=True))


def test_an_allocator_that_is_not_there_is_not_tried():
    found = run(World(fresh_s=0.08, refuses=("huge pages",)))
    assert named(found) == {FRESH: pytest.approx(0.08, rel=0.05)}
    assert [one.result for one in found.untried] == ["no huge pages here"]


def test_launch_gaps_are_found_by_a_mode_that_joins():
    found = run(World(gaps_s=0.05))
    assert named(found) == {ONE_BY_ONE: pytest.approx(0.05, rel=0.05)}
    (one,) = found.findings
    assert causes(one) == {"launch gaps": one.saving.seconds}
    assert "compiled" in one.next
    assert says(one.alternatives[0], "batch 8", "4 images")


def test_what_joining_saves_has_one_experiment_for_both_its_reasons():
    found = run(World(gaps_s=0.05, pointwise_s=0.03, refuses=()), phase="training")
    (one,) = [one for one in found.findings if one.problem == ONE_BY_ONE]
    assert causes(one) == {"launch gaps": None, "pointwise layers bound by memory": None}
    assert one.saving.seconds == pytest.approx(0.08, rel=0.05)


def test_pointwise_layers_alone():
    found = run(World(step_s=0.1, pointwise_s=0.03))
    assert named(found) == near(operators_run_one_by_one=0.03)
    assert list(causes(found.findings[0])) == ["pointwise layers bound by memory"]


def test_a_slow_optimizer_saves_all_but_what_native_kernels_need():
    found = run(World(optimizer_s=0.1), phase="training")
    # The eight tensors of four layers, 2 ms each.
    assert named(found) == {"slow optimizer": pytest.approx(0.1 - 8 * KERNEL_S, rel=0.05)}
    assert says(found.findings[0].saving.how, "16.0 ms")
    wanted = "--batch 4 --phase forward-backward --framework torch"
    assert found.findings[0].next.endswith(wanted)


def test_an_optimizer_as_fast_as_native_kernels_is_none():
    found = run(World(optimizer_s=8 * KERNEL_S), phase="training")
    assert found.findings == ()
    assert all(one.problem != "slow optimizer" for one in found.tried)


def test_l2_terms_in_the_loss():
    found = run(World(decay_s=0.02), phase="training")
    assert named(found) == {"L2 terms in the loss": pytest.approx(0.02, rel=0.05)}
    assert found.findings[0].next.endswith("--set decay=0 --framework torch")


def test_ragged_channels():
    found = run(World(ragged_s=0.01))
    assert named(found) == {"1 input channels": pytest.approx(0.01, rel=0.05)}
    assert found.findings[0].where == ("conv1 forward",)


def test_an_extra_copy_for_uneven_padding():
    found = run(World(copy_s=0.01), model="alexnet")
    assert named(found) == {"extra copy for uneven padding": pytest.approx(0.01, rel=0.05)}
    assert found.findings[0].where == ("conv1 forward",)
    even = run(World(copy_s=0.01), model="alexnet-owt")
    assert even.findings == ()


def test_layers_far_below_their_roof_are_tried_another_way():
    found = run(World(other_way_s=0.01, efficiency=0.1, step_s=0.05))
    assert "far below its roof" in named(found)
    assert says(found.findings[0].symptom, "10 %")
    fine = run(World(other_way_s=0.01, efficiency=0.9, step_s=0.05))
    assert "far below its roof" not in named(fine)


def test_a_small_batch():
    found = run(World(batch_s=0.04, step_s=0.06))
    assert named(found) == {"small batch": pytest.approx(0.02, rel=0.05)}
    assert found.findings[0].next == "pydlbench diagnose mnist --batch 8 --framework torch"


def test_findings_are_ranked_and_overlaps_are_named_not_added():
    found = run(World(fresh_s=0.03, gaps_s=0.09, unpacked_s={"fc1": 0.02}))
    assert [one.problem for one in found.findings] == [ONE_BY_ONE, FRESH, SLOW]
    assert [one.overlaps for one in found.findings] == [(2, 3), (1,), (1,)]


def test_no_time_no_experiment():
    found = run(World(fresh_s=0.08), limit=1e-9)
    assert found.findings == ()
    assert found.tried == ()
    assert found.untried
    assert all("--minutes" in one.result for one in found.untried)
    assert found.notes


def test_a_narrower_type_that_is_not_there_is_said():
    found = run(World(bound="compute", refuses=("bf16",)))
    assert [(one.what, one.result) for one in found.untried] == [
        ("the step with bf16 products", "no bf16 here")
    ]
    assert all(one.problem != "float32 arithmetic" for one in run(World()).tried)


def test_float32_arithmetic():
    found = run(World(bound="compute", wide_s=0.08))
    assert named(found) == {"float32 arithmetic": pytest.approx(0.08, rel=0.05)}
    assert (
        found.findings[0].next
        == "pydlbench diagnose mnist --batch 4 --precision bf16 --framework torch"
    )


@pytest.mark.parametrize("explained", [True, False])
def test_a_slow_loss(explained):
    world = World(step_s=0.05, slow_s={"loss": 0.02})
    found = run(world, phase="forward-backward", options={"decay": "0"}, explained=explained)
    assert named(found) == {"slow loss": pytest.approx(0.02, rel=0.05)}
    assert found.findings[0].where == ("loss forward",)
    assert list(causes(found.findings[0])) == ["slower kernel"]


def test_a_step_that_cannot_run_is_an_error():
    with pytest.raises(UnsupportedError, match="no eager here"):
        run(World(refuses=("eager",)))


def test_everything_has_a_json_form():
    found = run(World(fresh_s=0.05, unpacked_s={"fc1": 0.02}))
    plain = found.to_dict()
    assert plain["model"] == "mnist"
    assert plain["step"]["time_s"]["median"] == pytest.approx(0.27, rel=0.3)
    first = plain["findings"][0]
    assert {
        "problem",
        "symptom",
        "evidence",
        "cause",
        "causes",
        "saving",
        "next",
        "overlaps",
    } <= set(first)
    assert {"seconds", "ci_low", "ci_high", "share", "subject", "how"} <= set(first["saving"])
    assert plain["terms"][0]["term"] == "fresh memory"


def test_all_kernels_are_released():
    session = Bench(World(fresh_s=0.05, gaps_s=0.05), "mnist", 4)
    step = StepSpec(model="mnist", batch=4)
    assert [*diagnoses(step, session, 1e6, explainer=explainer(session.world))]
    assert session.workers
    assert all(not one.made for one in session.workers.values())


# -----------------------------------------------------------------------------
# Noise is no finding, and a step that was disturbed is known better later.


@pytest.mark.parametrize("seed", range(12))
def test_noise_alone_is_no_finding(seed):
    # Far more noise than any threshold, and a dozen experiments.
    world = World(noise=0.1, seed=seed, efficiency=0.1, bound="compute", step_s=0.05)
    found = run(world, phase="training", model="mnist")
    assert found.findings == ()
    assert len(found.tried) > 8


def test_a_disturbed_step_is_known_better_once_something_ran_beside_it():
    # Disturbed, the step takes ten times as long: fc1's loss would be less than 1 % of it.
    world = World(step_s=0.05, disturbed=9.0, reorder_s=0.02, unpacked_s={"fc1": 0.004})
    found = run(world, layout="nchw", explained=False)
    assert any("other work disturbed the step" in note for note in found.notes)
    assert found.step.time.median > 0.7
    reorders, slow = found.findings
    assert (reorders.problem, slow.problem) == ("layout reorders", "slow operators")
    assert reorders.saving.seconds == pytest.approx(0.02, rel=0.05)
    assert slow.saving.seconds == pytest.approx(0.004, rel=0.05)
    assert slow.saving.share == pytest.approx(0.004 / 0.074, rel=0.05)


# -----------------------------------------------------------------------------
# Ctrl-C in the middle of the experiments: what they have shown until then is not lost.


@pytest.mark.parametrize("problems", [[], ["operators run one by one"]])
def test_there_is_an_answer_once_the_step_is_timed_and_after_each_experiment(problems):
    world = World(gaps_s=0.05, fresh_s=0.03)
    found = run(world, stop=lambda answer: len(answer.settled) == len(problems))
    assert found.step.ok
    assert [one.problem for one in found.findings] == problems
    assert found.tried == found.untried == ()
    assert found.interrupted
    assert Diagnosis.from_dict(found.to_dict()).interrupted


def test_a_resumed_diagnosis_repeats_no_experiment_and_no_native_row():
    world = World(fresh_s=0.03, gaps_s=0.09, unpacked_s={"fc1": 0.02, "fc2": 0.03})
    whole = run(world)
    rows = {}
    keep = {"keep": rows.__setitem__}
    part = run(world, stop=lambda answer: len(answer.settled) == 2, resumed=keep)
    assert 0 < len(part.findings) < len(whole.findings)
    assert part.settled < whole.settled
    assert rows
    again = {}
    resumed = {"before": part, "known": rows.get, "keep": again.__setitem__}
    rest = run(world, resumed=resumed)
    assert again == {}
    assert rest.settled > part.settled
    assert set(named(rest)) == set(named(whole))
    experiments = [name for finding in rest.findings for name in finding.experiments]
    experiments += [tried.what for tried in rest.tried]
    assert len(experiments) == len(rest.settled)  # none was repeated
