"""Share of the problems in a folder of benchdnn's input files that pydlbench reads.

    python benchmarks/problem_lists.py FOLDER [--reasons N]

FOLDER has a folder per driver, such as ``tests/benchdnn/inputs`` of oneDNN. A row per driver has
its files, its problems (each line of each file, included files once), those that are read, those
that no op computes, and those that are refused. With ``--reasons N``, the N most frequent reasons
of each driver follow, with an example. Graphs in JSON are left out. Nothing is timed.
"""

from __future__ import annotations

import argparse
import re
from collections import Counter
from pathlib import Path

from pydlbench.errors import UnsupportedError, UsageError
from pydlbench.models.lists import ListEntry, read_list


def entries_of(file: Path) -> list[ListEntry]:
    """Return the problems in the lines of a file itself, without those of included files."""
    entries = read_list(file, str(file), None, {}, {})
    return [entry for entry in entries if entry.where.startswith(f"{file}:")]


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--reasons", type=int, default=0, metavar="N")
    args = parser.parse_args()
    print(
        f"{'driver':12}{'files':>6}{'problems':>10}{'read':>8}{'no op':>8}{'refused':>9}{'read':>9}"
    )
    for folder in sorted(filter(Path.is_dir, args.folder.iterdir())):
        counts: Counter[str] = Counter()
        reasons: Counter[str] = Counter()
        examples: dict[str, str] = {}
        files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.suffix)
        for file in files:
            try:
                entries = entries_of(file)
            except UsageError as error:
                counts["files"] += 1
                reasons[str(error)] += 1
                continue
            for entry in entries:
                try:
                    entry.layers(None)
                    counts["read"] += 1
                except (UnsupportedError, UsageError) as error:
                    counts["no op" if isinstance(error, UnsupportedError) else "refused"] += 1
                    kind = re.sub("[0-9]+", "N", str(error).rpartition(": ")[2])
                    reasons[kind] += 1
                    examples.setdefault(kind, f"{entry.where}{entry.text}: {error}")
        number = counts["read"] + counts["no op"] + counts["refused"]
        share = f"{counts['read'] / number:8.2%}" if number else "-"
        cells = (counts["read"], counts["no op"], counts["refused"])
        print(
            f"{folder.name:12}{len(files):6}{number:10}{cells[0]:8}{cells[1]:8}{cells[2]:9}{share:>9}"
            + (f"  {counts['files']} files refused" if counts["files"] else "")
        )
        for reason, count in reasons.most_common(args.reasons):
            print(f"    {count:6}  {examples.get(reason, reason)[:200]}")


if __name__ == "__main__":
    main()
