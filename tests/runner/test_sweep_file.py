"""The TOML file: tables become requests, lists become axes, mistakes become one line."""

from itertools import product

import pytest

from pydlbench.errors import UsageError
from pydlbench.runner.sweep import Key, apply_rules, parse_sweep
from pydlbench.runner.tasks import TaskRow

KEYS = {
    "layers": (
        Key(name="shape", takes="many"),
        Key(name="batch", takes="many"),
        Key(name="device", takes="one"),
        Key(name="energy", takes="flag"),
        Key(name="json", takes="one", refused="belongs elsewhere"),
    ),
    "estimate": (
        Key(name="model", takes="one", positional=True),
        Key(name="batch", takes="one"),
        Key(name="phase", takes="one"),
        Key(name="set", takes="pairs"),
    ),
    "step": (Key(name="model", takes="one", positional=True),),
    "breakdown": (),
}


def parse(text: str):
    return parse_sweep("a.toml", text, KEYS)


def requests(text: str) -> list[tuple[str, ...]]:
    return [words for table in parse(text).tables for words in table.requests]


TABLES = '[[layers]]\n[[estimate]]\nmodel = "m"\nbatch = 8'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        (
            '[[layers]]\nshape = ["conv3", "conv4"]\nbatch = [1, 16]',
            ["--shape=conv3 --shape=conv4 --batch=1 --batch=16"],
        ),
        ('[[estimate]]\nmodel = "-x"\nbatch = 1', ["--batch=1 -x"]),
        (
            '[[estimate]]\nmodel = "m"\nset = {lrn = "off", classes = 10}',
            ["--set=lrn=off --set=classes=10 m"],
        ),
        (
            '[[estimate]]\nmodel = "m"\nset = [["lrn=off"], ["lrn=on", "classes=10"]]',
            ["--set=lrn=off m", "--set=lrn=on --set=classes=10 m"],
        ),
        ("[[layers]]\nenergy = true", ["--energy"]),
        ("[[layers]]\nenergy = false", [""]),
        (
            f'[defaults]\nbatch = 4\nphase = "training"\n{TABLES}',
            ["--batch=4", "--batch=8 --phase=training m"],
        ),
    ],
    ids=[
        *("a list of an option that takes many", "an argument", "options together"),
        *("options that alternate", "a flag", "no flag", "defaults"),
    ],
)
def test_tables_become_requests(text, words):
    assert [" ".join(request) for request in requests(text)] == words


def test_a_list_is_an_axis_of_an_option_that_takes_one():
    text = '[[estimate]]\nmodel = ["vgg16", "mnist"]\nbatch = [1, 2]\nphase = "forward"'
    found = requests(text)
    assert len(found) == len(set(found)) == 4
    assert ("--batch=2", "--phase=forward", "mnist") in found


def test_a_table_may_take_some_of_the_defaults_only():
    tables = '[[layers]]\ndefaults = ["batch"]\n[[layers]]\ndefaults = []\n[[layers]]'
    found = parse(f'[defaults]\nbatch = 4\nshape = "a"\n{tables}').tables
    assert [one.requests for one in found] == [
        (("--batch=4",),),
        ((),),
        (("--batch=4", "--shape=a"),),
    ]


def test_tables_keep_the_order_of_the_file():
    text = """
        [[estimate]]  # first
        model = "a"
        [[layers]]\r
        shape = [
        "[[step]]"]
        [["step"]]
        model = "last: its head is quoted"
        [[estimate]]
        model = '''b
[[layers]]'''
    """
    tables = parse(text).tables
    assert [table.kind for table in tables] == ["estimate", "layers", "estimate", "step"]
    assert [table.number for table in tables] == [1, 2, 3, 4]
    assert tables[2].requests == (("b\n[[layers]]",),)


def test_tables_are_numbered_where_there_are_several():
    file = parse('title = "x"\n[[layers]]\n[[layers]]\n[[step]]\nmodel = "m"')
    places = [table.place for table in file.tables]
    assert places == ["a.toml: [[layers]] 1", "a.toml: [[layers]] 2", "a.toml: [[step]]"]
    assert [table.number for table in file.tables] == [1, 2, 3]
    assert file.title == "x"


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[[layers]\n", "a.toml: not TOML: .*line 1"),
        ("", r"a.toml: asks for nothing; nearest: a table \[\[layers\]\]"),
        ("[[layer]]", "a.toml: layer: no such table or key; nearest: layers"),
        ("title = 3\n[[layers]]", "a.toml: title: not a text"),
        ("[layers]\nbatch = 1", r"a.toml: layers: not a list of tables; nearest: \[\[layers\]\]"),
        ("[[layers]]\nshapes = 1", r"a.toml: \[\[layers\]\]: shapes: no such key; nearest: shape"),
        (
            '[[layers]]\nenergy = "yes"',
            'energy = "yes": not true or false; nearest: energy =',
        ),
        ("[[layers]]\nqqq = 1", "no such key; choices: batch, device, energy, shape"),
        ('[[layers]]\njson = "x"', r"\[\[layers\]\]: json: belongs elsewhere"),
        ("[[layers]]\nbatch = []", r"batch = \[\]: empty; nearest: leave it out"),
        ('[[layers]]\nbatch = ""', "batch = .*: empty"),
        ("[[layers]]\nbatch = {a = 1}", r"batch = \{...\}: not a text or a number"),
        ("[[layers]]\nbatch = [true]", "batch = true: not a text or a number"),
        ("[defaults]\nbtch = 1\n[[layers]]", r"\[defaults\]: btch: no such key; nearest: batch"),
        (
            "[[layers]]\ndefaults = false",
            r"\[\[layers\]\]: defaults: not a list of names; nearest: ",
        ),
        ('[[layers]]\ndefaults = ["btch"]', r"defaults: btch: no such key; nearest: batch"),
        ("[[defaults]]\nbatch = 1\n[[layers]]", r"defaults: not a table; nearest: \[defaults\]"),
        ("[[layers]]\nexclude = 3", "exclude: not a list of rules"),
        ("[[layers]]\nexclude = [{}]", "exclude: not a list of rules"),
    ],
)
def test_mistakes_are_one_line_with_file_table_key_and_reason(text, message):
    with pytest.raises(UsageError, match=message) as caught:
        parse(text)
    assert "\n" not in str(caught.value)


# -----------------------------------------------------------------------------
# Rules take out what they match, and a rule with a typing error is no rule.


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
