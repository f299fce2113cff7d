"""An option is declared once, for its commands, their help, a sweep's tables and Python."""

from functools import partial

import pytest

from pydlbench.cli.options import Option, Parser, Quiet, add_options, argument, flag_of
from pydlbench.cli.parser import COMMANDS, records
from pydlbench.cli.sweep import keys_of, words_of
from pydlbench.cli.values import one_of
from pydlbench.errors import UsageError

# All that a new option of two commands takes.
ORDER = Option(metavar="ORDER", help="order of rows", read=partial(one_of, allowed=("up", "down")))


class First(Quiet):
    """Options of an invented command."""

    what: str = argument("WHAT", "what is done")
    order: str | None = ORDER()


class Second(Quiet):
    """Options of another one, with a default of its own."""

    what: str = argument("WHAT", "what is done")
    order: str = ORDER(default="up")


@pytest.mark.parametrize(("kind", "usual"), [(First, None), (Second, "up")])
def test_an_option_of_two_commands_is_known_to_the_help_a_sweep_and_python(kind, usual):
    assert kind.parse(["x"]).order == usual
    assert kind.parse(["x", "--order", "down"]).order == "down"
    assert "--order ORDER" in add_options(Parser(), kind).format_help()
    assert "order" in [key.name for key in keys_of(kind)]
    assert (
        kind.parse(words_of("pydlbench.first", kind, {"what": "x", "order": "down"})).order
        == "down"
    )


#: Group of the options of compare that are passed on.
PASSED_ON = "what is measured, with models or with --python"
#: Two values of each option that takes several, by the name of the value.
SEVERAL = {
    "NAME=USD": ("RTX 4090=1599", "T4=800"),
    "NAME=N": ("RTX 4090=2500", "T4=30"),
    "NAME=VALUE": ("size=[1,2]", "lrn=off"),
    "NAME[=off]": ("lrn", "dropout=off"),
    "PYTHON": ("a/bin/python", "b/bin/python"),
    "SHAPE": ("8x8:8x8", "4x4:4x4"),
    "MODEL": ("mnist", "vgg16"),
    "N": ("1", "2"),
    "NAME": ("torch", "tensorflow"),
    "PASS": ("forward", "backward-data"),
    "PHASE": ("forward", "training"),
    "KIND": ("inference", "training"),
    "STATE": ("hot", "all-cold"),
    "LAYOUT": ("nchw", "nhwc"),
    "HOW": ("events", "cuda-graph"),
    "WHAT": ("none", "bias"),
    "DEVICE": ("cpu", "cuda:0"),
    "P": ("fp32", "bf16"),
    "MODE": ("eager", "compiled"),
}


def test_values_between_commas_are_those_of_a_repeated_option():
    checked = 0
    for name in COMMANDS:
        for kind, _ in records(name).values():
            for field, known in kind.declared().items():
                # Those that compare passes on to layers or step are read there.
                if known.many and not known.argument and known.group != PASSED_ON:
                    first, second = SEVERAL[known.metavar]
                    flag = flag_of(field)
                    words = [known.read(flag, value) for value in (first, second)]
                    assert known.read(flag, f"{first},{second}") == [*words[0], *words[1]], flag
                    checked += 1
    assert checked > 30


@pytest.mark.parametrize("words", [["--order", "dwon"], ["--odrer", "down"]])
def test_a_mistake_is_answered_with_the_nearest_choice(words):
    with pytest.raises(UsageError, match="down" if words[0] == "--order" else "--order"):
        First.parse(["x", *words])
