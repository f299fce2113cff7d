from __future__ import annotations

import msgspec
import pytest
from check_records import MEASURED_S, make_ledger, make_record
from said import says

from pydlbench.records.check import LedgerTerm, OperatorRow
from pydlbench.report.check import check_conclusion


def test_the_conclusion_names_layer_term_and_next_command():
    lines = check_conclusion(make_record())
    assert says(lines[0], "conv2", "28.0 ms", "24.0 %")
    assert says(lines[1], "operator choice", "17.8 ms", "15.2 %", "fc6 +12.0 ms, fc7 +4.9 ms")
    assert lines[2] == "next: pydlbench diagnose alexnet-owt --batch 32 --framework torch"


def test_alike_layers_count_together():
    operators = make_record().operators
    many = msgspec.structs.replace(operators[2], seconds=0.02, count=3)
    lines = check_conclusion(make_record(operators=(*operators[:2], many)))
    assert says(lines[0], "fc6 and 2 like it", "60.0 ms", "51.4 %")


@pytest.mark.parametrize(
    ("seconds", "phase", "command"),
    [
        (
            {"pointwise": 0.05},
            "training",
            "diagnose alexnet-owt --batch 32 --phase training --framework torch",
        ),
        (
            {"above": 0.0, "operator": 0.0, "allocation": 0.0},
            "forward",
            "check alexnet-owt --batch 32 --framework torch --rounds 10 --explain",
        ),
    ],
)
def test_the_next_command_follows_from_the_largest_term(seconds, phase, command):
    record = make_record(ledger=make_ledger(**seconds), phase=phase)
    assert check_conclusion(record)[-1] == f"next: pydlbench {command}"


def test_the_variant_of_a_model_is_named():
    record = make_record(options={"lrn": "off"}, phase="training", precision="bf16")
    assert check_conclusion(record)[-1] == (
        "next: pydlbench diagnose alexnet-owt --batch 32 --phase training --precision bf16 "
        "--option lrn=off --framework torch"
    )


def test_a_step_at_its_roof_has_no_loss():
    ledger = make_ledger(
        layers=MEASURED_S, above=0.0, operator=0.0, pointwise=0.0, allocation=0.0, dispatch=0.0
    )
    lines = check_conclusion(make_record(ledger=ledger))
    assert says(lines[1], "No term", "0.5 %")


def test_what_an_optimizer_needs_natively_is_no_loss():
    optimizer = OperatorRow(
        name="optimizer", kind="optimizer", count=1, seconds=0.03, native_s=0.01
    )
    term = LedgerTerm(term="optimizer", seconds=0.03, share=0.03 / MEASURED_S, how="alone")
    record = make_record(
        ledger=(*make_ledger()[:-1], term, make_ledger()[-1]),
        operators=(*make_record().operators, optimizer),
    )
    assert says(check_conclusion(record)[1], "optimizer", "native", "20.0 ms", "17.1 %")
    cheap = msgspec.structs.replace(optimizer, native_s=0.02)
    record = msgspec.structs.replace(record, operators=(*make_record().operators, cheap))
    assert says(check_conclusion(record)[1], "operator choice", "17.8 ms")


def test_the_next_command_is_about_the_step_that_was_checked():
    words = {"mode": "compiled", "layout": "nchw", "feed": "host"}
    record = make_record(**words, ledger=make_ledger(allocation=0.05, operator=0.0))
    step = "alexnet-owt --batch 32 --layout nchw --framework torch --mode compiled"
    assert check_conclusion(record)[-1] == f"next: pydlbench diagnose {step}"
    unexplained = make_ledger(above=0.0, operator=0.0, allocation=0.0)
    record = make_record(**words, ledger=unexplained)
    again = f"check {step} --feed host --rounds 10 --explain"
    assert check_conclusion(record)[-1] == f"next: pydlbench {again}"
