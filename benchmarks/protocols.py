"""Every published protocol beside the lines that its script printed elsewhere, in the same format.

    python benchmarks/protocols.py --md protocols.md

Runs each protocol once per framework, with smaller batches and fewer steps than its script where
the script's own would take hours on a small machine, and says which. What is compared is the
format: every line has to match the script's own format string, and lines have to come in the
script's order.
Times are not compared: the published ones are of other machines, of other years.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shlex
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from published.documents import DOCUMENTS, Document
from published.forms import differences, kinds

from pydlbench.report.columns import device_name
from pydlbench.steps.protocols.scripts import find_protocol

FRAMEWORKS = ("torch", "tensorflow")
# What each protocol is run with instead of its script's own; nothing else is changed.
SETTINGS: dict[str, dict[str, int]] = {
    "alexnet-tutorial": {"batch": 8},
    "mnist-tutorial": {"steps": 501},
    "cifar10-tutorial": {},
    "tf-cnn-benchmarks": {"batch": 4, "steps": 20},
    "deep-learning-benchmark": {"batch": 1, "warmup": 2, "steps": 5},
    "convnet-benchmarks": {"batch": 8},
    "convnet-benchmarks-tf": {"batch": 8, "steps": 30},
}
SMALLEST: dict[str, dict[str, int]] = {
    "alexnet-tutorial": {"batch": 2, "warmup": 1, "steps": 11},
    "mnist-tutorial": {"steps": 101},
    "cifar10-tutorial": {"batch": 16, "steps": 21},
    "tf-cnn-benchmarks": {"batch": 1, "warmup": 1, "steps": 10},
    "deep-learning-benchmark": {"batch": 1, "warmup": 1, "steps": 2},
    "convnet-benchmarks": {"batch": 2, "warmup": 1, "steps": 2},
    "convnet-benchmarks-tf": {"batch": 2, "warmup": 1, "steps": 11},
}


@dataclass(frozen=True)
class ProtocolRun:
    """One run of a protocol.

    Attributes:
        framework: in which.
        command: what was run.
        lines: its standard output.
        notes: its remarks.
        wrong: how its format differs from the script's; empty where it does not.
        device: the processor.
        library: the framework's name and version.
    """

    framework: str
    command: str
    lines: tuple[str, ...]
    notes: tuple[str, ...]
    wrong: tuple[str, ...]
    device: str = ""
    library: str = ""


def run_protocol(document: Document, framework: str, settings: dict[str, int]) -> ProtocolRun:
    """Run a protocol on the CPU and compare its lines' format."""
    words = ["e2e", "--protocol", document.protocol, "--framework", framework, "--device", "cpu"]
    for name, value in settings.items():
        words += [f"--{name}", str(value)]
    for quirk in document.quirks:
        words += ["--quirk", quirk]
    with tempfile.TemporaryDirectory() as folder:
        target = Path(folder) / "run.json"
        done = subprocess.run(
            [sys.executable, "-m", "pydlbench", *words, "--json", str(target)],
            capture_output=True,
            text=True,
            check=False,
        )
        found = json.loads(target.read_text()) if target.exists() else {}
    lines = tuple(done.stdout.splitlines())
    if done.returncode:
        wrong = [f"it ended with {done.returncode}: {' '.join(done.stderr.split())}"]
    else:
        order = document.head + document.order
        wrong = differences(document.forms, order, lines)
    run = found.get("run", {})
    return ProtocolRun(
        framework=framework,
        command=shlex.join(["pydlbench", *words]),
        lines=lines,
        notes=tuple(line for line in done.stderr.splitlines() if line.startswith("note:")),
        wrong=tuple(wrong),
        device=device_name(run.get("device", {})),
        library=str(found.get("library", "")),
    )


def changed(document: Document, settings: dict[str, int]) -> str:
    """Say what the run has otherwise than the script."""
    protocol = find_protocol(document.protocol)
    own = protocol.settings(protocol.models[0])
    words = []
    for name, value in settings.items():
        before = getattr(own, name)
        if before is None and name == "steps":
            words.append(f"{value} steps instead of {own.epochs:g} epochs")
        elif before != value:
            words.append(f"{name} {value} instead of {before}")
    return ", ".join(words) or "as the script has it"


