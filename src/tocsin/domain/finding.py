"""What rules say: a condition that holds, and the incident it belongs to."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable
from dataclasses import dataclass, field
from enum import StrEnum
from functools import lru_cache

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.phrase import Phrase, in_chinese
from tocsin.domain.place import Place
from tocsin.domain.reading import Owner, Reading

# What a finding, prediction or decision is about.


class SubjectKind(StrEnum):
    """The kind of thing."""

    GPU = "gpu"
    HOST = "host"
    POOL = "pool"
    FLEET = "fleet"


@dataclass(frozen=True, slots=True)
class Subject:
    """`name` is the UUID for a GPU, the host name, the pool name, or ``fleet``.

    `detail` narrows it to a part, as a metric variant's label value does (``pid`` or MIG instance); mostly empty. For
    a GPU, `host` is its node and `pool` its pool, so that failure domains can be counted without a look-up.
    """

    kind: SubjectKind
    name: str
    host: str = ""
    pool: str = ""
    detail: str = ""

    @property
    def key(self) -> str:
        """Stable text form, unique per subject."""
        return f"{self.kind}:{self.name}" + (f":{self.detail}" if self.detail else "")


class Severity(StrEnum):
    """How urgent; the order of definition is the order of rank."""

    INFO = "info"
    WARNING = "warning"
    CRITICAL = "critical"

    @property
    def rank(self) -> int:
        """0 for info, 2 for critical."""
        return list(Severity).index(self)

    @property
    def level(self) -> AlertLevel:
        """The level of what says nothing else about itself: critical pages, a warning is one, the rest are notes."""
        return list(AlertLevel)[self.rank]


class Category(StrEnum):
    """What kind of trouble a rule is about."""

    HARDWARE = "hardware"
    """The GPU, its link or its firmware is failing."""
    APPLICATION = "application"
    """A program's own fault; never condemns a GPU."""
    THERMAL = "thermal"
    POWER = "power"
    MEMORY = "memory"
    FRAGMENTATION = "fragmentation"
    CAPACITY = "capacity"
    TELEMETRY = "telemetry"
    """What we see, not the GPU, is in doubt: frozen values, a lost metric family."""
    VERSIONS = "versions"
    """Hosts that are meant to be equal have different versions."""


class ActionKind(StrEnum):
    """What can be done. The order of definition is the ladder from harmless to final."""

    NOTIFY = "notify"
    THROTTLE = "throttle"
    RESTORE = "restore"
    PLACE_ELSEWHERE = "place_elsewhere"
    DEFRAGMENT = "defragment"
    SCALE_OUT = "scale_out"
    SCALE_IN = "scale_in"
    CHECKPOINT = "checkpoint"
    MIGRATE = "migrate"
    CORDON_GPU = "cordon_gpu"
    UNCORDON_GPU = "uncordon_gpu"
    CORDON = "cordon"
    UNCORDON = "uncordon"
    DRAIN = "drain"
    RESET_GPU = "reset_gpu"
    REBOOT_NODE = "reboot_node"
    RMA_TICKET = "rma_ticket"


PREDICTION_EVIDENCE = "prediction:"
"""How the name of evidence begins whose `value` is the probability that a model gives."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One thing that supports a claim: `name` (a metric, an XID, a peer), what was seen, and when.

    `text_zh` is what was seen in Chinese; empty where there is English alone, and in what the store gives back.
    """

    name: str
    text: str
    at_ms: int
    value: float | None = None
    text_zh: str = ""


def evidence_of(name: str, said: Phrase, at_ms: int, value: float | None = None) -> Evidence:
    """Evidence that is told in both languages."""
    return Evidence(name, str(said), at_ms, value, in_chinese(said))


@lru_cache(maxsize=16_384)
def finding_id(rule: str, subject: str, started_ms: int) -> str:
    """The id of the finding of `rule` about the subject with that key, since `started_ms`."""
    return hashlib.sha256(f"{rule}|{subject}|{started_ms}".encode()).hexdigest()[:16]


