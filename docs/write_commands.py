"""Writes docs/commands*.md from the commands' records of options: python docs/write_commands.py.

There is an index, and a page for each group of ``pydlbench --help``. A test compares them with what
this writes.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import TYPE_CHECKING

from pydlbench.cli.options import flag_of
from pydlbench.cli.parser import GROUPS, command_parser, records

if TYPE_CHECKING:
    from pydlbench.cli.options import CommandOptions, Option

DOCS = Path(__file__).parent

_INDEX = """\
# Commands

`pydlbench` and `python -m pydlbench` are the same. Several values of an option are separated by
commas, or the option is repeated. Results go to standard output, progress and warnings to standard
error; `-` in the place of a file is standard output. See [environment variables](environment.md)
and [exit codes](exit-codes.md).

A slow model? Start with `pydlbench step MODEL`.

"""


def pages() -> dict[str, str]:
    """Return the texts of all pages by their names."""
    index, written = [], {}
    for group, commands in GROUPS.items():
        name = f"commands-{group}.md"
        index += [f"| [{group}]({name}) | |", "| :--- | :--- |"]
        index += [f"| [`{c}`]({name}#{c}) | {_cell(shown.help)} |" for c, shown in commands.items()]
        index.append("")
        written[name] = f"# Commands: {group}\n" + "".join(map(_section, commands))
    return {"commands.md": _INDEX + "\n".join(index), **written}


def _section(name: str) -> str:
    lines = ["", f"## {name}", ""]
    for sub, (kind, _) in records(name).items():
        lines += [f"### {name} {sub}", ""] if sub else []
        lines += _options(kind)
    # Examples as they are, then exit codes.
    _, _, rest = str(command_parser(name).epilog).rpartition("examples:\n")
    examples, _, codes = rest.partition("\n\n")
    lines += ["```bash", *(line.strip() for line in examples.splitlines()), "```", ""]
    lines += [f"{codes[:1].upper()}{codes[1:]}.", ""]
    return "\n".join(lines).rstrip("\n") + "\n"


def _options(kind: type[CommandOptions]) -> list[str]:
    lines = [kind.description, ""]
    declared = kind.declared().items()
    for group, found in itertools.groupby(declared, lambda item: item[1].group):
        lines += [f"**{group[:1].upper()}{group[1:]}**", ""] if group else []
        lines += ["| option | meaning |", "| :--- | :--- |"]
        lines += [f"| {_names(name, one)} | {_cell(one.help)} |" for name, one in found]
        lines.append("")
    return [*lines, kind.epilog, ""] if kind.epilog else lines


def _names(name: str, one: Option) -> str:
    if one.argument:
        return f"`{one.metavar}`" + (" ..." if one.many else "")
    shown = f" {one.metavar}" + (",..." if one.many else "") if one.metavar else ""
    return ", ".join(f"`{word}{shown}`" for word in (one.short, flag_of(name)) if word)


def _cell(text: str) -> str:
    for character in "|*<":
        text = text.replace(character, f"\\{character}")
    return text


if __name__ == "__main__":
    argparse.ArgumentParser(description=__doc__).parse_args()
    for name, text in pages().items():
        (DOCS / name).write_text(text, encoding="utf-8")
        print(f"wrote {DOCS / name}")
