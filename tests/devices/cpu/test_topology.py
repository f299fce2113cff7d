import dataclasses

import pytest
from hypothesis import given
from hypothesis import strategies as st

from pydlbench.devices.cpu.affinity import choose_cpus, format_cpus, physical_cores, split_cpus
from pydlbench.devices.cpu.facts import CpuFacts, LogicalCpu
from pydlbench.devices.cpu.kernel_files import parse_cpu_list
from pydlbench.errors import UsageError


def test_one_cpu_per_core(machine):
    assert choose_cpus(machine(cores=4, threads=2)) == (0, 1, 2, 3)


def test_second_threads_only_when_cores_run_out(machine):
    assert choose_cpus(machine(cores=4, threads=2), 6) == (0, 1, 2, 3, 4, 5)


def test_the_affinity_mask_is_kept(machine):
    # CPU 1's core is reachable through its second thread 5 only.
    facts = machine(cores=4, threads=2, affinity=(0, 4, 5, 6))
    assert choose_cpus(facts) == (0, 5, 6)
    assert choose_cpus(facts, 4) == (0, 4, 5, 6)


def test_the_quota_bounds_the_default_but_not_a_wish(machine):
    facts = machine(cores=4, cpu_limit=2.5)
    assert choose_cpus(facts) == (0, 1)
    assert choose_cpus(facts, 3) == (0, 1, 2)
    assert choose_cpus(machine(cores=4, cpu_limit=0.5)) == (0,)


def test_sockets_are_filled_one_after_another(machine):
    facts = machine(cores=4)
    spread = tuple(dataclasses.replace(cpu, socket=cpu.index % 2) for cpu in facts.cpus)
    assert choose_cpus(dataclasses.replace(facts, cpus=spread), 2) == (0, 2)


def test_too_many_threads_name_the_mask_and_the_most(machine):
    with pytest.raises(UsageError, match=r"--threads 9: .*4 CPUs .*0-2,5\); nearest: 4"):
        choose_cpus(machine(cores=6, affinity=(0, 1, 2, 5)), 9)


@pytest.mark.parametrize("threads", [0, -1])
def test_no_threads_is_an_error(machine, threads):
    with pytest.raises(UsageError, match=f"--threads {threads}: .*nearest: 1"):
        choose_cpus(machine(), threads)


def test_a_machine_that_tells_nothing_has_one_cpu():
    assert choose_cpus(CpuFacts()) == (0,)


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
