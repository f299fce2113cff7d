"""Writes the pages of benchmarks/results for this machine, each by one command.

    python benchmarks/write_results.py --folder benchmarks/results/MACHINE           # all, hours
    python benchmarks/write_results.py --folder benchmarks/results/MACHINE layers-alexnet diagnose

Run it on an idle machine. Each command is run with ``--md``, and its output is written below the
page's title and the command. A page whose command fails is not changed. ``repeatability`` is not
included, because it needs at least four stages, half an hour apart.
"""

from __future__ import annotations

import argparse
import shlex
import subprocess
import tempfile
from datetime import UTC, datetime
from pathlib import Path

#: Title and command by page.
PAGES = {
    "layers-alexnet": (
        "AlexNet (OWT), batch 16: three passes, fp32 and bf16",
        "pydlbench layers --model alexnet-owt --batch 16 --pass all --precision fp32,bf16",
    ),
    "layers-vgg16": (
        "VGG-16, batch 8: three passes, fp32 and bf16",
        "pydlbench layers --model vgg16 --batch 8 --pass all --precision fp32,bf16",
    ),
    "backends-alexnet": (
        "AlexNet (OWT), batch 16, in every backend",
        "pydlbench layers --model alexnet-owt --batch 16 --backend all --explain",
    ),
    "breakdown": (
        "Breakdowns of training steps",
        "pydlbench breakdown resnet50 --batch 4 --phase training --framework all --explain",
    ),
    "diagnose": (
        "What would make VGG-11's training step faster",
        "pydlbench diagnose vgg11 --batch 4 --phase training --framework torch",
    ),
    "forecast": ("Forecasts", "python benchmarks/forecast.py"),
    "own-models": (
        "Models of other people's libraries",
        "python benchmarks/own_models.py --stage import",
    ),
}


def write(name: str, folder: Path) -> bool:
    """Run a page's command and write the page; return whether that succeeded."""
    title, command = PAGES[name]
    print(f"{command} --md {name}.md", flush=True)
    with tempfile.TemporaryDirectory() as temporary:
        page = Path(temporary) / "page.md"
        process = subprocess.run([*shlex.split(command), "--md", str(page)], check=False)
        if process.returncode or not page.exists():
            print(f"{name}: exit code {process.returncode}, not written", flush=True)
            return False
        body = page.read_text(encoding="utf-8").removeprefix(f"# {title}\n")
    folder.mkdir(parents=True, exist_ok=True)
    head = f"# {title}\n\n`{command}`, {datetime.now(UTC).date()}.\n\n"
    (folder / f"{name}.md").write_text(head + body.lstrip("\n"), encoding="utf-8")
    return True


def main() -> int:
    """Write the named pages, or all."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("pages", nargs="*", metavar="PAGE", help=f"default: {', '.join(PAGES)}")
    parser.add_argument("--folder", type=Path, required=True, help="where the pages go")
    args = parser.parse_args()
    if unknown := set(args.pages) - set(PAGES):
        parser.error(f"{', '.join(sorted(unknown))}: no such page; choices: {', '.join(PAGES)}")
    return min(1, sum(not write(name, args.folder) for name in args.pages or PAGES))


if __name__ == "__main__":
    raise SystemExit(main())
