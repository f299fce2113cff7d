"""How a worker ended, in words that say what to do."""

from __future__ import annotations

import signal

__all__ = ["in_words"]

# What to do about a death, where its signal tells something.
_ADVICE = {
    "SIGKILL": "if nobody killed it, the system did for lack of memory: try a smaller --batch",
    "SIGILL": "its library was built for another CPU: install one for this one",
}


def in_words(code: int | None, said: str) -> str:
    """Return a clause: ``was killed by SIGSEGV: malloc(): corrupted``.

    Args:
        code: exit code, negative after a signal; None where there is none.
        said: its standard error since the request; the last line is quoted.
    """
    advice = None
    if code is not None and code < 0:
        try:
            name = signal.Signals(-code).name
        except ValueError:
            name = f"signal {-code}"
        how = f"was killed by {name}"
        advice = _ADVICE.get(name)
    else:
        how = f"ended with exit code {code}"
    lines = said.strip().splitlines()
    last = f": {lines[-1]}" if lines else ""
    return f"{how}{last}" + (f"; {advice}" if advice else "")
