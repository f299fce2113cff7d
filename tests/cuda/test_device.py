"""The module pydlbench._cuda with and without a GPU: what is there, and what is said where not."""

import os
import subprocess
import sys

import pytest

from pydlbench.errors import UnsupportedError


@pytest.fixture(scope="module")
def cuda():
    """The module, where it was built."""
    return pytest.importorskip("pydlbench._cuda", reason="built without CUDA")


@pytest.mark.parametrize("call", ["device_count()", "device_facts(0)", "Device(0)"])
@pytest.mark.usefixtures("cuda")
def test_without_a_gpu_everything_says_so_in_one_sentence(call):
    # In a process of its own: the driver reads what hides a GPU when it is first asked.
    program = (
        "from pydlbench import _cuda\nfrom pydlbench.errors import UnsupportedError\n"
        f"try:\n    _cuda.{call}\nexcept UnsupportedError as error:\n    print(error, end='')"
    )
    hidden = {**os.environ, "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", program], env=hidden, capture_output=True, text=True, check=True
    )
    message = done.stdout
    assert "no GPU can be used" in message
    assert "--device cpu" in message
    assert "\n" not in message
    assert "cudaError" not in message


def test_the_module_tells_what_it_was_built_with(cuda):
    built = cuda.built_with()
    assert set(built) == {"cuda", "architectures", "compiler"}
    major, minor = built["cuda"].split(".")
    assert int(major) >= 12
    assert int(minor) >= 0


@pytest.mark.gpu
def test_facts_of_a_gpu_make_sense(cuda):
    facts = cuda.device_facts(0)
    assert facts == cuda.Device(0).facts
    assert facts["index"] == 0
    assert facts["uuid"].startswith("GPU-")
    assert len(facts["uuid"]) == len("GPU-00000000-0000-0000-0000-000000000000")
    assert facts["capability"] == f"{facts['major']}.{facts['minor']}"
    assert facts["multiprocessors"] > 0
    assert 0 < cuda.Device(0).free_bytes <= facts["memory_bytes"]
    assert facts["threads_per_multiprocessor"] % 32 == 0


@pytest.mark.gpu
def test_a_gpu_that_is_not_there_is_refused_with_those_that_are(cuda):
    count = cuda.device_count()
    for index in (-1, count):
        with pytest.raises(UnsupportedError, match=f"no cuda:{index}; there is cuda:0"):
            cuda.Device(index)
