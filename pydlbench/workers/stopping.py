"""Stop process groups while another one is timed, and continue them whatever happens.

Threads that wait for work spin for some milliseconds, on the cores of the process that is timed
next. A stopped process does not spin.

No group may stay stopped, neither after an error nor if this process is killed. A guardian, a shell
in its own session, knows the stopped groups. When its input ends with this process, it continues
them all. The workers' input ends, too, so they exit.
"""

import atexit
import contextlib
import os
import signal
import subprocess
import time
from pathlib import Path
from typing import Final

# A child handles a signal within a scheduler's time slice, some milliseconds.
_STOP_TIMEOUT_S: Final = 1.0
_POLL_S: Final = 1e-4
# Reads ``+ 123`` when group 123 is stopped and ``- 123`` when it is continued.
_GUARDIAN: Final = """
trap '' HUP INT TERM
stopped=' '
while read -r sign group; do
  case $sign in
    +) stopped="$stopped$group " ;;
    -)
      case $stopped in
        *" $group "*) stopped="${stopped%% $group *} ${stopped#* $group }" ;;
      esac ;;
  esac
done
for group in $stopped; do kill -s CONT -- "-$group"; done
"""


class Guardian:
    """Stops and continues process groups; a shell continues them if this process dies."""

    def __init__(self) -> None:
        self._shell: subprocess.Popen[bytes] | None = None
        self._owner = 0

    def stop(self, group: int) -> bool:
        """Stop a process group, and wait until it has stopped; return whether it has.

        A signal stops a process only after one of its threads has handled it. If other processes
        use its cores, that takes a time slice, during which the other threads go on.

        Args:
            group: process group, led by a child of this process.
        """
        if not self._tell(f"+ {group}"):
            return False
        try:
            os.killpg(group, signal.SIGSTOP)
        except ProcessLookupError:  # it has died, which the next request reports
            self._tell(f"- {group}")
            return False
        if not _has_stopped(group):
            self.resume(group)
            return False
        return True

    def resume(self, group: int) -> None:
        """Continue a process group that was stopped.

        Args:
            group: process group, which may have ended.
        """
        with contextlib.suppress(ProcessLookupError):
            os.killpg(group, signal.SIGCONT)
        self._tell(f"- {group}")

    def close(self) -> None:
        """End the guardian, which continues all groups that are still stopped."""
        shell, self._shell = self._shell, None
        if shell is not None and shell.stdin is not None and self._owner == os.getpid():
            with contextlib.suppress(BrokenPipeError):
                shell.stdin.close()
            shell.wait()

    def _tell(self, line: str) -> bool:
        """Send a line to the guardian; return False if it is missing: nothing may be stopped."""
        if self._owner != os.getpid():  # after a fork, the parent's guardian is no child of ours
            self._shell, self._owner = self._start(), os.getpid()
        if self._shell is None or self._shell.stdin is None:
            return False
        try:
            self._shell.stdin.write(f"{line}\n".encode())
            self._shell.stdin.flush()
        except BrokenPipeError:
            self._shell = None
        return self._shell is not None

    @staticmethod
    def _start() -> subprocess.Popen[bytes] | None:
        try:
            return subprocess.Popen(
                ["/bin/sh", "-c", _GUARDIAN],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=subprocess.DEVNULL,
                start_new_session=True,
            )
        except OSError:
            return None


def _has_stopped(process: int) -> bool:
    """Wait until all threads of a child have stopped or ended; return False after a time-out."""
    deadline = time.monotonic() + _STOP_TIMEOUT_S
    with contextlib.suppress(ChildProcessError):  # not a child of this process: cannot wait
        # WNOWAIT: the exit status stays available for Popen.wait().
        options = os.WSTOPPED | os.WEXITED | os.WNOWAIT | os.WNOHANG
        while os.waitid(os.P_PID, process, options) is None:
            if time.monotonic() > deadline:  # uninterruptible, for example waiting for a device
                return False
            time.sleep(_POLL_S)
    return True


def children_of(process: int) -> list[int]:
    """Return the children of a process; empty if the system does not list them."""
    children: list[int] = []
    for listed in Path(f"/proc/{process}/task").glob("*/children"):
        with contextlib.suppress(OSError):  # the thread has ended
            children += map(int, listed.read_text().split())
    return children


def descendants_of(process: int) -> list[int]:
    """Return the processes that a process has started, and those that they have started."""
    found = children_of(process)
    for each in found:
        found += children_of(each)
    return found


guardian: Final = Guardian()
atexit.register(guardian.close)
