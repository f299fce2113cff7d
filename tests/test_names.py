"""The code speaks plain English: limits on what makes it hard to read."""

import ast
import collections
import functools
import io
import re
import tokenize
from pathlib import Path

import pytest

import pydlbench

PACKAGE = Path(pydlbench.__file__).parent
SOURCES = {
    str(path.relative_to(PACKAGE)): path.read_text(encoding="utf-8")
    for path in sorted(PACKAGE.rglob("*.py"))
}
ADJECTIVES = re.compile(
    r"_?(MOST|SHOWN|WORTH|FEW|WIDE|FAR|MANY|ENOUGH|LEAST|SOME|AGAIN|OFTEN|NEAR|LONG|SHORT|SMALL"
    r"|LARGE|BRIEF|TWICE|PLAIN|SURE)"
)
PARSED = functools.cache(ast.parse)
RIDDLE = re.compile(r"#:? ?(Of|What|Whose|So many|So much|Up to so)\b")


def shared_class_names(sources):
    """Return the names that several classes have."""
    counts = collections.Counter(
        node.name
        for source in sources.values()
        for node in ast.walk(PARSED(source))
        if isinstance(node, ast.ClassDef)
    )
    return [name for name, count in counts.items() if count > 1]


def adjective_constants(sources):
    """Return the constants of modules that an adjective names."""
    return [
        f"{name}: {target.id}"
        for name, source in sources.items()
        for node in PARSED(source).body
        if isinstance(node, ast.Assign | ast.AnnAssign)
        for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        if isinstance(target, ast.Name) and ADJECTIVES.fullmatch(target.id)
    ]


def hidden_functions(sources):
    """Return the functions whose locals or parameters hide a function of the same module."""
    hidden = []
    for name, source in sources.items():
        tree = PARSED(source)
        functions = {node.name for node in tree.body if isinstance(node, ast.FunctionDef)}
        for function in ast.walk(tree):
            if isinstance(function, ast.FunctionDef):
                nodes = list(ast.walk(function))
                local = {node.arg for node in ast.walk(function.args) if isinstance(node, ast.arg)}
                local |= {
                    node.id
                    for node in nodes
                    if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
                }
                hidden += [
                    f"{name}: {function_name}" for function_name in sorted(local & functions)
                ]
    return hidden


def docstring_riddles(sources):
    """Return the docstrings that do not say what a function returns."""
    kinds = (ast.FunctionDef, ast.ClassDef, ast.Module)
    return [
        f"{name}: {docstring[:60]}"
        for name, source in sources.items()
        for node in ast.walk(PARSED(source))
        if isinstance(node, kinds)
        and (docstring := ast.get_docstring(node))
        and re.match(r"(Return|Yield) (what|whose|which of)\b", docstring)
    ]


def comment_riddles(sources):
    """Return the comments that begin as a riddle does; following lines are not counted."""
    riddles = []
    for name, source in sources.items():
        if not RIDDLE.search(source):
            continue
        previous = -1
        for token in tokenize.generate_tokens(io.StringIO(source).readline):
            if token.type == tokenize.COMMENT:
                if token.start[0] != previous + 1 and RIDDLE.match(token.string):
                    riddles.append(f"{name}: {token.string[:60]}")
                previous = token.start[0]
    return riddles


@pytest.mark.parametrize(
    ("check", "source"),
    [
        (shared_class_names, "class A: ...\nclass B:\n    class A: ..."),
        (adjective_constants, "_MOST: int = 3\nMOST_ROWS = 4"),
        (hidden_functions, "def rows(): ...\ndef count(rows): ..."),
        (hidden_functions, "def rows(): ...\nclass A:\n    def f(self):\n        rows = 1"),
        (docstring_riddles, 'def f():\n    """Return what is left."""'),
        (comment_riddles, "# Of two rows\n# What follows is not counted\n#: Rows"),
    ],
)
def test_each_check_finds_its_example(check, source):
    assert len(check({"example": source})) == 1


@pytest.mark.parametrize(
    ("check", "limit"),
    [
        (shared_class_names, 3),
        (adjective_constants, 3),
        (hidden_functions, 0),
        (docstring_riddles, 10),
        (comment_riddles, 15),
    ],
)
def test_the_code_keeps_to_the_limits(check, limit):
    findings = check(SOURCES)
    assert len(findings) <= limit, "\n".join(findings)
