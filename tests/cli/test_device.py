import pytest
from said import says

from pydlbench.backends import capabilities as presence
from pydlbench.cli import device
from pydlbench.cli.parser import read
from pydlbench.devices.cpu.facts import CpuFacts, LogicalCpu
from pydlbench.devices.cpu.record import DeviceRecord, precision_peak
from pydlbench.devices.findings import Bandwidth, DeviceAdvice, Reading

READING = Reading(
    per_second=230e9,
    median_per_second=229e9,
    clock_hz=3.7e9,
    rounds=9,
    kernel="vfmadd231ps zmm",
    clocks_hz=(3.7e9, 3.6e9),
)


def record(**_arguments):
    facts = CpuFacts(
        vendor="AuthenticAMD",
        family=25,
        model=17,
        brand="AMD EPYC 9354",
        isa=("sse2", "fma", "avx2", "avx512f"),
        cpus=tuple(LogicalCpu(index=i, socket=0, siblings=(i,)) for i in range(2)),
        affinity=(0, 1),
        nominal_hz=2.6e9,
        nominal_source="brand string",
    )
    return DeviceRecord(
        facts=facts,
        cpus=(0, 1),
        clock_hz=3.7e9,
        peaks=(
            precision_peak(facts, "fp32", (0, 1), READING),
            precision_peak(facts, "bf16", (0, 1), "bf16: not on this CPU"),
        ),
        bandwidths=(
            Bandwidth(
                level="memory",
                pattern="read",
                bytes_per_s=33.8e9,
                median_bytes_per_s=33e9,
                working_set_bytes=96 << 20,
                kernel="read zmm",
            ),
        ),
        libraries={"oneDNN": "3.2.0"},
        warnings=(DeviceAdvice(symptom="virtual machine", remedy="use bare metal"),),
    )


@pytest.fixture(autouse=True)
def no_gpu(monkeypatch):
    monkeypatch.setattr(presence, "default_device", lambda: ("cpu", ()))


def run(*words, probe=record):
    return device.run(read(["device", *words])[0], probe)


def test_the_table_shows_measured_beside_theory(capsys):
    assert run() == 0
    out, err = capsys.readouterr()
    assert "AMD EPYC 9354" in out
    assert says(out, "3.70 GHz", "measured", "2.60 GHz", "brand string")
    (line,) = (line for line in out.splitlines() if line.startswith("fp32 "))
    assert line.split("  ")[0] == "fp32"
    for part in ("230 GFLOP/s", "237 GFLOP/s", "97 %", "166 GFLOP/s", "vfmadd231ps zmm"):
        assert part in line
    assert "32 FLOP/cycle x 2 cores x 3.70 GHz (Zen 4" in out
    assert "bf16: not on this CPU" in out
    assert "33.8" in out
    assert err == "warning: virtual machine; use bare metal\n"


def test_threads_reach_the_probes():
    seen = {}

    def probe(**arguments):
        seen.update(arguments)
        return record()

    run("--device", "cpu", "--threads", "1", probe=probe)
    assert seen == {"device": "cpu", "threads": 1, "precisions": ("fp32", "bf16", "fp16", "int8")}


def test_the_default_is_the_gpu_that_is_there(monkeypatch):
    seen = {}

    def probe(**arguments):
        seen.update(arguments)
        return record()

    monkeypatch.setattr(presence, "default_device", lambda: ("cuda:0", ()))
    run(probe=probe)
    assert seen["device"] == "cuda:0"


def test_a_gpu_that_is_left_out_is_mentioned(monkeypatch, capsys):
    monkeypatch.setattr(presence, "default_device", lambda: ("cpu", ("there is a GPU, but",)))
    run()
    assert "note: there is a GPU, but\n" in capsys.readouterr().err
