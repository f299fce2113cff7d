"""Facts of whole machines, from invented trees of files."""

import json

import pytest

from pydlbench.devices.cpu.facts import read_cpu_facts

FLAGS = "fpu sse2 fma avx2 avx512f avx512_bf16 constant_tsc"
BLOCK = """processor : {n}
vendor_id : AuthenticAMD
cpu family : 25
model : 17
model name : AMD EPYC 9354
stepping : 1
cpu MHz : 3250.000
physical id : {socket}
core id : {core}
flags : {flags}
bogomips : 6500.00"""


def cpuinfo(cpus, flags=FLAGS):
    """One block for each (number, socket, core)."""
    return "\n\n".join(BLOCK.format(n=n, socket=s, core=c, flags=flags) for n, s, c in cpus)


def two_sockets_with_smt():
    """Two sockets of two cores of two threads: CPU n and n + 4 share a core."""
    files = {
        "proc/cpuinfo": cpuinfo([(n, n % 4 // 2, n % 2) for n in range(8)]),
        "proc/self/status": "Name:\tx\nCpus_allowed_list:\t0-3,6",
        "proc/meminfo": "MemTotal:  1024 kB\nMemFree: 1 kB\nMemAvailable: 512 kB",
        "sys/devices/system/cpu/online": "0-7",
        "sys/devices/system/cpu/cpu0/cpufreq/scaling_governor": "powersave",
        "sys/devices/system/cpu/cpu0/cpufreq/cpuinfo_max_freq": "3750000",
        "sys/devices/system/cpu/cpu0/cpufreq/base_frequency": "3250000",
        "sys/devices/system/cpu/cpufreq/boost": "1",
    }
    for socket in range(2):
        cpus = f"{2 * socket}-{2 * socket + 1},{2 * socket + 4}-{2 * socket + 5}"
        files[f"sys/devices/system/node/node{socket}/cpulist"] = cpus
        files[f"sys/devices/system/node/node{socket}/meminfo"] = f"Node {socket} MemTotal: 512 kB"
    for n in range(8):
        folder = f"sys/devices/system/cpu/cpu{n}"
        socket = n % 4 // 2
        files |= {
            f"{folder}/topology/physical_package_id": str(socket),
            f"{folder}/topology/core_cpus_list": f"{n % 4},{n % 4 + 4}",
            f"{folder}/cache/index0/level": "1",
            f"{folder}/cache/index0/type": "Data",
            f"{folder}/cache/index0/size": "32K",
            f"{folder}/cache/index0/shared_cpu_list": f"{n % 4},{n % 4 + 4}",
            f"{folder}/cache/index3/level": "3",
            f"{folder}/cache/index3/type": "Unified",
            f"{folder}/cache/index3/size": "32768K",
            f"{folder}/cache/index3/shared_cpu_list": (
                f"{2 * socket}-{2 * socket + 1},{2 * socket + 4}-{2 * socket + 5}"
            ),
        }
    return files


def test_reads_a_server_with_two_sockets_and_smt(tree):
    facts = read_cpu_facts(tree(two_sockets_with_smt()))
    assert (facts.vendor, facts.family, facts.model, facts.stepping) == ("AuthenticAMD", 25, 17, 1)
    assert facts.brand == "AMD EPYC 9354"
    assert (facts.sockets, facts.cores, facts.threads_per_core, facts.logical_cpus) == (2, 4, 2, 8)
    assert facts.cpus[5].siblings == (1, 5)
    assert facts.isa == ("sse2", "fma", "avx2", "avx512f", "avx512_bf16")
    assert facts.affinity == (0, 1, 2, 3, 6)
    assert (facts.governor, facts.turbo, facts.max_hz) == ("powersave", True, 3.75e9)
    assert (facts.nominal_hz, facts.nominal_source) == (3.25e9, "cpufreq base_frequency")
    assert [(node.index, node.cpus, node.memory_bytes) for node in facts.numa_nodes] == [
        (0, (0, 1, 4, 5), 512 * 1024),
        (1, (2, 3, 6, 7), 512 * 1024),
    ]
    assert (facts.memory_total_bytes, facts.memory_available_bytes) == (1 << 20, 1 << 19)
    assert facts.virtualised is False
    assert facts.notes == ()


def test_every_cache_is_counted_once(tree):
    facts = read_cpu_facts(tree(two_sockets_with_smt()))
    found = sorted((cache.level, cache.size_bytes, cache.shared_cpus) for cache in facts.caches)
    assert found == [
        *((1, 32768, (n, n + 4)) for n in range(4)),
        (3, 32 << 20, (0, 1, 4, 5)),
        (3, 32 << 20, (2, 3, 6, 7)),
    ]


def test_a_machine_that_tells_nothing_is_no_error(tmp_path):
    facts = read_cpu_facts(tmp_path)
    assert (facts.vendor, facts.brand, facts.nominal_hz, facts.governor) == (None,) * 4
    assert (facts.cpus, facts.caches, facts.numa_nodes, facts.affinity) == ((),) * 4
    assert facts.virtualised is None
    assert facts.name == "unknown CPU"
    assert any("no /proc/cpuinfo" in note for note in facts.notes)


def test_without_sysfs_the_cores_come_from_cpuinfo(tree):
    cpus = [(0, 0, 0), (1, 0, 1), (2, 1, 0), (3, 1, 1), (4, 0, 0)]
    facts = read_cpu_facts(tree({"proc/cpuinfo": cpuinfo(cpus)}))
    assert (facts.sockets, facts.cores, facts.logical_cpus) == (2, 4, 5)
    assert facts.cpus[4].siblings == (0, 4)
    assert facts.affinity == (0, 1, 2, 3, 4)


def test_a_virtual_machine_is_seen_and_named(tree):
    files = {
        "proc/cpuinfo": cpuinfo([(0, 0, 0)], flags=FLAGS + " hypervisor"),
        "sys/class/dmi/id/sys_vendor": "QEMU",
        "sys/class/dmi/id/product_name": "Standard PC",
    }
    facts = read_cpu_facts(tree(files))
    assert (facts.virtualised, facts.hypervisor) == (True, "QEMU Standard PC")


def test_an_offline_cpu_is_not_counted(tree):
    files = two_sockets_with_smt() | {"sys/devices/system/cpu/online": "0-3"}
    facts = read_cpu_facts(tree(files))
    assert (facts.logical_cpus, facts.threads_per_core) == (4, 1)


@pytest.mark.parametrize(("boost", "no_turbo", "turbo"), [("0", None, False), (None, "0", True)])
def test_turbo(tree, boost, no_turbo, turbo):
    files = {"proc/cpuinfo": cpuinfo([(0, 0, 0)])}
    if boost is not None:
        files["sys/devices/system/cpu/cpufreq/boost"] = boost
    if no_turbo is not None:
        files["sys/devices/system/cpu/intel_pstate/no_turbo"] = no_turbo
    assert read_cpu_facts(tree(files)).turbo is turbo


def test_arm_has_no_vendor_but_features(tree):
    block = "processor : 0\nBogoMIPS : 50.00\nFeatures : fp asimd sve bf16\nCPU implementer : 0x41"
    facts = read_cpu_facts(tree({"proc/cpuinfo": block}))
    assert facts.vendor is None
    assert facts.machine == "aarch64"
    assert facts.isa == ("asimd", "bf16", "sve")
    assert facts.nominal_hz is None  # its bogomips say nothing about a clock


def test_the_dict_is_json_and_groups_caches(tree):
    found = json.loads(json.dumps(read_cpu_facts(tree(two_sockets_with_smt())).to_dict()))
    assert found["caches"] == [
        {"level": 1, "type": "Data", "size_bytes": 32768, "cpus_each": 2, "count": 4},
        {"level": 3, "type": "Unified", "size_bytes": 32 << 20, "cpus_each": 4, "count": 2},
    ]
    assert (found["cores"], found["affinity"]) == (4, [0, 1, 2, 3, 6])


def test_this_machine_can_be_read():
    facts = read_cpu_facts()
    assert facts.logical_cpus >= facts.cores >= 1
    assert set(facts.affinity) <= {cpu.index for cpu in facts.cpus}


@pytest.mark.parametrize(
    ("limit", "available"), [("max", 1 << 19), ("700000", 1 << 19), ("300000", 200_000)]
)
def test_available_memory_honours_the_control_group(tree, limit, available):
    files = two_sockets_with_smt() | {
        "proc/self/cgroup": "0::/",
        "sys/fs/cgroup/memory.max": limit,
        "sys/fs/cgroup/memory.current": "100000",
    }
    assert read_cpu_facts(tree(files)).memory_available_bytes == available
