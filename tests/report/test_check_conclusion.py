import math

import msgspec
import pytest
from check_records import make_laps, make_record
from said import says

from pydlbench.records.own import OwnSpec
from pydlbench.report.check import check_conclusion


def test_the_conclusion_names_layer_term_and_next_command():
    lines = check_conclusion(make_record(reorders_s=0.014))
    assert says(lines[0], "conv2", "28.0 ms", "24.0 %")
    assert says(lines[1], "experiment", "layout reorders", "14.0 ms", "12.0 %")
    assert lines[2] == "next: pydlbench diagnose alexnet-owt --batch 32 --framework torch"


def test_what_dominates_has_its_interval_and_its_rivals():
    def measured(width):
        return [
            msgspec.structs.replace(one, ci_low=one.seconds - width, ci_high=one.seconds + width)
            for one in make_record().operators
        ]

    record = make_record(operators=tuple(measured(1e-4)), reorders_s=0.014)
    step = record.measured
    half = math.hypot(1e-4, 0.028 / step.median * (step.ci_high - step.ci_low) / 2) / step.median
    ends = [f"{100 * (0.028 / step.median + sign * half):.1f}" for sign in (-1, 1)]
    assert says(check_conclusion(record)[0], "conv2", "28.0 ms", "24.0 %", "95 %", *ends)
    # 28 ms and twice 13 ms: told apart by less than 2 ms.
    unclear = check_conclusion(make_record(operators=tuple(measured(1.5e-3))))[0]
    assert says(unclear, "conv2 or fc6", "28.0 ms")
    assert "24.0 %" not in unclear


def test_a_model_of_one_s_own_is_diagnosed_with_its_loss_and_not_its_batch():
    record = make_record(model="mine.py:build", own=OwnSpec(loss="sum"), reorders_s=0.014)
    words = check_conclusion(record)[-1].split()
    assert words[:4] == ["next:", "pydlbench", "diagnose", "mine.py:build"]
    assert words[words.index("--loss") + 1] == "sum"
    assert "--batch" not in words


def test_alike_layers_count_together():
    operators = make_record().operators
    names = ("fc6", "fc7", "fc8")
    many = msgspec.structs.replace(operators[2], seconds=0.02, count=3, names=names)
    lines = check_conclusion(make_record(operators=(*operators[:2], many)))
    assert says(lines[0], "fc6 and 2 like it", "60.0 ms", "51.4 %")


def test_what_has_no_cause_yet_is_looked_at_again():
    lines = check_conclusion(make_record())
    assert says(lines[1], "no cause", "operators above native", "15.1 ms", "fc6 +12.0 ms")
    command = "check alexnet-owt --batch 32 --framework torch --laps 18 --explain"
    assert lines[-1] == f"next: pydlbench {command}"


@pytest.mark.parametrize(
    ("ended", "more"),
    [("settled", ""), ("laps", "--laps 18 "), ("time limit", "--stop-after 90 ")],
)
def test_looking_again_asks_for_more_of_what_ended_the_laps(ended, more):
    lines = check_conclusion(make_record(ended=ended, time_limit_s=45.0))
    assert lines[-1].endswith(f"--framework torch {more}--explain")


def test_a_difference_is_called_one():
    lines = check_conclusion(make_record(laps=make_laps(limit=40.0)))
    assert says(lines[1], "difference", "layers above the limit", "conv1 +5.1 ms")


def test_the_variant_of_a_model_is_named():
    record = make_record(
        options={"lrn": "off"}, phase="training", precision="bf16", reorders_s=0.014
    )
    assert check_conclusion(record)[-1] == (
        "next: pydlbench diagnose alexnet-owt --batch 32 --phase training --precision bf16 "
        "--option lrn=off --framework torch"
    )


def test_a_step_at_its_limit_has_no_loss():
    same = dict.fromkeys(("native", "native_hot", "native_cold", "operators"), 116.8)
    laps = make_laps(limit=116.8, step_kept=116.8, **same)
    lines = check_conclusion(make_record(laps=laps, reorders_s=0.0))
    assert says(lines[1], "No term", "0.5 %")


def test_the_next_command_is_about_the_step_that_was_checked():
    words = {"mode": "compiled", "layout": "nchw", "feed": "host"}
    record = make_record(**words, reorders_s=0.014)
    step = "alexnet-owt --batch 32 --layout nchw --framework torch --mode compiled"
    assert check_conclusion(record)[-1] == f"next: pydlbench diagnose {step}"
    again = f"check {step} --feed host --laps 18 --explain"
    assert check_conclusion(make_record(**words))[-1] == f"next: pydlbench {again}"


def test_from_a_disturbed_or_contradicted_check_nothing_is_concluded():
    for record in (make_record(disturbed=True), make_record(reorders_s=5.0)):
        said, following = check_conclusion(record)
        assert said.startswith("Nothing is concluded")
        assert following.startswith("next: pydlbench check")
    slow = tuple(
        msgspec.structs.replace(one, clock_hz={**one.clock_hz, "step": 3.0e9})
        for one in make_laps()
    )
    record = make_record(laps=slow)
    assert record.ledger == ()
    assert check_conclusion(record)[0].startswith("Nothing is concluded: the step")
