"""How a process ended, in words."""

import pytest

from pydlbench.workers.host import exit_status

MEMORY = "if nobody killed it, the system ran out of memory: try a smaller --batch"


@pytest.mark.parametrize(
    ("code", "said", "words"),
    [
        (7, "", "ended with exit code 7"),
        (1, "first\nlast\n\n", "ended with exit code 1: last"),
        (None, "", "ended with exit code None"),
        (-11, "heap is broken", "was killed by SIGSEGV: heap is broken"),
        (-250, "", "was killed by signal 250"),
        (
            -9,
            "Killed",
            f"was killed by SIGKILL: Killed; {MEMORY}",
        ),
        (
            -4,
            "",
            "was killed by SIGILL; its library was built for another CPU: install one for this one",
        ),
    ],
)
def test_a_death_exit_status(code, said, words):
    assert exit_status(code, said) == words