@dataclass(frozen=True, slots=True)
class Finding:
    """A rule's condition holds for a subject since `started_ms`, last seen at `last_ms`.

    `value` and `threshold` are in the unit of `metric`; None where the rule compares no number. `action` is what the
    rule proposes. `sentence` is the whole of it in words, `sentence_zh` the same in Chinese, empty where there is none.
    `owners` are the processes on the GPU when it was last seen.
    `told` says that it rests on reported events alone, such as an XID, which looking again does not bear out further.
    `level` is the one that its rule and the record of its kind give it; None, as in entries of before there were
    levels, where its severity does.
    """

    rule: str
    subject: Subject
    severity: Severity
    category: Category
    action: ActionKind
    started_ms: int
    last_ms: int
    sentence: str
    metric: str = ""
    value: float | None = None
    threshold: float | None = None
    evidence: tuple[Evidence, ...] = field(default=())
    simulated: bool = False
    owners: tuple[Owner, ...] = ()
    told: bool = False
    level: AlertLevel | None = None
    sentence_zh: str = ""

    @property
    def alert_level(self) -> AlertLevel:
        """How soon a person should hear of it."""
        return self.level or self.severity.level

    @property
    def expected(self) -> bool:
        """Whether it rests on what a model predicts, and on nothing that has happened."""
        return any(item.name.startswith(PREDICTION_EVIDENCE) for item in self.evidence)

    @property
    def id(self) -> str:
        """Stable 16-digit name: same rule, subject and start, same finding, also after a restart."""
        return finding_id(self.rule, self.subject.key, self.started_ms)

    @property
    def is_hardware_fault(self) -> bool:
        """Whether its subject is unhealthy: trouble of the hardware itself that cannot wait."""
        return self.category is Category.HARDWARE and self.severity is Severity.CRITICAL


@dataclass(frozen=True, slots=True)
class Incident:
    """A burst of findings collapsed to its root cause.

    `root` is the finding that explains the others; `members` are all findings of the incident, the root among them;
    `subjects` counts what is touched. `id` is that of the root, so that it survives a restart. `place` is where the
    cause sits: what all that shows it shares; None where nobody looked, as in incidents of older versions. An incident
    goes on until all of it is over: `cleared` are the ids of members, which may be the root, that hold no more.
    `sentence_zh` is the sentence in Chinese, empty where there is none.
    """

    root: Finding
    members: tuple[Finding, ...]
    opened_ms: int
    last_ms: int
    sentence: str
    place: Place | None = None
    cleared: tuple[str, ...] = ()
    sentence_zh: str = ""

    @property
    def id(self) -> str:
        return self.root.id

    @property
    def cause_cleared(self) -> bool:
        """Whether its root holds no more: what is left of it are effects that go on."""
        return self.root.id in self.cleared

    @property
    def alert_level(self) -> AlertLevel:
        """That of its gravest member; where the root is a program's own fault, the root's."""
        return max((member.alert_level for member in self._grave), key=lambda level: level.rank)

    @property
    def severity(self) -> Severity:
        """As `alert_level`."""
        return max((member.severity for member in self._grave), key=lambda severity: severity.rank)

    @property
    def _grave(self) -> tuple[Finding, ...]:
        """Those that say how grave it is."""
        return (self.root,) if self.root.category is Category.APPLICATION else self.members

    @property
    def subjects(self) -> int:
        return len({member.subject.key for member in self.members})


def healthy_gpus(readings: Iterable[Reading], findings: Iterable[Finding]) -> dict[str, bool]:
    """Whether each GPU of `readings` is healthy, by UUID: it answers and has no fault among `findings`.

    The one rule that guards, planners and views go by.
    """
    faulty = {finding.subject.name for finding in findings if finding.is_hardware_fault}
    return {one.gpu.uuid: one.gpu.uuid not in faulty and not one.is_lost for one in readings}
