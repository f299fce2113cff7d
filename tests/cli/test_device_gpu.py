import json

from said import says

from pydlbench.cli import device
from pydlbench.cli.parser import read
from pydlbench.devices.gpu.facts import GpuFacts
from pydlbench.devices.gpu.peaks import accumulator, theoretical_peak
from pydlbench.devices.gpu.record import extend_record, start_record

FACTS = GpuFacts(
    index=1,
    name="Tesla V100-SXM2-16GB",
    uuid="GPU-5f",
    pci="0000:06:00.0",
    capability="7.0",
    multiprocessors=80,
    memory_bytes=16_900_000_000,
    l2_bytes=6 << 20,
    clock_hz=1.53e9,
    memory_clock_hz=877e6,
    memory_bus_bits=4096,
    ecc=True,
    driver_version="12.8",
    runtime_version="12.8",
)
LIBRARIES = {
    "cudnn": {"version": "9.10.0", "path": "/opt/libcudnn.so.9"},
    "cublaslt": {"version": "12.8.4", "path": "/opt/libcublasLt.so.12"},
}
NVML = {"power_limit_w": 300.0, "temperature_c": 41, "processes": [77], "persistence": True}


def answer(name, precision="", **arguments):
    if name == "launch":
        return {
            "single_kernel_s": 4e-6,
            "empty_kernel_s": 2.5e-6,
            "host_s": 3.5e-6,
            "graph_node_s": 1.25e-6,
        }
    if name == "bandwidth":
        rate = 800e9 if arguments["bytes"] >= 1 << 30 else 2e12
    else:
        accumulate = accumulator(precision)
        rate = 0.95 * theoretical_peak(FACTS, precision, 1.4e9, accumulate).flops_per_s
    return {
        "per_second": rate,
        "median_per_second": rate,
        "clock_hz": 1.4e9,
        "rounds": 5,
        "kernel": f"{name} kernel",
    }


def record(device, precisions):
    assert device == "cuda:1"
    return extend_record(start_record(FACTS, NVML), precisions, LIBRARIES, answer)


def run(*words, probe=record):
    return device.run(read(["device", "--device", "cuda:1", *words])[0], probe)


def line(text, start):
    (found,) = (line for line in text.splitlines() if line.startswith(start))
    return found


def test_the_report_of_a_gpu(capsys):
    assert run() == 0
    out, err = capsys.readouterr()
    assert line(out, "GPU ").removeprefix("GPU").strip().split("  ") == [
        "cuda:1",
        "Tesla V100-SXM2-16GB",
        "compute capability 7.0",
        "PCI 0000:06:00.0",
        "GPU-5f",
    ]
    assert "V100 SXM2 16GB (2017), figures from: Tesla V100 whitepaper" in line(out, "product")
    assert "80, L2 6 MiB" in line(out, "SMs")
    assert says(line(out, "memory "), "16.9 GB", "4096 bits", "877 MHz", "ECC on")
    assert says(line(out, "clock"), "1.40 GHz", "measured", "1.53 GHz", "driver")
    assert says(line(out, "state"), "300 W", "41 degrees C")
    assert "12.8 (driver), 12.8 (runtime)" in line(out, "CUDA")
    assert "9.10.0  /opt/libcudnn.so.9" in line(out, "cuDNN")
    assert "12.8.4  /opt/libcublasLt.so.12" in line(out, "cuBLASLt")
    assert says(err.splitlines()[0], "warning", "1 process", "77")


def test_peaks_stand_with_theory_and_derivation(capsys):
    run("--quiet")
    out, err = capsys.readouterr()
    shown = line(out, "fp16-tc ")
    for part in ("109 TFLOP/s", "115 TFLOP/s", "95 %", "125 TFLOP/s", "1.40 GHz", "gemm_peak"):
        assert part in shown
    assert line(out, "fp16-tc:").startswith("fp16-tc: 80 SMs x 1024 FLOP/clock x 1.40 GHz (8 ")
    assert says(line(out, "tf32:"), "7.0", "8.0")
    assert err == ""


def test_bandwidths_and_launch_costs(capsys):
    run()
    out = capsys.readouterr().out
    # 2 x 877 MHz x 4096 bits: 898 GB/s.
    assert line(out, "device memory").split()[-3:] == ["898.0", "89", "%"]
    assert line(out, "L2 cache").split()[-2:] == ["-", "-"]
    assert says(out, "2.50 us", "1.25 us", "CUDA graph", "3.50 us")


def test_the_json_of_a_gpu(capsys):
    run("--json", "-", "--quiet")
    found = json.loads(capsys.readouterr().out)["device"]
    assert (found["kind"], found["device"]) == ("cuda", "cuda:1")
    assert found["facts"]["l2_bytes"] == 6 << 20
    assert found["libraries"]["cuDNN"] == "9.10.0"
