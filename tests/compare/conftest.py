"""Invented runs: what every row takes, and how far runs and rows scatter, is known."""

import math
import random
from dataclasses import dataclass, field

import pytest
from invented_runs import REPEATABLE

from pydlbench.compare.rows import Side, SideRow, key

DEVICE = {"name": "Invented 9000", "threads": 2, "cpus": [0, 1], "facts": {"cores": 2}}
ENVIRONMENT = REPEATABLE.environment


def make_row(layer="net/conv", median=10e-3, half_width=0.003, **changes):
    """A row of a convolution, known to 0.3 % within its run."""
    known = half_width is not None and median is not None
    values = dict.fromkeys(SideRow._fields)
    values.update(
        layer=layer,
        kind="conv2d",
        problem=f"problem of {layer}",
        batch=1,
        pass_="forward",
        precision="fp32",
        device="cpu",
        backend="native",
        cache="hot",
        timing="steady",
        threads=2,
        fuse="none",
        layout_request="best",
        propagation="inference",
        status="ok",
        median=median,
        ci_low=median * (1 - half_width) if known else None,
        ci_high=median * (1 + half_width) if known else None,
        n=100,
        clock_hz=4e9,
        contended=0,
        algorithm="jit",
    )
    return SideRow(**{**values, **changes})


def make_side(name, rows, device=None, environment=None):
    """A run on an invented machine."""
    return Side(
        name=name,
        run_id=name,
        rows=rows,
        device=DEVICE if device is None else device,
        environment=ENVIRONMENT if environment is None else environment,
    )


def scaled(side, factor, clock=1.0):
    """A run all of whose times are longer by a factor, at another clock."""
    rows = []
    for one in side.rows:
        times = {name: factor * getattr(one, name) for name in ("median", "ci_low", "ci_high")}
        rows.append(one._replace(**times, clock_hz=clock * one.clock_hz))
    return make_side(side.name, rows)


@dataclass
class Machine:
    """Runs of ``rows`` layers, alike but for chance; standard deviations of logarithms.

    Attributes:
        run_sd: of what a run has in common: its hour.
        row_sd: of what a row has on its own in each run.
        rows: how many.
        clock_sd: of the clock of a run; times follow it.
    """

    run_sd: float = 0.05
    row_sd: float = 0.01
    rows: int = 11
    clock_sd: float = 0.0
    rng: random.Random = field(default_factory=lambda: random.Random(2))

    def run(self, name="run", slow=None):
        """Return a run; ``slow`` has factors by row number."""
        clock = math.exp(self.rng.gauss(0, self.clock_sd))
        common = self.rng.gauss(0, self.run_sd)
        rows = []
        for number in range(self.rows):
            own = self.rng.gauss(0, self.row_sd)
            seconds = (number + 1) * 5e-3 * math.exp(common + own) / clock
            seconds *= (slow or {}).get(number, 1.0)
            rows.append(make_row(f"net/conv{number}", seconds, clock_hz=4e9 * clock))
        return make_side(name, rows)

    def replicates(self, count):
        """Return so many runs more, as the store gives them."""
        return [{key(row): row.median for row in self.run().rows} for _ in range(count)]


@pytest.fixture
def row():
    """Build a row."""
    return make_row


@pytest.fixture
def side():
    """Build a run."""
    return make_side


@pytest.fixture
def at_clock():
    """Have a run take another time at another clock."""
    return scaled


@pytest.fixture
def machine():
    """Build a machine."""
    return Machine
