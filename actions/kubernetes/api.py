"""What the rest of this package needs of an API server: one request, what its refusal means, and nodes and pods."""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from decimal import Decimal
from functools import cached_property
from typing import Any, Protocol

from tocsin.actions.model.executor import ManagerUnavailable

Json = dict[str, Any]
"""An object of the API as JSON has it."""

PLAIN = "application/json"
MERGE = "application/merge-patch+json"
"""JSON merge patch (RFC 7386); a stale ``metadata.resourceVersion`` in it is answered 409."""
STRATEGIC = "application/strategic-merge-patch+json"
"""Merges conditions by type. It replaces taints as a whole, so it is used for conditions alone."""

_PASSING = frozenset({0, 429, 500, 502, 503, 504})
_REFUSED = frozenset({401, 403})


class KubeError(ManagerUnavailable):
    """The API server refused, or gave no answer.

    `status` is the HTTP status, 0 where no answer came. `reason` is the server's word for it, often empty for 500.
    `causes` are the messages of its causes, `retry_after` the seconds that it asks to wait. `certain` is False where
    the request may have taken effect. `lacking` names the right that the server says it does not grant, `granted` is
    True where it says that it does: both stay empty for 403 until it has been asked.
    """

    def __init__(
        self,
        status: int,
        message: str,
        *,
        reason: str = "",
        causes: tuple[str, ...] = (),
        retry_after: float | None = None,
        certain: bool = True,
    ) -> None:
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = causes
        self.retry_after = retry_after
        self.certain = certain
        self.lacking = ""
        self.granted = False
        self.exit_code = 3 if self.no_service else 1
        said = "; ".join(causes) if causes and status == 429 else message
        super().__init__(f"Kubernetes answered {status}: {said}" if status else f"Kubernetes: {said}")

    @property
    def no_service(self) -> bool:
        """Whether the server gave no service at all: no answer, or none for these credentials."""
        return self.status in _PASSING | _REFUSED

    @property
    def refused(self) -> bool:
        """Whether it does not accept the credentials, or they do not have the right."""
        return self.status in _REFUSED

    @property
    def passing(self) -> bool:
        """Whether the same request may well succeed a little later.

        A 403 may, unless the server has said that the right is lacking: one that starts refuses everybody everything
        until it has read its roles.
        """
        return self.status in _PASSING or (self.status == 403 and not self.lacking)


class ApiClient(Protocol):
    """An API server."""

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = PLAIN,
    ) -> Json:
        """The body of the answer; raises KubeError for anything but 2xx, and where no answer comes."""

    def close(self) -> None:
        """Let go of connections; safe to repeat."""


_GPU_RESOURCE = re.compile(r"nvidia\.com/(gpu(\..+)?|mig-.+)")
"""Resources that GPUs, shares of them (``gpu.shared``) and MIG instances are asked for by (device plugin of NVIDIA);
other plugins count memory or cores under the same prefix."""
_QUANTITY = re.compile(r"(\d{1,18}\.?\d{0,9}|\.\d{1,9})(?:([numkMGTPE]|[KMGTPE]i)|[eE]([-+]?\d{1,2}))?")
"""A quantity of Kubernetes (api/resource, Quantity): decimal with a suffix of either table, or with an exponent."""
_SCALES = {
    **{
        suffix: Decimal(1000) ** power
        for power, suffix in enumerate(("n", "u", "m", "", "k", "M", "G", "T", "P", "E"), -3)
    },
    **{suffix: Decimal(1024) ** power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), 1)},
}
_CONDITION_KEY = re.compile(r'k:\{"type":"([^"\\]+)"\}')
"""How the server names a condition among the fields of a writer."""
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
"""Taint that the cluster puts on a node that is cordoned."""
MIRROR = "kubernetes.io/config.mirror"
CHECKPOINT = "tocsin.io/checkpoint"
"""Pod annotation ``"true"``: the program takes a checkpoint on request."""
CHECKPOINT_REQUESTED = "tocsin.io/checkpoint-requested"
"""Pod annotation that Tocsin sets to the id of the decision."""
CHECKPOINT_DONE = "tocsin.io/checkpoint-done"
"""Pod annotation that the program sets to the same id once the checkpoint is safe."""


class _Object:
    def __init__(self, raw: Json) -> None:
        self.raw = raw
        self._metadata: Mapping[str, Any] = raw.get("metadata") or {}
        self._spec: Mapping[str, Any] = raw.get("spec") or {}
        self.name = str(self._metadata.get("name", ""))
        self.labels: Mapping[str, str] = self._metadata.get("labels") or {}
        self.annotations: Mapping[str, str] = self._metadata.get("annotations") or {}

    @property
    def version(self) -> str:
        """Resource version: changes with every write."""
        return str(self._metadata.get("resourceVersion", ""))


