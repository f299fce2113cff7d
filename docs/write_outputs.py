"""Writes the outputs of commands into the pages that show them, and the README's pictures.

    python docs/write_outputs.py                                 # all, on an otherwise idle machine
    python docs/write_outputs.py README.md                       # one page
    python docs/write_outputs.py --before venv/bin/python        # an older installation to compare
    python docs/write_outputs.py --pictures                      # the README's pictures

A block of commands with their outputs is fenced as ``console``: each line that begins with ``$ ``
is run in a terminal of 100 columns, and the lines below it are replaced by what it prints. An
output that ends with ``...`` is cut after as many lines as it has. The commands run in a folder
that has ``examples/``, its files, and the installations ``before`` and ``after``; runs are kept in
a store of their own, which ``--store`` names. Run it by the interpreter of an environment in which
pydlbench is installed, with torch and vl-convert.
"""

from __future__ import annotations

import argparse
import json
import os
import pty
import re
import shlex
import subprocess
import sys
import tempfile
import termios
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[1]
PAGES = ("README.md", "docs/tutorial.md")
COLUMNS = 100
CUT = "..."
BLOCK = re.compile(r"(?<=^```console\n).*?(?=^```$)", re.DOTALL | re.MULTILINE)
PICTURES = ROOT / "docs" / "pictures"
#: What is measured for a picture of the levels of a breakdown.
DRAWN = "pydlbench breakdown examples/reviews.py:build --phase training --optimizer adamw"
#: A breakdown that is kept, for the picture beside it.
KEPT = ROOT / "benchmarks" / "results" / "nvidia-h200" / "breakdown-gpt2-training.json"


def outputs_of(block: str) -> list[tuple[str, list[str]]]:
    """Return the commands of a block with the lines that they print."""
    pairs: list[tuple[str, list[str]]] = []
    for line in block.splitlines():
        if line.startswith("$ "):
            pairs.append((line[2:], []))
        else:
            pairs[-1][1].append(line)
    return pairs


def cut(printed: list[str], shown: list[str]) -> list[str]:
    """Return what is shown of an output in the place of what was shown before."""
    if shown[-1:] == [CUT] and len(printed) > len(shown):
        return [*printed[: len(shown) - 1], CUT]
    return printed


def run(command: str, folder: Path, store: Path) -> list[str]:
    """Run a command in a terminal, and return the lines that it prints there."""
    print(f"$ {command}", file=sys.stderr, flush=True)
    ours, its = pty.openpty()
    termios.tcsetwinsize(its, (50, COLUMNS))
    environment = {name: value for name, value in os.environ.items() if name != "COLUMNS"}
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    environment |= {"TERM": "dumb", "PATH": path, "PYDLBENCH_STORE": str(store)}
    with subprocess.Popen(
        ["bash", "-c", command], cwd=folder, env=environment, stdout=its, stdin=subprocess.DEVNULL
    ) as process:
        os.close(its)
        chunks = []
        while chunk := _read(ours):
            chunks.append(chunk)
    os.close(ours)
    if process.returncode not in (0, 3, 4):
        raise subprocess.CalledProcessError(process.returncode, command)
    return [line.rstrip() for line in b"".join(chunks).decode().splitlines()]


#: The same, but what several pages show is measured once.
output = cache(run)


def _read(terminal: int) -> bytes:
    try:
        return os.read(terminal, 65536)
    except OSError:  # whoever wrote into the terminal has gone
        return b""


def write_page(page: Path, folder: Path, store: Path) -> list[str]:
    """Run the commands of a page, write what they print, and return those that failed.

    What is shown of a command that fails stays as it is.
    """
    failed = []

    def renewed(match: re.Match[str]) -> str:
        lines = []
        for command, shown in outputs_of(match.group()):
            try:
                new = cut(output(command, folder, store), shown)
            except subprocess.CalledProcessError:
                failed.append(command)
                new = shown
            lines += [f"$ {command}", *new]
        return "\n".join(lines) + "\n"

    page.write_text(BLOCK.sub(renewed, page.read_text(encoding="utf-8")), encoding="utf-8")
    return failed


def write_pictures(folder: Path, store: Path) -> None:
    """Measure and draw the README's pictures."""
    PICTURES.mkdir(exist_ok=True)
    output(DRAWN, folder, store)
    run("pydlbench runs --json runs.json", folder, store)
    runs = json.loads((folder / "runs.json").read_text(encoding="utf-8"))["runs"]
    words = shlex.split(DRAWN)[1:]
    last = next(each["id"] for each in runs if each["command"][1:] == words)
    run(f"pydlbench export {last} --format json -o levels.json", folder, store)
    for name, document in (("levels", folder / "levels.json"), ("levels-gpu", KEPT)):
        for theme, drawn in pictures(document).items():
            (PICTURES / f"{name}-{theme}.svg").write_text(drawn, encoding="utf-8")


def pictures(document: Path) -> dict[str, str]:
    """Return the levels of a breakdown's JSON document as SVG, for light and for dark pages."""
    from pydlbench.cli.runs import stored_report
    from pydlbench.report.blocks import Figure
    from pydlbench.report.drawing import CONFIG, DARK, LIGHT, svg
    from pydlbench.store.documents import load

    blocks = stored_report(load(str(document), None))
    figure = next(block for block in blocks if isinstance(block, Figure) and block.kind == "levels")
    # Two of the same height stand beside each other on a page that is as wide as one.
    spec = {**figure.spec, "height": 330, "config": _larger(CONFIG, 1.35)}
    light = svg(replace(figure, spec=spec))
    colors = {LIGHT[name]: color for name, color in DARK.items()}
    dark = re.sub("|".join(colors), lambda match: colors[match.group()], light)
    return {"light": light, "dark": dark}


def _larger(config: Any, factor: float) -> Any:
    """Return a figure's configuration with larger letters."""
    if not isinstance(config, dict):
        return config
    return {
        key: factor * value if key.lower().endswith("fontsize") else _larger(value, factor)
        for key, value in config.items()
    }


def main() -> int:
    """Write the pages that are named, or all of them and the pictures; 1 if a command failed."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"default: {', '.join(PAGES)}")
    parser.add_argument("--pictures", action="store_true", help="only these, without PAGE")
    parser.add_argument("--before", default=sys.executable, help="interpreter of before/")
    parser.add_argument("--after", default=sys.executable, help="interpreter of after/")
    parser.add_argument("--store", type=Path, help="file to keep the runs in")
    args = parser.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for path in (ROOT / "examples", *(ROOT / "examples").glob("*.py")):
            (folder / path.name).symlink_to(path)
        for side in ("before", "after"):
            prefix = Path(getattr(args, side)).absolute().parents[1]
            (folder / side).symlink_to(prefix, target_is_directory=True)
        store = args.store or folder / "store.sqlite"
        pages = args.pages or ([] if args.pictures else PAGES)
        failed = [command for page in pages for command in write_page(ROOT / page, folder, store)]
        if args.pictures or not args.pages:
            write_pictures(folder, store)
    for command in failed:
        print(f"failed, its output stays as it was: {command}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    raise SystemExit(main())
