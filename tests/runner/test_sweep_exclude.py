"""Rules take out what they match, and a rule with a typing error is no rule."""

from itertools import product

import pytest

from pydlbench.errors import UsageError
from pydlbench.runner.sweep import apply_rules
from pydlbench.runner.tasks import TaskRow

ROWS = [
    TaskRow(
        fields={
            "shape": f"alexnet/{shape}",
            "batch": batch,
            "precision": precision,
            "mode": "",
        },
        label="x",
    )
    for shape, batch, precision in product(
        ("conv1", "conv2", "pool1"), ("1", "16"), ("fp32", "bf16")
    )
]


def left(*rules):
    rows, out = apply_rules("a.toml: [[layers]]", rules, ROWS)
    assert len(rows) + out == len(ROWS)
    return [tuple(row.fields.values()) for row in rows]


def test_all_keys_of_a_rule_must_match_and_one_rule_is_enough():
    assert len(left({"precision": "bf16", "batch": 1})) == 9
    assert len(left({"precision": "bf16"}, {"batch": 16})) == 3
    assert len(left()) == 12


def test_values_may_be_lists_patterns_and_short_names():
    assert {name for name, *_ in left({"shape": "conv*"})} == {"alexnet/pool1"}
    assert {name for name, *_ in left({"shape": ["conv1", "alexnet/pool1"]})} == {"alexnet/conv2"}


@pytest.mark.parametrize(
    ("rule", "message"),
    [
        ({"precison": "bf16"}, "exclude: precison: no such key; nearest: precision"),
        ({"precision": "bf61"}, "exclude: precision = bf61: no row has it; nearest: bf16"),
        ({"batch": "*"}, "exclude: leaves no row"),
        ({"mode": "eager"}, "exclude: mode = eager: no row has it; nearest: leave it out"),
    ],
)
def test_a_rule_that_cannot_be_meant_is_refused(rule, message):
    with pytest.raises(UsageError, match=message) as caught:
        left(rule)
    assert str(caught.value).startswith("a.toml: [[layers]]: ")


def test_a_combination_that_no_row_has_is_refused():
    rows = [
        TaskRow(fields={"a": "1", "b": "2"}, label=""),
        TaskRow(fields={"a": "2", "b": "1"}, label=""),
    ]
    with pytest.raises(UsageError, match="a = 1, b = 1: "):
        apply_rules("x", [{"a": 1, "b": 1}], rows)
