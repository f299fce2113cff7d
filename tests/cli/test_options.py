"""An option is declared once, for its commands, their help, a sweep's tables and Python."""

from functools import partial

import pytest

from pydlbench.cli.options import Option, Parser, Quiet, add_options, argument
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


@pytest.mark.parametrize("words", [["--order", "dwon"], ["--odrer", "down"]])
def test_a_mistake_is_answered_with_the_nearest_choice(words):
    with pytest.raises(UsageError, match="down" if words[0] == "--order" else "--order"):
        First.parse(["x", *words])
