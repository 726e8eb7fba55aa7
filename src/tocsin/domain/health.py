"""Which GPUs are healthy: the one rule that guards, planners and views go by."""

from __future__ import annotations

from collections.abc import Iterable

from tocsin.domain.finding import Finding
from tocsin.domain.reading import Reading


def healthy_gpus(readings: Iterable[Reading], findings: Iterable[Finding]) -> dict[str, bool]:
    """Whether each GPU of `readings` is healthy, by UUID: it answers and has no fault among `findings`."""
    faulty = {finding.subject.name for finding in findings if finding.is_hardware_fault}
    return {one.gpu.uuid: one.gpu.uuid not in faulty and not one.is_lost for one in readings}