class KubeNode(_Object):
    """One node."""

    @property
    def schedulable(self) -> bool:
        """False while it is cordoned, by whomever."""
        return not self._spec.get("unschedulable", False)

    @property
    def cordon_writers(self) -> frozenset[str]:
        """Field managers that last set ``spec.unschedulable``; empty where the server tells none."""
        entries = self._metadata.get("managedFields") or []
        return frozenset(
            str(each.get("manager", ""))
            for each in entries
            if "f:unschedulable" in ((each.get("fieldsV1") or {}).get("f:spec") or {})
        )

    @property
    def taints(self) -> list[Json]:
        return list(self._spec.get("taints") or [])

    @property
    def ready(self) -> bool:
        """Whether its kubelet says so."""
        return self.condition("Ready").get("status") == "True"

    @property
    def conditions(self) -> list[Json]:
        return list((self.raw.get("status") or {}).get("conditions") or [])

    def condition(self, kind: str) -> Mapping[str, Any]:
        """The condition of type `kind`; empty where there is none."""
        return next((each for each in self.conditions if each.get("type") == kind), {})

    @property
    def condition_writers(self) -> dict[str, set[str]]:
        """Field managers by type of the condition that they have written; empty where the server tells none."""
        found: dict[str, set[str]] = {}
        for each in self._metadata.get("managedFields") or []:
            fields = ((each.get("fieldsV1") or {}).get("f:status") or {}).get("f:conditions") or {}
            for key in fields:
                kind = _CONDITION_KEY.fullmatch(key)
                if kind is not None:
                    found.setdefault(kind.group(1), set()).add(str(each.get("manager", "")))
        return found


class Pod(_Object):
    """One pod."""

    @property
    def namespace(self) -> str:
        return str(self._metadata.get("namespace", ""))

    @property
    def uid(self) -> str:
        return str(self._metadata.get("uid", ""))

    @property
    def title(self) -> str:
        """``namespace/name``."""
        return f"{self.namespace}/{self.name}"

    @property
    def node(self) -> str:
        """The node it is bound to; empty while it waits."""
        return str(self._spec.get("nodeName") or "")

    @property
    def terminating(self) -> bool:
        return bool(self._metadata.get("deletionTimestamp"))

    @property
    def finished(self) -> bool:
        """Whether all its containers have ended for good."""
        return (self.raw.get("status") or {}).get("phase") in {"Succeeded", "Failed"}

    @property
    def mirror(self) -> bool:
        """Whether the kubelet made it of a file: the server takes its eviction, and the kubelet makes it anew."""
        return MIRROR in self.annotations

    @property
    def owner(self) -> Mapping[str, Any]:
        """The controller that makes it anew; empty where there is none."""
        owners = self._metadata.get("ownerReferences") or []
        return next((owner for owner in owners if owner.get("controller")), {})

    @property
    def of_daemon(self) -> bool:
        return self.owner.get("kind") == "DaemonSet"

    @property
    def tolerates_cordon(self) -> bool:
        """Whether the scheduler puts it on nodes that are cordoned."""
        return any(
            each.get("effect") in {None, "", "NoSchedule"}
            and (each.get("key") == UNSCHEDULABLE or (not each.get("key") and each.get("operator") == "Exists"))
            for each in self._spec.get("tolerations") or ()
        )

    @property
    def keeps_files(self) -> bool:
        """Whether files of it are lost with it: an ``emptyDir`` volume on disk."""
        volumes = self._spec.get("volumes") or []
        return any("emptyDir" in each and (each["emptyDir"] or {}).get("medium") != "Memory" for each in volumes)

    @cached_property
    def gpus(self) -> int:
        """GPUs and MIG instances that it asks for."""
        return sum(_gpus_of(container) for container in self._spec.get("containers") or ())

    @property
    def containers(self) -> list[Json]:
        return list(self._spec.get("containers") or ())

    @property
    def priority(self) -> int:
        """That of its priority class, 0 without one."""
        found = self._spec.get("priority")
        return found if isinstance(found, int) else 0

    @property
    def started(self) -> str:
        """When its kubelet took it, ISO 8601; empty before."""
        return str((self.raw.get("status") or {}).get("startTime") or "")

    @property
    def checkpoints(self) -> bool:
        """Whether it takes checkpoints on request."""
        return self.annotations.get(CHECKPOINT, "").lower() == "true"


def _gpus_of(container: Mapping[str, Any]) -> int:
    resources = container.get("resources") or {}
    asked = (resources.get("limits") or {}) | (resources.get("requests") or {})
    return sum(whole(amount) for name, amount in asked.items() if _GPU_RESOURCE.fullmatch(name))


def quantity(amount: object) -> float:
    """A quantity such as ``500m`` or ``16Gi`` as a number; 0 where it is none."""
    return float(_decimal(amount, otherwise=0))


def whole(amount: object) -> int:
    """A quantity such as ``2``, ``3k`` or ``500m``, rounded up; 1 where it is none: something is asked for."""
    return math.ceil(_decimal(amount, otherwise=1))


def _decimal(amount: object, *, otherwise: int) -> Decimal:
    found = _QUANTITY.fullmatch(str(amount).strip())
    if found is None:
        return Decimal(otherwise)
    number, suffix, exponent = found.groups()
    return Decimal(number) * (_SCALES[suffix or ""] if exponent is None else Decimal(10) ** int(exponent))
