"""A brain's own pod says by its label whether that brain is the active one."""

from __future__ import annotations

from tocsin.actions.kubernetes.api import KubeError
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.runtime.brain.pod_role import AGAIN_SECONDS, LABEL, PodRole, open_pod_role


class Pods:
    """A cluster that notes what it is asked to label, or is away."""

    def __init__(self) -> None:
        self.labels: list[tuple[str, str, str]] = []
        self.away = False

    def label_pod(self, namespace: str, name: str, labels: dict[str, str]) -> None:
        if self.away:
            raise KubeError(0, "no answer")
        self.labels.append((namespace, name, labels[LABEL]))


def test_the_label_follows_the_lease_and_is_written_again_now_and_then() -> None:
    pods, clock, acts = Pods(), ManualClock(), [False]
    role = PodRole(pods, "gpus/tocsin-brain-1", lambda: acts[0], clock)  # type: ignore[arg-type]
    role.look()
    role.look()
    assert pods.labels == [("gpus", "tocsin-brain-1", "standby")]
    acts[0] = True
    role.look()
    role.look()
    assert [label for _, _, label in pods.labels] == ["standby", "active"]
    clock.advance(round(AGAIN_SECONDS * SECOND))
    role.look()
    assert [label for _, _, label in pods.labels] == ["standby", "active", "active"]


def test_a_server_that_was_away_gets_the_label_at_the_next_look() -> None:
    pods, clock = Pods(), ManualClock()
    role = PodRole(pods, "gpus/tocsin-brain-1", lambda: True, clock)  # type: ignore[arg-type]
    pods.away = True
    role.look()
    assert pods.labels == []
    pods.away = False
    role.look()
    assert [label for _, _, label in pods.labels] == ["active"]


def test_without_a_pod_nothing_is_labelled() -> None:
    assert open_pod_role(KubernetesSettings(), lambda: True, ManualClock()) is None
