"""Published lines, the scripts' format strings, and what protocols print: all of one form."""

from __future__ import annotations

import re
from typing import Any

import pytest
from published_documents import DOCUMENTS
from published_forms import differences, kinds, pattern

from pydlbench.models import build_model
from pydlbench.protocols.data.generated import generate
from pydlbench.protocols.protocol import Subject
from pydlbench.protocols.runner import activations
from pydlbench.protocols.scripts import PROTOCOLS, find_protocol


def document(protocol: str) -> Any:
    return next(one for one in DOCUMENTS if one.protocol == protocol)


def played(world: Any, protocol: str, framework: str) -> list[str]:
    """The lines of a short run with invented numbers, of very different sizes."""
    published = find_protocol(protocol)
    model = build_model(published.models[0], 4)
    subject = Subject(
        model=model.name,
        image=model.image,
        activations=activations(model) if protocol == "alexnet-tutorial" else (),
        framework=framework,
        version="2.13.0",
    )
    data = None
    if published.data is not None:
        data = generate(published.data, train=300, validation=20, test=20)
    this = world(seconds=lambda name, count: 10.0 ** ((count + len(name)) % 5 - 3) * 1.234567)
    settings: dict[str, Any] = {"batch": 4, "steps": 21, "every": 10}
    this.run(protocol, subject, data, quirks=document(protocol).quirks, **settings)
    lines: list[str] = this.lines
    return lines


def test_every_protocol_has_a_document():
    assert [one.protocol for one in DOCUMENTS] == list(PROTOCOLS)


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_published_lines_have_the_scripts_form(protocol):
    one = document(protocol)
    assert differences(one.forms, one.order, one.lines) == []


@pytest.mark.parametrize("framework", ["torch", "tensorflow"])
@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_protocols_print_the_scripts_form(world, protocol, framework):
    one, lines = document(protocol), played(world, protocol, framework)
    assert differences(one.forms, one.head + one.order, lines) == []
    assert set(kinds(one.forms, lines)) >= set(kinds(one.forms, one.lines))


@pytest.mark.parametrize(
    ("text", "words", "right", "wrong"),
    [
        ("%.3f s", (), ["0.100 s", "-12.345 s"], ["0.10 s", "0.1000 s", "1 s"]),
        ("step %d%%", (), ["step 10%"], ["step 1.0%", "step 10"]),
        ("%10.2f", (), ["      1.23", "1234567890.12"], ["     1.23", "       1.23", "1.23"]),
        ("%-6s |", (r"\w+",), ["ab     |", "abcdef |", "abcdefgh |"], ["ab |", "    ab |"]),
        ("%6s |", (r"\w+",), ["    ab |", "abcdefgh |"], ["ab |", "ab     |"]),
        ("a\tb", (), ["a\tb", "a       b"], ["ab"]),
        ("f(x) = %s", ("a|b",), ["f(x) = a"], ["f(x) = c", "fx = a"]),
    ],
)
def test_format_strings_as_patterns(text, words, right, wrong):
    found = re.compile(pattern(text, words))
    assert all(found.fullmatch(line) for line in right)
    assert not any(found.fullmatch(line) for line in wrong)
