"""Whatever happens while Tocsin drains a node: only what may go is evicted, and people are not overruled."""

from __future__ import annotations

from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from tocsin.actions.executors.kubernetes import Kubernetes
from tocsin.actions.kubernetes.api import Json
from tocsin.actions.kubernetes.cluster import Cluster
from tocsin.actions.model.executor import ExecutionResult
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.finding import ActionKind
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import ADMIN, TOCSIN, Asked, KubeDouble
from tocsin_testing.kube_recorded import recorded
from tocsin_testing.kube_site import DirectDoor, FlakyDoor, Site, decide

NODE = "n1"
DRAIN = decide(ActionKind.DRAIN, NODE)


class Drains(RuleBasedStateMachine):
    """One node, one drain, and everybody else."""

    @initialize()
    def start(self) -> None:
        self.double = KubeDouble()
        self.site = Site(Path("unused"), DirectDoor(self.double, ADMIN), self.double)
        self.site.node(NODE)
        self.clock = ManualClock(T0)
        self.door = FlakyDoor(self.double, TOCSIN)
        self.untouchable: set[str] = set()
        self.overruled = False
        self.theirs = False
        self.born = 0
        self.last: ExecutionResult | None = None
        self.restart()

    def _node(self) -> Json:
        return self.double.state.find("/api/v1/nodes", NODE)

    @rule()
    def restart(self) -> None:
        config = KubernetesSettings(evict_bare_pods=True, drain_seconds=600, checkpoint_seconds=30, patience_seconds=60)
        self.executor = Kubernetes(Cluster(self.door), config, self.clock)

    @rule(kind=st.sampled_from(["plain", "daemon", "mirror", "files", "saves"]), app=st.sampled_from("ab"))
    def pod_comes(self, kind: str, app: str) -> None:
        self.born += 1
        name = f"{kind}-{self.born}"
        if kind == "daemon":
            self.untouchable.add(self.site.daemon(name, NODE))
        elif kind == "mirror":
            self.untouchable.add(self.site.mirror(name, NODE))
        elif kind == "files":
            self.untouchable.add(self.site.pod(name, NODE, volumes=[{"name": "scratch", "emptyDir": {}}]))
        else:
            notes = {"tocsin.io/checkpoint": "true"} if kind == "saves" else {}
            self.site.pod(name, NODE, app=app, annotations=notes)

    @rule(app=st.sampled_from("ab"), at_least=st.integers(0, 3))
    def budget_comes(self, app: str, at_least: int) -> None:
        self.born += 1
        self.site.budget(f"budget-{self.born}", app, at_least)

    @rule()
    def ending_pods_end(self) -> None:
        for pod in list(self.double.state.every("pods")):
            if pod["metadata"].get("deletionTimestamp"):
                self.site.finish(f"default/{pod['metadata']['name']}")

    @rule(trouble=st.sampled_from(["", "", "away", "mute", "starting"]))
    def server(self, trouble: str) -> None:
        self.double.starting = trouble == "starting"
        self.door.trouble = "" if self.double.starting else trouble

    @rule()
    def person_uncordons(self) -> None:
        node = self._node()
        if node["metadata"].get("annotations", {}).get("tocsin.io/cordon-key") == DRAIN.id:
            self.overruled = True
        if node["spec"].get("unschedulable"):
            self.theirs = False
            self.site.edit(f"/api/v1/nodes/{NODE}", spec={"unschedulable": None})

    @rule()
    def person_cordons(self) -> None:
        if not self._node()["spec"].get("unschedulable"):
            self.theirs = True
            self.site.edit(f"/api/v1/nodes/{NODE}", spec={"unschedulable": True})

    @rule(seconds=st.sampled_from([5, 15, 60, 700]))
    def drain(self, seconds: int) -> None:
        before = bool(self._node()["spec"].get("unschedulable"))
        self.last = self.executor.execute(DRAIN)
        self.clock.advance(seconds * SECOND)
        if self.overruled and not before:
            assert "unschedulable" not in self._node()["spec"], "a person's uncordon was overruled"

    def _by_tocsin(self) -> list[Asked]:
        return [each for each in self.double.writes() if each.sub == "eviction"]

    @invariant()
    def only_what_may_go_is_evicted(self) -> None:
        for asked in self._by_tocsin() if hasattr(self, "double") else ():
            assert f"default/{asked.name}" not in self.untouchable
            assert asked.body["deleteOptions"]["preconditions"]["uid"]

    @invariant()
    def what_is_done_is_done(self) -> None:
        last = getattr(self, "last", None)
        if last is None:
            return
        self.last = None
        if last.ok and not last.pending:
            left = [pod["metadata"]["name"] for pod in self.double.state.every("pods")]
            assert [name for name in left if f"default/{name}" not in self.untouchable] == []
            assert self._node()["spec"].get("unschedulable")


TestDrains = Drains.TestCase
TestDrains.settings = settings(max_examples=60, stateful_step_count=40)


_OUTAGES = st.lists(
    st.tuples(st.sampled_from(["away", "mute", "starting", "unauthorized", ""]), st.integers(1, 15)), max_size=7
)


@given(_OUTAGES)
@settings(max_examples=60)
def test_a_server_that_restarts_within_the_patience_ends_no_drain(outages: list[tuple[str, int]]) -> None:
    """Whatever it answers on the way: nothing, 403 to everything, or 401 after a connection was lost."""
    double = KubeDouble()
    site = Site(Path("unused"), DirectDoor(double, ADMIN), double)
    site.node(NODE)
    site.pod("train-0", NODE)
    clock, door = ManualClock(T0), FlakyDoor(double, TOCSIN)
    executor = Kubernetes(Cluster(door), KubernetesSettings(evict_bare_pods=True, patience_seconds=120), clock)
    for trouble, seconds in [("", 1), ("away", 1), *outages]:
        door.trouble = trouble if trouble in {"away", "mute"} else ""
        double.starting = trouble == "starting"
        double.before = (lambda _: recorded("auth_401")) if trouble == "unauthorized" else (lambda _: None)
        result = executor.execute(DRAIN)
        assert (result.ok, result.pending) == (True, True), (trouble, result.detail)
        clock.advance(seconds * SECOND)
    door.trouble, double.starting, double.before = "", False, lambda _: None
    executor.execute(DRAIN)
    site.finish("default/train-0")
    result = executor.execute(DRAIN)
    assert (result.ok, result.pending) == (True, False), result.detail
