"""Why one backend is slower than another on the same layer: causes, each with its own measurement.

A cause is an experiment or a counter, and what none of them accounts for stays unexplained. They
are parts of the call that do not overlap, so that they add up::

    time = allocation + reorders + dispatch + kernel + rest

The gap is the difference of two such sums: what the fastest backend spends on the same part is no
cause. Of the kernel's part, threads without work take what they could have done, and unpacked
weights what packing is known to bring.

Where nobody has measured the kernel by itself, its part is the call with kept pages less a call
that does nothing: two measurements, and their difference says nothing of the kernel yet. It becomes
a cause only beside what that kernel reaches of the machine's measured limit; the words say so.
"""

from pydlbench.causes.evidence import LOG, Account, Cause, Evidence
from pydlbench.causes.find import causes, unexplained_s

__all__ = ["LOG", "Account", "Cause", "Evidence", "causes", "unexplained_s"]
