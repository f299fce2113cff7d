"""How often ``compare`` is wrong: repeats of one model, and a kernel that is 3 % slower.

    python benchmarks/compare_repeats.py --runs 20 --folder repeats

Takes ``layers --model alexnet-owt`` again and again into a store of its own and compares every run
with the next one: whatever is called FASTER or SLOWER is false. Then every kernel is compared with
itself in turn (``--interleave``), and with one whose samples are longer by 3 %: the first must not
be called different, the second must be called SLOWER. What is finished is kept in the folder and
not measured again, so that the script may be interrupted and called again.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import itertools
import json
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec

from pydlbench.cli import compare
from pydlbench.cli import main as pydlbench
from pydlbench.cli.parser import Parser
from pydlbench.runner.session import Options, Session
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from pydlbench.records.specs import KernelSpec
    from pydlbench.timing.chunk import Chunk, Request
    from pydlbench.workers.host import RemoteKernel


class Slower:
    """A session whose kernels' samples are longer by a factor."""

    def __init__(self, session: Session, factor: float) -> None:
        self._session, self._factor = session, factor

    def prepare(self, case: KernelSpec) -> SlowerKernel:
        """Have a case made ready."""
        return SlowerKernel(self._session.prepare(case), self._factor)

    def close(self) -> None:
        """End its processes."""
        self._session.close()


class SlowerKernel:
    """A prepared kernel, likewise."""

    def __init__(self, kernel: RemoteKernel, factor: float) -> None:
        self._kernel, self._factor, self.facts = kernel, factor, kernel.facts

    def sample(self, request: Request) -> Chunk:
        """Time the requested samples, and stretch them."""
        chunk = self._kernel.sample(request)
        seconds = tuple(self._factor * one for one in chunk.seconds)
        return msgspec.structs.replace(chunk, seconds=seconds)

    def release(self) -> None:
        """Let go of it."""
        self._kernel.release()


def opener(factor: float):
    """How sessions are opened: B's kernels are slower by the factor."""

    def open_host(*, side: int, threads: int | None, seed: int):
        session = Session(Options(threads=threads, seed=seed))
        return Slower(session, factor) if side == 1 and factor != 1 else session

    return open_host


def command(words: list[str]) -> tuple[int, str]:
    """Run a command of pydlbench in this process; its exit code and standard output."""
    out = io.TextIOWrapper(io.BytesIO(), encoding="utf-8")
    with contextlib.redirect_stdout(out):
        code = pydlbench(words)
    out.flush()
    return code, out.buffer.getvalue().decode()


def measured(store: Path) -> list[str]:
    """Ids of the runs that are finished, oldest first."""
    if not store.exists():
        return []
    with Store.open(store, readonly=True) as opened:
        return [run.id for run in reversed(opened.runs()) if run.status == "done"]


def repeat(args: argparse.Namespace, store: Path) -> list[str]:
    """Measure until there are as many runs as were asked for."""
    while len(runs := measured(store)) < args.runs:
        print(f"run {len(runs) + 1} of {args.runs}", flush=True)
        code, _ = command(["layers", *request(args), "--store", str(store), "--quiet"])
        if code:
            raise SystemExit(f"layers ended with exit code {code}")
    return runs


def request(args: argparse.Namespace) -> list[str]:
    """What is measured."""
    return ["--model", args.model, "--batch", str(args.batch), "--budget", str(args.budget)]


def in_turn(run: str, kept: Path, passes: int, factor: float) -> dict:
    """The document of a run's kernels against themselves; from the folder if it is there."""
    if not kept.exists():
        parser = Parser(prog="pydlbench")
        compare.add_parser(parser.add_subparsers())
        partial = kept.with_suffix(".partial")
        words = ["compare", run, run, "--interleave", "--passes", str(passes), "--store", "none"]
        args = parser.parse_args([*words, "--json", str(partial)])
        code = compare.run(args, opener(factor))
        if code:
            raise SystemExit(f"compare --interleave ended with exit code {code}")
        partial.replace(kept)
    return json.loads(kept.read_text(encoding="utf-8"))


