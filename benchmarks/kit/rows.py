"""Rows of many command lines of ``layers`` in one process, which probes the card once.

    python rows.py JOURNAL STEP

Standard input has a command line's words per line, as JSON. The rows of a problem, of all backends,
are an entry of the journal as soon as they are finished, and are not measured again; for each
problem a line is printed.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).parents[1]))

from journal import Journal

from kit.steps import row_of
from pydlbench.cli.layer_request import read_request
from pydlbench.cli.parser import read
from pydlbench.runner.options import RunnerOptions
from pydlbench.runner.session import Session


def main() -> int:
    """Measure all problems whose rows are not in the journal."""
    journal, step = Journal(Path(sys.argv[1])), sys.argv[2]
    requests = [read_request(read(["layers", *json.loads(line)])[0]) for line in sys.stdin]
    with Session(RunnerOptions(**requests[0].options)) as session:
        for request in requests:
            problems: dict[str, list[Any]] = {}
            for case in request.cases:
                layer = case.layer.name or case.layer.problem
                words = f"rows {step} {layer} {case.pass_} {case.precision} {case.cache}"
                problems.setdefault(words, []).append(case)
            for words, cases in problems.items():
                if words not in journal:
                    rows = [row_of(row.to_dict()) for _, row in session.measure(cases)]
                    journal.add(words, {"rows": rows})
                print(words, flush=True)
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
