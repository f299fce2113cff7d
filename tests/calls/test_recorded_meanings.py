"""Recorded meanings of calls of published models; see ``benchmarks/meanings.py``."""

import importlib
import json
import lzma
import re
import sys
from collections import Counter
from pathlib import Path

import pytest

from pydlbench.calls.seen import meaning_of
from pydlbench.records.trace import RecordedCall

RECORDED = Path(__file__).parent / "recorded" / "meanings.jsonl.xz"
#: The default set checks every 29th call.
_PART = 29
_ADDITION = RecordedCall(
    signature="aten.add.Tensor(float32[8, 4](4, 1), float32[8, 4](4, 1))",
    operator="aten.add",
    bytes=3 * 128,
)
_UNKNOWN = RecordedCall(signature="aten.nope.default(float32[8](1))", operator="aten.nope")


@pytest.fixture(scope="module")
def script():
    folder = str(Path(__file__).parents[2] / "benchmarks")
    sys.path.insert(0, folder)
    yield importlib.import_module("meanings")
    sys.path.remove(folder)


def lines(part=1):
    """Return every ``part``-th recorded line."""
    with lzma.open(RECORDED, "rt", encoding="utf-8") as file:
        file.readline()
        return [json.loads(text) for number, text in enumerate(file) if number % part == 0]


def shown(different):
    return "\n".join(f"{line['signature'][:300]}\n{words}" for line, words in different[:5])


def test_a_part_of_the_recorded_calls_means_what_it_did(script):
    taken = lines(_PART)
    frameworks = Counter(line["framework"] for line in taken)
    assert min(frameworks[one] for one in script.FRAMEWORKS) > 20
    different = list(script.differences(taken))
    assert not different, shown(different)


@pytest.mark.deep
def test_every_recorded_call_means_what_it_did(script):
    different = list(script.differences(lines()))
    assert not different, f"{len(different)}\n{shown(different)}"


def test_a_call_of_any_operator_with_too_few_arguments_says_so_in_words():
    firsts = {}
    for line in lines():
        if line["signature"].startswith(("aten.", "mkldnn.")):
            firsts.setdefault(line["operator"], line["signature"])
    assert len(firsts) > 150
    python = re.compile(r"index out|object|attribute|unsupported operand|argument of type|unpack")
    told = set()
    for operator, signature in firsts.items():
        name, _, rest = signature.partition("(")
        given = re.findall(r"(?:\[[^]]*\]\([^)]*\)|\[[^]]*\]|[^,[])+", rest[:-1])
        for arguments in (
            *(given[:count] for count in range(len(given))),
            [re.sub(r"^ ?(-?[\d.]+|True|False)$", "<Scalar>", each) for each in given],
            [re.sub(r"^ ?\[[^]]*\]$", "None", each) for each in given],
            [re.sub(r"\[[\d, ]+\]\([^)]*\)", "[()]()", each) for each in given],
        ):
            text = f"{name}({','.join(arguments)})"
            found = meaning_of(RecordedCall(signature=text, operator=operator))
            reasons = filter(None, (found.flops_missing, found.layers_missing))
            told |= {(text, why) for why in reasons if python.search(why)}
    assert not told


@pytest.fixture
def kept(script, tmp_path):
    """A file of two calls."""
    found = script.Meanings(tmp_path / "kept.jsonl.xz")
    assert found.add("torch mine forward", "torch", [_ADDITION, _UNKNOWN]) == 2
    found.libraries["torch"] = "1.0"
    found.write()
    return found


def test_a_file_has_each_call_once_with_its_meaning(script, kept):
    again = script.Meanings(kept.path)
    assert (again.models, again.libraries) == ({"torch mine forward": 2}, {"torch": "1.0"})
    assert again.lines == kept.lines
    assert again.add("torch other forward", "torch", [_UNKNOWN]) == 0
    addition, unknown = (
        kept.lines[one.signature, "forward"]["meaning"] for one in (_ADDITION, _UNKNOWN)
    )
    assert addition == {
        "kind": "elementwise",
        "layers": ["pointwise add:mb8ic4 forward"],
        "flops": 32,
        "product_flops": 0,
        "bytes": 384,
        "dtypes": ["float32"],
    }
    assert unknown["kind"] == "other"
    assert unknown["flops_missing"] == "nope: no rule for this operator"


def run(script, monkeypatch, *words):
    monkeypatch.setattr(sys, "argv", ["meanings.py", *map(str, words)])
    return script.main()


def test_another_meaning_is_told_and_can_be_accepted(script, kept, monkeypatch, capsys):
    assert run(script, monkeypatch, "--check", kept.path) == 0
    assert "0 of 2 meanings differ" in capsys.readouterr().out
    kept.lines[_ADDITION.signature, "forward"]["meaning"]["flops"] = 31
    kept.write()
    assert run(script, monkeypatch, "--check", kept.path) == 1
    told = capsys.readouterr().out
    assert "flops: 31 -> 32" in told
    assert "1 of 2 meanings differ" in told
    assert run(script, monkeypatch, "--accept", kept.path) == 0
    assert run(script, monkeypatch, "--check", kept.path) == 0
