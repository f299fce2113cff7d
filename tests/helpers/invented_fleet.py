"""Invented nodes: their visits, the stores that they bring back, and a program in a sweep's place.

Called as a program it is what a visit calls for ``pydlbench``: a sweep whose session is invented.
``INVENTED_FLEET`` has, as JSON, by beginnings of the store's name: a factor of all times
(``slow``), after how many rows the process kills itself once (``kill``), an exit code (``code``),
and seconds before it begins (``wait``).
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from invented_rows import measurement, time_of

from pydlbench.errors import UsageError
from pydlbench.records.run import RunRecord
from pydlbench.store.entry import Entry
from pydlbench.store.store import Store

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["FILE", "PROGRAM", "fleet", "told", "visits", "write_store"]

FILE = '[[layers]]\nshape = ["conv2", "conv3"]\nbatch = 1\n'
PROGRAM = (sys.executable, __file__)
VARIABLE = "INVENTED_FLEET"


def fleet(
    rng: np.random.Generator,
    *,
    nodes: int = 1000,
    metrics: int = 20,
    rounds: int = 3,
    noise: float = 0.006,
    slow: Mapping[int, float] | None = None,
) -> Any:
    """Return logarithms of seconds, rounds x nodes x metrics.

    Healthy nodes differ by 0.7 %, all drift together by 3 % from round to round, each wanders for
    itself by 0.1 %, their noise differs by a factor of up to two, and in one round of a hundred
    something else makes a node a tenth slower.
    """
    own = rng.normal(0, 0.007, (nodes, 1)) + rng.normal(0, 0.003, (nodes, metrics))
    common = np.cumsum(rng.normal(0, 0.03, (rounds, 1, 1)), 0)
    wander = np.cumsum(rng.normal(0, 0.001, (rounds, nodes, 1)), 0)
    disturbed = (rng.random((rounds, nodes, 1)) < 0.01) * rng.exponential(0.1, (rounds, nodes, 1))
    for node, factor in (slow or {}).items():
        own[node] = np.log(factor)
        disturbed[:, node] = 0
    scatter = noise * np.exp(rng.normal(0, 0.3, (nodes, metrics)))
    base = rng.normal(-5, 1, metrics)
    samples = rng.normal(0, 1, (rounds, nodes, metrics)) * scatter
    return base + own + common + wander + disturbed + samples


def visits(log_s: Any, **changes: Any) -> list[dict[str, Any]]:
    """Return visits as they are kept, of logarithms of seconds."""
    seconds = np.exp(log_s)
    found = []
    for number, nodes in enumerate(seconds):
        for node, values in enumerate(nodes):
            named = {
                f"layer{metric} forward fp32": {
                    "time_s": float(value),
                    "command": f"pydlbench layers --shape layer{metric}",
                }
                for metric, value in enumerate(values)
            }
            visit = {
                "node": f"node-{node}",
                "round": number,
                "status": "ok",
                "reason": None,
                "machine": "Invented 9000",
                "kind": "one",
                "versions": {"numpy": "2"},
                "prefix": "taskset -c 0 ",
                "clock_offset_s": 0.0,
                "values": named,
            }
            found.append({**visit, **changes})
    return found


def write_store(path: Path, seconds: float = 1e-3, status: str = "done") -> None:
    """Write the store of a sweep of two layers."""
    run = RunRecord(
        id="20300101-0000abcd",
        created_utc="2030-01-01T00:00:00+00:00",
        device={"name": "Invented 9000", "kind": "cpu", "threads": 1},
        environment={"packages": {"numpy": "2"}, "code": "abc"},
    )
    with Store.open(path) as store:
        store.begin(run, "sweep", request={"file": "invented.toml", "text": FILE})
        for number, layer in enumerate(("alexnet/conv2", "alexnet/conv3")):
            row = measurement(layer=layer, time=time_of(seconds), clock_hz=4e9)
            store.add(run.id, Entry.from_document("layer", row.to_dict(), f"layers/1/{number}"))
        if status != "running":
            store.finish(run, status)
        store.settle()


def told(name: str) -> dict[str, Any]:
    """Return what this variable says of the store of this name."""
    rules = json.loads(os.environ.get(VARIABLE, "{}"))
    return {
        what: value
        for what, nodes in rules.items()
        for node, value in nodes.items()
        if name.startswith(node)
    }


def main(words: list[str]) -> int:
    """Run a sweep whose times are invented."""
    from invented_rows import row_of
    from invented_sweep import Sessions, sweep

    path = Path(words[words.index("--store") + 1])
    rules = told(path.name)
    time.sleep(rules.get("wait", 0))
    if "code" in rules:
        print("pydlbench: an invented reason; nearest: another one", file=sys.stderr)
        return int(rules["code"])
    once = path.with_suffix(".killed")

    def before(count: int) -> None:
        if count == rules.get("kill") and not once.exists():
            once.touch()
            os.kill(os.getpid(), signal.SIGKILL)

    # The same in each repetition of a test, another one in each round and on each node.
    rng = np.random.default_rng(list(path.name.encode()))
    sessions = Sessions(before)

    def row(case: Any) -> Any:
        seconds = 1e-3 * rules.get("slow", 1.0) * float(np.exp(rng.normal(0, 0.002)))
        return row_of(case, time=time_of(seconds), samples_s=(seconds, seconds))

    sessions.row = row
    return sweep(sessions, *words[1:])


if __name__ == "__main__":
    try:
        sys.exit(main(sys.argv[1:]))
    except UsageError as error:
        print(f"pydlbench: {error}", file=sys.stderr)
        sys.exit(2)
