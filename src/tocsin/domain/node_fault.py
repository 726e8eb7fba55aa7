"""What an event of kind ``node_fault`` says: a fault of the node, or around it, that is none of a GPU's own."""

from __future__ import annotations

from enum import IntEnum

OVER = 100
"""Added to the number of a fault: it is over."""


class NodeFault(IntEnum):
    """The fault; the number is the event's `code`, and `OVER` more where a fault is over."""

    NIC_LOST = 11
    """A network card does not answer, or its driver gave it up."""
    NIC_HEALTH = 12
    """A network card reports an error of its firmware or hardware."""
    NIC_CABLE = 13
    """A cable or transceiver reports an error."""
    NIC_HOT = 14
    """A network card is too hot."""
    PCIE_NON_FATAL = 22
    """PCIe counted uncorrectable errors that lost no link."""
    PCIE_FATAL = 23
    """PCIe counted errors that its specification calls fatal, or recovery from one failed."""
    MEMORY_CORRECTED = 31
    """The host's memory corrected many errors."""
    MEMORY_UNCORRECTED = 32
    """The host's memory had an error that could not be corrected."""
    MACHINE_CHECK = 42
    """A processor, or the firmware, reports a hardware error that was not corrected."""
    LEAK = 51
    """A leak detector has found liquid."""
    COOLANT_FLOW = 52
    """The flow of coolant is out of its unit's limits."""
    COOLANT_TEMPERATURE = 53
    """The coolant that is supplied is out of its unit's limits."""
    FAN = 54
    """A fan failed, or is about to."""
    POWER_SUPPLY = 55
    """A power supply failed, is about to, or has no input."""
    GPU_CONDITION = 61
    """Another tool's condition of the Kubernetes node calls its GPUs bad, without naming one."""
    NODE_CONDITION = 62
    """Another tool's condition of the Kubernetes node calls the node bad."""

    @property
    def over(self) -> int:
        """The code of the event that takes it back."""
        return self + OVER


NETWORK_FAULTS = frozenset({NodeFault.NIC_LOST, NodeFault.NIC_HEALTH, NodeFault.NIC_CABLE, NodeFault.NIC_HOT})
AROUND_NODE = (
    NodeFault.LEAK,
    NodeFault.COOLANT_FLOW,
    NodeFault.COOLANT_TEMPERATURE,
    NodeFault.FAN,
    NodeFault.POWER_SUPPLY,
)
"""What management controllers tell."""