def beside(document: Document, runs: Sequence[ProtocolRun]) -> list[str]:
    """Return a line of each kind as published and as printed here, one below the other."""
    width = max(len(one) for one in ("published", *(run.framework for run in runs)))
    outputs = [("published", document.lines), *((run.framework, run.lines) for run in runs)]
    found = []
    for letter in dict.fromkeys(kinds(document.forms, document.lines)):
        for who, lines in outputs:
            alike = [
                line
                for line, kind in zip(lines, kinds(document.forms, lines), strict=True)
                if kind == letter
            ]
            # The first one of several often has a start-up in it.
            shown = alike[min(1, len(alike) - 1)].expandtabs(8) if alike else "(none)"
            found.append(f"{who:<{width}}  {shown}")
        found.append("")
    return found[:-1]


def page(
    results: Sequence[tuple[Document, dict[str, int], Sequence[ProtocolRun]]],
    machine: str,
    command: str,
) -> str:
    """Return the page."""
    matching = sum(not run.wrong for _, _, runs in results for run in runs)
    total = sum(len(runs) for _, _, runs in results)
    parts = [
        "# Published protocols, line beside line",
        f"{machine}, {dt.datetime.now(dt.UTC):%Y-%m-%d}. `{command}`",
    ]
    parts.append(
        "Every protocol prints what its script prints. Each line below was matched against the "
        "script's own format string, and the order of the lines against the script's: "
        f"{matching} of {total} runs have the same format throughout. Times stand here for their "
        "format only: the published ones are of other machines and years, ours of a machine that "
        "did other work too."
    )
    for document, settings, runs in results:
        parts.append(f"## {document.protocol}")
        text = f"Script: {document.script}. Published lines: {document.shown}."
        if document.remark:
            text += f" Note: {document.remark}."
        parts.append(f"{text} Run here: {changed(document, settings)}.")
        parts.append("\n".join(["```text", *beside(document, runs), "```"]))
        for run in runs:
            verdict = "same format" if not run.wrong else "; ".join(run.wrong)
            parts.append(
                f"<details><summary>{run.framework}: {len(run.lines)} lines, {verdict}</summary>"
            )
            shown = [f"$ {run.command}", *(line.expandtabs(8) for line in run.lines), *run.notes]
            parts.append("\n".join(["```text", *shown, "```"]))
            parts.append("</details>")
    return "\n\n".join(parts) + "\n"


def main() -> int:
    """Run them all, show them, and write the page."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    names = [one.protocol for one in DOCUMENTS]
    parser.add_argument("--protocol", action="append", choices=names, help="only this one")
    parser.add_argument("--framework", action="append", choices=FRAMEWORKS, help="only this one")
    parser.add_argument("--smallest", action="store_true", help="a minute, for the format only")
    parser.add_argument("--machine", help="what the page calls the machine")
    parser.add_argument("--md", metavar="FILE", type=Path, help="write the page")
    args = parser.parse_args()
    results = []
    for document in DOCUMENTS:
        if args.protocol and document.protocol not in args.protocol:
            continue
        settings = (SMALLEST if args.smallest else SETTINGS)[document.protocol]
        runs = []
        for framework in args.framework or FRAMEWORKS:
            run = run_protocol(document, framework, settings)
            runs.append(run)
            print(f"== {document.protocol} in {framework}: {changed(document, settings)}")
            print("\n".join(run.lines))
            print("-- " + ("; ".join(run.wrong) or "every line has the script's format"))
        print("\n".join(["", *beside(document, runs), ""]), flush=True)
        results.append((document, settings, runs))
    every = [run for _, _, runs in results for run in runs]
    machine = args.machine or ", ".join(dict.fromkeys(run.device for run in every if run.device))
    libraries = dict.fromkeys(run.library for run in every if run.library)
    if args.md is not None:
        command = "python benchmarks/protocols.py" + (" --smallest" if args.smallest else "")
        args.md.write_text(page(results, ", ".join([machine, *libraries]), command))
    return int(any(run.wrong for run in every))


if __name__ == "__main__":
    sys.exit(main())
