"""Who uses a GPU: the process, and the container, pod or batch job around it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields
from typing import Any


@dataclass(frozen=True, slots=True, order=True)
class Owner:
    """One process on a GPU and what runs it; empty text means unknown or none.

    `pid` is in the host's namespace. `container` is the runtime's identifier, `pod_uid` Kubernetes' own; `pod` and
    `namespace` are names, known only where something maps the UID to them. `slurm_job` is a job's number, with the
    step behind a dot where it is known.
    """

    pid: int
    process: str = ""
    container: str = ""
    pod: str = ""
    namespace: str = ""
    pod_uid: str = ""
    slurm_job: str = ""
    user: str = ""

    def as_json(self) -> dict[str, Any]:
        """The wire form: the fields that are known."""
        return {name: value for name, value in asdict(self).items() if value != ""}

    @property
    def label(self) -> str:
        """The owner in a few words: namespace/pod, else the Slurm job, else the container, else process and pid."""
        if self.pod:
            return f"{self.namespace}/{self.pod}" if self.namespace else self.pod
        if self.slurm_job:
            return f"Slurm job {self.slurm_job}"
        if self.pod_uid:
            return f"pod {self.pod_uid}"
        if self.container:
            return f"container {self.container[:12]}"
        return f"{self.process or 'process'} {self.pid}"


def owner_of_json(document: Mapping[str, Any]) -> Owner:
    """The owner of a wire form; what is not known of it is left out. Raises ValueError where it is none."""
    try:
        pid = int(document["pid"])
    except (KeyError, TypeError, ValueError, OverflowError):
        raise ValueError(f"{str(document)[:80]} is no owner: it has no pid") from None
    known = {f.name for f in fields(Owner)} - {"pid"}
    return Owner(pid, **{name: str(value) for name, value in document.items() if name in known})


def owners_text(owners: Sequence[Owner]) -> str:
    """JSON list of the wire forms."""
    documents = [owner.as_json() for owner in owners]
    return json.dumps(documents, ensure_ascii=False, separators=(",", ":"), sort_keys=True)


def read_owners(text: str) -> tuple[Owner, ...]:
    """Inverse of `owners_text`; no text is nobody. Raises ValueError."""
    try:
        documents = json.loads(text or "[]")
    except RecursionError:
        raise ValueError(f"{text[:80]!r} is nested too deeply") from None
    if not isinstance(documents, list) or not all(isinstance(document, dict) for document in documents):
        raise ValueError(f"{text[:80]!r} is no list of owners")
    return tuple(owner_of_json(document) for document in documents)
