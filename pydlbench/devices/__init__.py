"""WHERE kernels run: facts of the machine, theoretical peaks, and what probes found.

Nothing here times anything: ``pydlbench.measure`` runs the probes and hands their readings in.
"""

from pydlbench.devices.record import Bandwidth, DeviceRecord, Limits, PrecisionPeak
from pydlbench.devices.reliability import Advice

__all__ = ["Advice", "Bandwidth", "DeviceRecord", "Limits", "PrecisionPeak"]
