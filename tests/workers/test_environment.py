import os

import pytest

from pydlbench.workers.environment import worker_environment

INHERITED = {
    "PATH": "/bin",
    "LD_LIBRARY_PATH": "/opt/lib",
    "OMP_NUM_THREADS": "99",
    "OMP_WAIT_POLICY": "passive",
    "GOMP_SPINCOUNT": "0",
    "KMP_AFFINITY": "none",
    "MKL_CBWR": "COMPATIBLE",
    "OPENBLAS_CORETYPE": "Prescott",
    "DNNL_MAX_CPU_ISA": "SSE41",
    "ONEDNN_DEFAULT_FPMATH_MODE": "BF16",
    "TF_ENABLE_ONEDNN_OPTS": "0",
    "NVIDIA_TF32_OVERRIDE": "1",
    "TORCH_ALLOW_TF32_CUBLAS_OVERRIDE": "1",
    "ATEN_CPU_CAPABILITY": "default",
    "TF_NUM_INTRAOP_THREADS": "1",
    "TF_XLA_FLAGS": "--tf_xla_auto_jit=2",
    "XLA_FLAGS": "--xla_cpu_enable_fast_math=true",
    "NUMBA_DISABLE_JIT": "1",
    "NUMBA_CUDA_DRIVER": "/opt/lib/libcuda.so",
    "TORCHDYNAMO_DISABLE": "1",
    "TORCH_COMPILE_DISABLE": "1",
    "TORCHINDUCTOR_MAX_AUTOTUNE": "1",
    "TORCHINDUCTOR_CACHE_DIR": "/cache",
}
# Places change nothing; the number of threads is set anew.
KEPT = {
    "PATH",
    "LD_LIBRARY_PATH",
    "OMP_NUM_THREADS",
    "NUMBA_CUDA_DRIVER",
    "TORCHINDUCTOR_CACHE_DIR",
}


def test_nothing_that_changes_numerics_or_threads_is_inherited():
    environment = worker_environment(INHERITED, [0])
    assert set(environment) & set(INHERITED) == KEPT
    assert environment["OMP_NUM_THREADS"] == "1"
    assert environment["PATH"] == "/bin"


@pytest.mark.parametrize(
    ("cpus", "places"), [([0], "{0}"), ([0, 1, 2], "{0},{1},{2}"), ([5, 3], "{5},{3}")]
)
def test_each_cpu_is_a_place_of_one_thread(cpus, places):
    environment = worker_environment({}, cpus)
    assert environment["OMP_NUM_THREADS"] == environment["MKL_NUM_THREADS"] == str(len(cpus))
    assert environment["OMP_PLACES"] == places
    assert environment["OMP_PROC_BIND"] == "close"
    assert environment["OMP_DYNAMIC"] == "false"
    assert environment["OPENBLAS_NUM_THREADS"] == "1"


def test_compiled_code_is_kept_beside_probes_or_not_at_all(monkeypatch, tmp_path):
    monkeypatch.setenv("PYDLBENCH_PROBES", str(tmp_path / "probes.json"))
    assert worker_environment({}, [0])["NUMBA_CACHE_DIR"] == str(tmp_path / "code" / "numba")
    monkeypatch.setenv("PYDLBENCH_PROBES", "none")
    assert "NUMBA_CACHE_DIR" not in worker_environment({}, [0])


@pytest.mark.parametrize("name", [".", "code", "code/numba"])
@pytest.mark.parametrize("how", ["group", "others", "owner"])
def test_no_compiled_code_is_loaded_from_where_others_may_write(monkeypatch, tmp_path, name, how):
    monkeypatch.setenv("PYDLBENCH_PROBES", str(tmp_path / "probes.json"))
    folder = tmp_path / name
    folder.mkdir(parents=True, exist_ok=True)
    if how == "owner":
        try:
            os.chown(folder, 65534, -1)
        except PermissionError:
            pytest.skip("only root can give a folder away")
    else:
        folder.chmod(0o720 if how == "group" else 0o702)
    assert "NUMBA_CACHE_DIR" not in worker_environment({}, [0])


def test_the_hosts_environment_is_left_alone():
    inherited = dict(INHERITED)
    worker_environment(inherited, [0, 1])
    assert inherited == INHERITED
