"""Ctrl-C and SIGTERM: the first interrupts, and nothing that is written stays half done."""

import contextlib
import signal

import pytest

from pydlbench.interrupts import OneInterrupt, sigterm_interrupts


@pytest.fixture(params=[signal.default_int_handler, signal.SIG_IGN], autouse=True)
def _of_sigint(request):
    """What SIGINT does at the start; a shell's background commands ignore it."""
    before = signal.signal(signal.SIGINT, request.param)
    yield
    signal.signal(signal.SIGINT, before)


def test_sigterm_interrupts_whether_or_not_sigint_is_ignored():
    with sigterm_interrupts() as received, pytest.raises(KeyboardInterrupt):
        signal.raise_signal(signal.SIGTERM)
    assert received == [signal.SIGTERM]


@pytest.mark.parametrize("around", [contextlib.nullcontext, sigterm_interrupts])
def test_a_result_is_kept_whole_before_an_interrupt_counts(around):
    done = []

    def keep(interrupts):
        with interrupts.held():
            signal.raise_signal(signal.SIGTERM)
            done.append("kept")

    with around(), OneInterrupt() as interrupts:
        with pytest.raises(KeyboardInterrupt):
            keep(interrupts)
        signal.raise_signal(signal.SIGTERM)  # the second does nothing
    assert done == ["kept"]
