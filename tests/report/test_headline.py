"""The finding above a report: the largest that its interval supports, of all levels."""

import json
from pathlib import Path

import msgspec
import pytest
from invented_evidence import row
from said import says

from pydlbench.analysis.estimate import estimate, plan_step
from pydlbench.cli.runs import stored_report
from pydlbench.compare.rows import match, side_of
from pydlbench.compare.stored import compare
from pydlbench.models import build_model
from pydlbench.records.breakdown import Alternative, BreakdownRecord
from pydlbench.report.blocks import Headline, LostTime, largest_loss
from pydlbench.report.breakdown import breakdown_report, conclusion
from pydlbench.report.compare import conclude
from pydlbench.report.estimate import estimate_report
from pydlbench.store.documents import load

RECORDED = Path(__file__).parents[1] / "end_to_end" / "recorded"


@pytest.mark.parametrize(
    ("losses", "largest"),
    [
        ([(3.0, 2.9, "a"), (2.0, 1.9, "b")], "a"),
        ([(9.0, 0.1, "wide"), (2.0, 1.9, "b")], "b"),
        ([(9.0, -1.0, "nothing"), (2.0, None, "single round")], "single round"),
        ([(9.0, -1.0, "nothing")], None),
        ([], None),
    ],
)
def test_the_largest_loss_is_one_that_its_interval_supports(losses, largest):
    found = largest_loss([LostTime(*loss, "pydlbench diagnose") for loss in losses])
    assert (found and found.text) == largest


def test_a_breakdown_begins_with_what_saves_most_not_with_the_slowest_module(run_record):
    record = BreakdownRecord.from_dict(json.loads((RECORDED / "breakdown.json").read_text()))
    step_s = record.measured.median
    kept = Alternative(
        change="kept pages",
        median=step_s / 4,
        saved=0.75 * step_s,
        ci_low=0.7 * step_s,
        ci_high=0.8 * step_s,
        n=6,
        how="an environment variable",
    )
    first, *_, following = conclusion(msgspec.structs.replace(record, alternatives=(kept,)))
    assert says(first, "kept pages", "4.0x as fast", "75 %")
    assert following.startswith("next: GLIBC_TUNABLES=")
    assert "pydlbench step mnist --batch 2" in following
    for low, found in ((-0.1, ()), (0.2, ("kept pages", "at least", "20 %"))):
        doubtful = msgspec.structs.replace(kept, saved=2.0 * step_s, ci_low=low * step_s)
        first, second, *_ = conclusion(msgspec.structs.replace(record, alternatives=(doubtful,)))
        assert says(first, *found)
        assert says(second, "not beyond doubt", "kept pages", "200 %") is (not found)
        assert says(first, "kept pages") == bool(found)
    (headline, *_) = breakdown_report(run_record, [{"status": "ok", **record.to_dict()}])
    assert isinstance(headline, Headline)


def test_a_breakdown_whose_intervals_support_no_loss_begins_with_the_step():
    record = BreakdownRecord.from_dict(json.loads((RECORDED / "breakdown.json").read_text()))
    terms = [msgspec.structs.replace(term, ci_low=-1.0) for term in record.terms]
    wide = msgspec.structs.replace(record, terms=tuple(terms), alternatives=())
    for changed in (wide, msgspec.structs.replace(wide, contradictions=("invented",))):
        first, *_, following = conclusion(changed)
        assert says(first, "The step takes 2.697 ms", "no")
        assert following.startswith("next: pydlbench")


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.json")), ids=lambda path: path.stem)
def test_every_report_of_results_begins_with_its_headline(path):
    blocks = stored_report(load(str(path), None))
    if path.stem != "protocol":  # numbers of a published script, without a conclusion
        assert isinstance(blocks[0], Headline)
        assert blocks[0].lines[0][-1:] not in ("", ":")


@pytest.mark.parametrize(
    ("seconds", "contended", "first", "following"),
    [
        ({"conv2": 9.0}, False, ("conv2 dominates", "58.3 %"), "step"),
        (
            {"conv2": 9.0, "fc1": 9.0},
            False,
            ("no layer dominates", "conv2", "38.7 %", "fc1"),
            "step",
        ),
        ({}, False, ("no layer dominates", "conv1", "15.4 %", "conv2, fc1 and fc2"), "step"),
        ({"conv2": 9.0}, True, ("the limit of the hardware", "16.5 s"), "estimate"),
    ],
    ids=["one layer", "two alike", "all alike", "disturbed"],
)
def test_an_estimate_begins_with_its_dominant_layers(
    run_record, seconds, contended, first, following
):
    made = plan_step(build_model("mnist", 1))
    rows = {
        case: msgspec.structs.replace(
            row(case, seconds.get(case.layer.name.rpartition("/")[2], 0.625), roof=0.5, width=0.01),
            contended=contended,
        )
        for case in made.specs
    }
    headline, *_ = estimate_report(run_record, estimate(made, rows), list(rows.values()))
    assert says(headline.lines[0], *first)
    assert ("dominates" in headline.lines[0]) != contended
    assert headline.lines[-1].startswith(f"next: pydlbench {following} mnist")


def test_rows_of_one_layer_are_told_apart_where_they_differ():
    a, b = (
        side_of(name, load(str(RECORDED / name), None))
        for name in ("layers.json", "layers-later.json")
    )
    first, *_ = conclude(compare(a, b, match(a, b)))
    assert says(first, "slow", "backward-weights", "fast", "backward-data")
