"""Things that happened at an instant, as opposed to values that hold over time."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from enum import StrEnum

from tocsin.domain.finding import Severity

MOST_SAID = 1_000
"""Letters of a message that findings repeat; the event keeps all of it."""


class EventKind(StrEnum):
    """What kind of thing happened."""

    XID = "xid"
    """NVIDIA driver error; `code` is the XID number."""
    SXID = "sxid"
    """NVSwitch error; `code` is the SXid number."""
    RECOVERY_ACTION = "recovery_action"
    """The driver changed its recovery verdict; `code` is NVML field 230's enumeration."""
    GPU_LOST = "gpu_lost"
    """A GPU stopped being enumerated or answers GPU_IS_LOST."""
    GPU_FOUND = "gpu_found"
    """A GPU appeared or came back."""
    DRIVER_RELOAD = "driver_reload"
    """The driver was reloaded: counters start again."""
    ALLOCATOR_OOM = "allocator_oom"
    """An allocation inside a process failed for want of GPU memory; `code` is the process."""
    DUPLICATE_IDENTITY = "duplicate_identity"
    """A host reports a GPU that another host reports; what it said is refused."""
    MAINTENANCE_NOTICE = "maintenance_notice"
    """The cloud announces that it takes the machine away; `code` is a `NoticeCode`, 0 where it takes that back."""
    NODE_FAULT = "node_fault"
    """A fault of the node that is none of a GPU's own; `code` is a `NodeFault`, or says that it is over."""
    DEVICE_FAULT = "device_fault"
    """A fault of a card whose vendor has no XIDs; `code` is a `DeviceFault`, or says that it is over."""


@dataclass(frozen=True, slots=True)
class Event:
    """One happening.

    `gpu` is a UUID, or empty where the event belongs to the whole `host`. `source` names the reader that saw it.
    Two readers may see one happening: they give the same `id` when kind, GPU, code and instant agree.

    One number can stand for errors of very different weight. `severity` is that of this very happening and `remedy`
    NVIDIA's word for what to do about it at once, such as ``reset_gpu``, where the reader could tell: by the words
    behind an NVLink XID, or by the driver's own "Fatal". None and empty where only the number speaks.
    """

    kind: EventKind
    gpu: str
    host: str
    at_ms: int
    code: int = 0
    message: str = ""
    source: str = ""
    simulated: bool = False
    severity: Severity | None = None
    remedy: str = ""

    @property
    def said(self) -> str:
        """The message as far as a finding repeats it."""
        return self.message if len(self.message) <= MOST_SAID else f"{self.message[: MOST_SAID - 1]}…"

    @property
    def id(self) -> str:
        """Stable 16-digit name; storing an event twice under it changes nothing."""
        text = f"{self.kind}|{self.gpu}|{self.host}|{self.at_ms}|{self.code}"
        return hashlib.sha256(text.encode()).hexdigest()[:16]
