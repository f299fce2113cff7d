"""Writes docs/commands.md from the commands' own parsers: python docs/write_commands.py.

A test compares the page with what this writes.
"""

from __future__ import annotations

import argparse
from pathlib import Path

from pydlbench.cli.parser import COMMANDS, command_parser

PAGE = Path(__file__).with_name("commands.md")

_HEAD = """\
# Commands

Written by `python docs/write_commands.py` from the commands' own parsers.

`pydlbench` and `python -m pydlbench` are the same. Lists are separated by blanks or commas. Results
go to standard output, progress and warnings to standard error; `-` in the place of a file is
standard output. `NO_COLOR` in the environment switches colours off; see
[exit codes](exit-codes.md) for what a command ends with.

| command | what it does |
| :--- | :--- |
"""


def page() -> str:
    """Return the whole page."""
    lines = [f"| [`{name}`](#{name}) | {_cell(one.help)} |" for name, one in COMMANDS.items()]
    return _HEAD + "\n".join(lines) + "\n" + "".join(map(_section, COMMANDS))


def _section(name: str) -> str:
    parser = command_parser(name)
    lines = ["", f"## {name}", "", str(parser.description), ""]
    for group in parser._action_groups:  # noqa: SLF001 - argparse has no other way to list them
        actions = group._group_actions  # noqa: SLF001 - likewise
        rows = [_row(action) for action in actions if action.dest != "help"]
        if not rows:
            continue
        if group.title not in ("positional arguments", "options"):
            title = str(group.title)
            lines += [f"**{title[:1].upper()}{title[1:]}**", ""]
        lines += ["| option | meaning |", "| :--- | :--- |", *rows, ""]
    # Prose, then examples as they are, then exit codes.
    prose, _, rest = str(parser.epilog).rpartition("examples:\n")
    examples, _, codes = rest.partition("\n\n")
    lines += [prose.strip(), ""] if prose.strip() else []
    lines += ["```bash", *(line.strip() for line in examples.splitlines()), "```", ""]
    lines += [f"{codes[:1].upper()}{codes[1:]}.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _row(action: argparse.Action) -> str:
    value = action.metavar or ""
    if not action.option_strings:
        names = f"`{value}`" + (" ..." if action.nargs in ("*", "+") else "")
    else:
        shown = f" {value}" + (" ..." if action.nargs == "+" else "") if value else ""
        names = ", ".join(f"`{one}{shown}`" for one in action.option_strings)
    return f"| {names} | {_cell(action.help or '')} |"


def _cell(text: str) -> str:
    plain = text.replace("%%", "%")
    for character in "|*<":
        plain = plain.replace(character, f"\\{character}")
    return plain


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    PAGE.write_text(page(), encoding="utf-8")
    print(f"wrote {PAGE}")
