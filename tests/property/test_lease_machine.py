"""Whatever happens to brains, their clocks and the API server: never two that may act, and epochs never go back."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.runtime.brain.lease import LEASE_LOOK_SECONDS, RETRY_SHARE, KubernetesLease
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import ADMIN, KubeDouble
from tocsin_testing.kube_site import DirectDoor, FlakyDoor

BRAINS = 3


class Brains(RuleBasedStateMachine):
    """Each brain has clocks of its own; the monotonic ones run alike, the wall clocks do as they like."""

    @initialize()
    def start(self) -> None:
        self.double = KubeDouble()
        self.clocks = [ManualClock(T0 + index * 1000) for index in range(BRAINS)]
        self.doors = [FlakyDoor(self.double, ADMIN) for _ in range(BRAINS)]
        self.born = 0
        self.epochs: list[int] = []
        self.leases = [self._new(index) for index in range(BRAINS)]

    def _new(self, index: int) -> KubernetesLease:
        self.born += 1
        return KubernetesLease(
            Cluster(self.doors[index]), "default/brain", f"brain-{self.born}", 15.0, self.clocks[index]
        )

    @rule(index=st.integers(0, BRAINS - 1))
    def tick(self, index: int) -> None:
        lease = self.leases[index]
        before = lease.held()
        lease.tick()
        if lease.held() and not before:
            self.epochs.append(lease.epoch)

    @rule(seconds=st.floats(0.1, 20))
    def wait(self, seconds: float) -> None:
        for clock in self.clocks:
            clock.advance(round(seconds * SECOND))

    @rule(index=st.integers(0, BRAINS - 1), jump=st.integers(-(10**8), 10**8))
    def jump(self, index: int, jump: int) -> None:
        self.clocks[index].set(max(0, self.clocks[index].now_ms() + jump))

    @rule(index=st.integers(0, BRAINS - 1), trouble=st.sampled_from(["", "away", "mute"]))
    def trouble(self, index: int, trouble: str) -> None:
        self.doors[index].trouble = trouble

    @rule(index=st.integers(0, BRAINS - 1), gracefully=st.booleans())
    def restart(self, index: int, gracefully: bool) -> None:
        if gracefully:
            self.leases[index].release()
        self.leases[index] = self._new(index)

    @invariant()
    def at_most_one_may_act(self) -> None:
        assert sum(lease.held() for lease in getattr(self, "leases", [])) <= 1

    @invariant()
    def epochs_never_go_back(self) -> None:
        epochs = getattr(self, "epochs", [])
        assert epochs == sorted(epochs)


TestBrains = Brains.TestCase
TestBrains.settings = settings(max_examples=60, stateful_step_count=60)


def test_somebody_gets_it_once_the_trouble_is_over() -> None:
    double, clock = KubeDouble(), ManualClock(T0)
    doors = [FlakyDoor(double, ADMIN) for _ in range(BRAINS)]
    leases = [
        KubernetesLease(Cluster(door), "default/brain", f"brain-{index}", 15.0, clock)
        for index, door in enumerate(doors)
    ]
    for door in doors:
        door.trouble = "mute"
    for _ in range(10):
        for lease in leases:
            lease.tick()
        clock.advance(2 * SECOND)
    for door in doors:
        door.trouble = ""
    for _ in range(10):
        for lease in leases:
            lease.tick()
        clock.advance(2 * SECOND)
    assert sum(lease.held() for lease in leases) == 1


@given(
    st.sampled_from([3.0, 4.0, 5.0, 15.0, 60.0]),
    st.floats(0, LEASE_LOOK_SECONDS),
    st.floats(0, 1),
)
@settings(max_examples=60)
def test_a_dead_holder_is_replaced_soon_after_its_lease_has_run_out(seconds: float, behind: float, died: float) -> None:
    """`behind` is how much later the second brain looks than the first, `died` when the first dies: what part of its
    lease after both have settled."""
    double, clock = KubeDouble(), ManualClock(T0)
    first, second = (
        KubernetesLease(Cluster(DirectDoor(double, ADMIN)), "default/brain", name, seconds, clock) for name in "ab"
    )
    death, now = seconds * (1 + died), 0.0
    while now < death:
        first.tick()
        clock.advance(round(behind * SECOND))
        second.tick()
        clock.advance(round((LEASE_LOOK_SECONDS - behind) * SECOND))
        now += LEASE_LOOK_SECONDS
        assert not second.held()
    while not second.held():
        clock.advance(round(behind * SECOND))
        second.tick()
        clock.advance(round((LEASE_LOOK_SECONDS - behind) * SECOND))
        now += LEASE_LOOK_SECONDS
        assert not (first.held() and second.held())
    took = now - death
    assert took <= seconds * (1 + RETRY_SHARE) + 2 * LEASE_LOOK_SECONDS
    assert seconds != 4 or took <= 5
