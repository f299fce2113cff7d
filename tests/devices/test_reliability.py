"""Symptoms that make a machine's times unreliable, each with its remedy."""

import pytest

from pydlbench.devices.cpu.advice import cpu_advice, peak_advice
from pydlbench.devices.cpu.facts import NumaNode


def symptoms(facts, cpus, root):
    return [advice.symptom for advice in cpu_advice(facts, cpus, root)]


def test_a_quiet_machine_has_no_warnings(machine, tree):
    root = tree(
        {
            "proc/loadavg": "0.00 0.01 0.05 1/300 4242",
            "sys/kernel/mm/transparent_hugepage/enabled": "always [madvise] never",
        }
    )
    assert cpu_advice(machine(governor="performance"), (0, 1, 2, 3), root) == ()


@pytest.mark.parametrize(
    ("changes", "cpus", "symptom", "remedy"),
    [
        ({"governor": "powersave"}, (0,), "governor powersave", "cpupower"),
        ({"cores": 2, "threads": 2}, (0, 1, 2), "3 threads on 2 cores", "--threads 2"),
        ({"cpu_limit": 1.5}, (0, 1), "allows 1.5 CPUs for 2 threads", "--threads 1"),
        ({"cpu_limit": 0.5}, (0,), "allows 0.5 CPUs for 1 threads", "raise the container"),
        ({"virtualised": True, "hypervisor": "KVM"}, (0,), "virtual machine (KVM)", "interleaved"),
        (
            {"numa_nodes": (NumaNode(index=0, cpus=(0, 1)), NumaNode(index=1, cpus=(2, 3)))},
            (0, 3),
            "2 memory nodes",
            "numactl --cpunodebind=0",
        ),
    ],
)
def test_each_symptom_has_its_remedy(machine, tmp_path, changes, cpus, symptom, remedy):
    (advice,) = cpu_advice(machine(**changes), cpus, tmp_path)
    assert symptom in advice.symptom
    assert remedy in advice.remedy


@pytest.mark.parametrize(("running", "warned"), [(1, False), (3, False), (4, True)])
def test_other_load_counts_when_it_leaves_too_few_cpus(machine, tree, running, warned):
    root = tree({"proc/loadavg": f"9.00 9.00 9.00 {running}/300 4242"})
    assert bool(symptoms(machine(cores=4), (0, 1), root)) is warned
    # One process of ours more is no other load.
    root = tree({"proc/loadavg": f"9.00 9.00 9.00 {running + 1}/300 4242"})
    assert bool(cpu_advice(machine(cores=4), (0, 1), root, own=1)) is warned


def test_huge_pages_switched_off(machine, tree):
    root = tree({"sys/kernel/mm/transparent_hugepage/enabled": "always madvise [never]"})
    (advice,) = cpu_advice(machine(), (0,), root)
    assert "huge pages are off" in advice.symptom


def test_a_probe_that_falls_short():
    assert peak_advice("fp32", 95e9, 100e9) is None
    advice = peak_advice("fp32", 50e9, 100e9)
    assert advice is not None
    assert "50 %" in advice.symptom