def called(document: dict) -> list[str]:
    """Rows that are called different."""
    return [
        f"{row['layer']} {row['verdict']} {row['ratio']:.3f}"
        for row in document["rows"]
        if row["verdict"] in ("FASTER", "SLOWER")
    ]


def stored(runs: list[str], store: Path) -> int:
    """Compare every run with the next one, with and without the others; count false verdicts."""
    false = 0
    for history in (False, True):
        false_here = rows = 0
        largest = 1.0
        for a, b in itertools.pairwise(runs):
            document = pair(a, b, store, history)
            wrong = called(document)
            rows += len(document["rows"])
            false_here += len(wrong)
            ratios = [row["ratio"] for row in document["rows"]]
            largest = max([largest, *ratios, *(1 / ratio for ratio in ratios)])
            for text in wrong:
                print(f"  {a} and {b}: {text}")
        which = "with all other runs as repeats" if history else "with these two runs only"
        print(
            f"{len(runs) - 1} comparisons of consecutive runs, {which}: {false_here} false "
            f"verdicts in {rows} rows; the largest ratio was {largest:.2f}"
        )
        false += false_here
    return false


def pair(a: str, b: str, store: Path, history: bool) -> dict:
    """Compare two runs; without the others of the store, from files of their own."""
    words = [a, b, "--store", str(store)]
    if not history:
        words = [exported(name, store) for name in (a, b)] + ["--store", "none"]
    code, text = command(["compare", *words, "--json", "-", "--quiet"])
    if code:
        raise SystemExit(f"compare {a} {b} ended with exit code {code}")
    return json.loads(text)


def exported(run: str, store: Path) -> str:
    """A run as a JSON document beside the store."""
    path = store.parent / f"run-{run}.json"
    if not path.exists():
        code, _ = command(
            ["export", run, "--store", str(store), "--format", "json", "-o", str(path), "--quiet"]
        )
        if code:
            raise SystemExit(f"export {run} ended with exit code {code}")
    return str(path)


def interleaved(args: argparse.Namespace, run: str, store: Path) -> int:
    """Compare all kernels with themselves and with slowed ones; count what is told wrongly."""
    folder = store.parent
    path = exported(run, store)
    wrong = called(in_turn(path, folder / "interleaved-same.json", args.passes, 1.0))
    print(f"interleaved with themselves: {len(wrong)} false verdicts: {', '.join(wrong) or 'none'}")
    kept = folder / f"interleaved-slower-{args.slower:g}.json"
    document = in_turn(path, kept, args.passes, 1 + args.slower / 100)
    found = [row for row in document["rows"] if row["verdict"] == "SLOWER"]
    for row in document["rows"]:
        low, high = row["ci_low"] or 0, row["ci_high"] or 0
        print(f"  {row['layer']:<22} {row['ratio']:.3f} ({low:.3f} to {high:.3f}) {row['verdict']}")
    print(f"slower by {args.slower:g} %: found in {len(found)} of {len(document['rows'])} rows")
    return len(wrong)


def main() -> int:
    """Print what is wrong; exit 1 if anything is called different that is not."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="alexnet-owt")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--budget", type=float, default=0.5, help="seconds per kernel of a run")
    parser.add_argument("--passes", type=int, default=10)
    parser.add_argument("--slower", type=float, default=3.0, help="percent")
    parser.add_argument("--folder", type=Path, default=Path("compare-repeats"))
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    store = args.folder.resolve() / "store.sqlite"
    runs = repeat(args, store)
    wrong = stored(runs[: args.runs], store)
    wrong += interleaved(args, runs[-1], store)
    return 1 if wrong else 0


if __name__ == "__main__":
    sys.exit(main())
