"""What the machine code of a kernel tells, planted and Numba's own."""

import os
import re
import subprocess
import sys

import pytest

pytest.importorskip("numba")

WIDE = """
\tvfmadd231ps\t(%r9,%rsi), %zmm5, %zmm8
\tvfmadd213ps\t%zmm1, %zmm5, %zmm8
\tvfnmadd132ps\t%xmm1, %xmm5, %xmm8
\tvfmadd213ss\t%xmm1, %xmm5, %xmm8
\tvaddps\t%ymm1, %ymm5, %ymm8
"""
POOL = """
\tvmaxps\t32(%rdx), %ymm1, %ymm2
\tvmaxps\t%ymm3, %ymm1, %ymm2
\tvcmpgtps\t%ymm3, %ymm1, %k1
\tvmaxss\t%xmm3, %xmm1, %xmm2
"""


@pytest.mark.parametrize(
    ("code", "words"),
    [
        (
            WIDE,
            "2 of the 3 packed multiply-adds in its machine code are 512 bits wide, 1 of these",
        ),
        (
            POOL,
            "3 of the 3 packed instructions in its machine code are 256 bits wide, 1 of these",
        ),
        ("\tvfmadd213ss\t%xmm1, %xmm5, %xmm8\n", None),
        ("", None),
    ],
)
def test_widths_and_operands_are_counted(code, words):
    from pydlbench.backends.numba.backend import describe_code

    expected = None if words is None else f"{words} take an operand from memory"
    assert describe_code(code) == expected


def test_one_thread_or_vector_less_shows_in_real_code():
    import numba
    import numpy as np

    from pydlbench.backends.numba.backend import compiled_code, describe_code

    def sums(y, x):
        for i in range(y.size):
            y[i] = y[i] * x[i] + x[i]

    arrays = np.ones(64, np.float32), np.ones(64, np.float32)
    vectors = numba.njit(fastmath=True)(sums)
    assert compiled_code(vectors, arrays) == ""  # not compiled yet
    vectors(*arrays)
    assert re.search(
        "packed (multiply-adds|instructions)", describe_code(compiled_code(vectors, arrays))
    )


def test_kept_results_are_the_same_in_each_call():
    import numpy as np

    from pydlbench.backends.numba.backend import HostOperator

    seen = []

    def kernel(y, x):
        seen.append(y)
        y[:] = x

    operator = HostOperator(kernel, [np.ones(3)], [((3,), np.float32)], "dst", lambda y: y)
    kept = operator.with_reused_results()
    kept.call()
    kept.call()
    assert seen[-1] is seen[-2]
    assert seen[-1] is not seen[0]
    assert list(seen[-1]) == [1, 1, 1]


_COMPILED = """
import numpy as np
from pydlbench.backends.numba import kernels
from pydlbench.backends.numba.backend import compiled_code, describe_code
arrays = [np.ones((1, 8, 8), np.float32) for _ in range(3)]
kernels.product(*arrays)
hits = sum(kernels.product.stats.cache_hits.values())
print(hits, describe_code(compiled_code(kernels.product, arrays)))
"""


# Numba compiles a kernel in a process of its own, for seconds.
@pytest.mark.deep
def test_kept_code_still_says_how_wide_its_vectors_are(tmp_path):
    environment = {**os.environ, "NUMBA_CACHE_DIR": str(tmp_path)}
    first, second = (
        subprocess.run(
            [sys.executable, "-c", _COMPILED],
            env=environment,
            capture_output=True,
            text=True,
            check=True,
        ).stdout.split(" ", 1)
        for _ in range(2)
    )
    assert (first[0], second[0]) == ("0", "1")
    assert first[1] == second[1] != "None\n"
