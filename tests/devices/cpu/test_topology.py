import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.devices.cpu.affinity import choose_cpus, format_cpus, physical_cores, split_cpus
from pydlbench.devices.cpu.facts import CpuFacts, LogicalCpu, parse_cpu_list
from pydlbench.errors import UsageError

SMT = {"cores": 4, "threads": 2}
# CPU 1's core is reachable through its second thread 5 only.
MASKED = {**SMT, "affinity": (0, 4, 5, 6)}


@pytest.mark.parametrize(
    ("has", "wish", "chosen"),
    [
        (SMT, None, (0, 1, 2, 3)),  # one of each core
        (SMT, 6, (0, 1, 2, 3, 4, 5)),  # second threads only when cores run out
        (MASKED, None, (0, 5, 6)),
        (MASKED, 4, (0, 4, 5, 6)),
        # A quota bounds the default, and no wish.
        ({"cores": 4, "cpu_limit": 2.5}, None, (0, 1)),
        ({"cores": 4, "cpu_limit": 2.5}, 3, (0, 1, 2)),
        ({"cores": 4, "cpu_limit": 0.5}, None, (0,)),
        ({"cores": 0}, None, (0,)),  # a machine that tells nothing
    ],
)
def test_cpus_that_are_chosen(machine, has, wish, chosen):
    facts = machine(**has) if has["cores"] else CpuFacts()
    assert choose_cpus(facts, wish) == chosen


@pytest.mark.parametrize(
    ("threads", "message"),
    [
        (9, r"--threads 9: .*4 CPUs .*0-2,5\); nearest: 4"),
        (0, "--threads 0: .*nearest: 1"),
        (-1, "--threads -1: .*nearest: 1"),
    ],
)
def test_threads_that_cannot_be_had_are_refused(machine, threads, message):
    with pytest.raises(UsageError, match=message):
        choose_cpus(machine(cores=6, affinity=(0, 1, 2, 5)), threads)


def test_sockets_are_filled_one_after_another(machine):
    facts = machine(cores=4)
    spread = tuple(dataclasses.replace(cpu, socket=cpu.index % 2) for cpu in facts.cpus)
    assert choose_cpus(dataclasses.replace(facts, cpus=spread), 2) == (0, 2)


@given(st.integers(1, 16), st.integers(1, 2), st.data())
def test_as_many_distinct_allowed_cpus_as_asked_for(cores, smt, data):
    cpus = tuple(
        LogicalCpu(index=n, socket=0, siblings=tuple(n % cores + t * cores for t in range(smt)))
        for n in range(cores * smt)
    )
    mask = data.draw(st.sets(st.sampled_from(range(cores * smt)), min_size=1))
    threads = data.draw(st.integers(1, len(mask)))
    facts = CpuFacts(cpus=cpus, affinity=tuple(sorted(mask)))
    chosen = choose_cpus(facts, threads)
    assert len(set(chosen)) == threads
    assert set(chosen) <= mask
    assert physical_cores(facts, chosen) == min(threads, physical_cores(facts, mask))


@given(st.sets(st.integers(0, 300), min_size=1))
def test_cpus_are_listed_the_kernels_way(cpus):
    assert parse_cpu_list(format_cpus(cpus)) == tuple(sorted(cpus))


def test_cpus_are_listed_as_taskset_takes_them():
    assert format_cpus((3, 0, 1, 2, 9, 11, 12)) == "0-3,9,11-12"


def test_cpus_are_shared_out_in_sets_that_can_be_compared():
    assert split_cpus(range(8), 3) == [(0, 1), (2, 3), (4, 5)]
    assert split_cpus((4, 6), 2) == [(4,), (6,)]
    assert split_cpus((4, 6), 3) == [(4, 6)] * 3
