"""Which of several brains acts, as a label of its pod: a Service selects the active one by it, as Patroni's does."""

from __future__ import annotations

from collections.abc import Callable

import structlog

from tocsin.actions.kubernetes.api import KubeError
from tocsin.actions.kubernetes.client import connect
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import Clock

log = structlog.get_logger()

LABEL = "tocsin.io/brain"
ACTIVE, STANDBY = "active", "standby"
POD_ROLE_SECONDS = 0.5
"""Time between two looks at whether the label is still right."""
AGAIN_SECONDS = 30.0
"""Time after which a label that is right is written once more: somebody else may have changed it."""


class PodRole:
    """Keeps `LABEL` of the pod `place`, as `namespace/name`, what `active` says. A server that is away is logged once;
    the next look tries again."""

    def __init__(self, cluster: Cluster, place: str, active: Callable[[], bool], clock: Clock) -> None:
        self._cluster = cluster
        self._namespace, _, self._name = place.partition("/")
        self._active = active
        self._clock = clock
        self._said = ""
        self._due = float("-inf")
        self._problem = ""

    def look(self) -> None:
        """Write the label where it changes, or is due."""
        role, now = ACTIVE if self._active() else STANDBY, self._clock.monotonic()
        if role == self._said and now < self._due:
            return
        try:
            self._cluster.label_pod(self._namespace, self._name, {LABEL: role})
        except KubeError as error:
            if str(error) != self._problem:
                log.warning("the pod is not labelled", role=role, problem=str(error))
            self._problem = str(error)
            return
        self._said, self._due, self._problem = role, now + AGAIN_SECONDS, ""


def open_pod_role(settings: KubernetesSettings, active: Callable[[], bool], clock: Clock) -> PodRole | None:
    """What labels the pod of `kubernetes.pod`; None where none is named. Raises InputError as the connection does."""
    if not settings.pod:
        return None
    return PodRole(Cluster(connect(settings)), settings.pod, active, clock)
