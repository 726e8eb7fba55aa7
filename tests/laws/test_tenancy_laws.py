"""The law of tenancy, over every route: to a tenant no answer holds a name that belongs to another alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from starlette.testclient import TestClient

from tocsin.actions.planning.facts import NodeState, WorkloadFacts, WorkloadSeen
from tocsin.api.app import ROUTERS, create_app
from tocsin.api.tenancy import ROUTES, STRUCK, Names, Tenancy
from tocsin.config.access import ApiSettings
from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import DAY, MINUTE, SECOND, ManualClock, to_iso
from tocsin.domain.event import Event, EventKind
from tocsin.domain.reading import Gpu, Owner, Reading
from tocsin.queries.service import BrainService
from tocsin.runtime.brain import assembly
from tocsin.runtime.brain.assembly import RunningBrain, open_brain
from tocsin.runtime.brain.managers import Managers
from tocsin_testing.action_world import FakeExecutor
from tocsin_testing.builders import T0

STEP, STEPS = 10 * SECOND, 90
A_POD = Owner(101, "vllm-alpha", pod="alpha-serve-0", namespace="alpha", pod_uid="aaaa-1111", user="anna.alpha")
A_JOB = Owner(102, "train-alpha", slurm_job="550011.0", user="anna.alpha")
A_SHARED = Owner(103, "notebook-alpha", pod="alpha-notebook", namespace="alpha", pod_uid="aaaa-2222")
B_POD = Owner(90201, "vllm-bravo", pod="bravo.serve-0", namespace="bravo", pod_uid="bbbb-1111", user="bob.bravo")
B_JOB = Owner(90202, "train-bravo", slurm_job="990017.3", user="DOM\\bobsky")
B_BOX = Owner(90203, "python-bravo", container="bcbcbcbcbcbcbcbcbcbcbcbcbcbc", user="böb user")
B_EARLY = Owner(90204, "early-bravo", pod="bravo-early", namespace="bravo", pod_uid="bbbb-3333", user="beate")
GPUS = {
    "a0": Gpu("GPU-aaaa-0000", "node-alpha-1", 0, "H100", serial="SN-ALPHA-0", pool="train"),
    "a1": Gpu("GPU-aaaa-0001", "node-alpha-2", 0, "H100", serial="SN-ALPHA-1", pool="train"),
    "both": Gpu("GPU-cccc-0000", "node-mixed", 0, "H100", serial="SN-MIXED-0", pool="train"),
    "b0": Gpu("GPU-bbbb-0000", "node-mixed", 1, "H100", serial="SN-BRAVO-0", pool="train"),
    "b1": Gpu("GPU-bbbb-0001", "node-bravo.site-b.example", 0, "H100", serial="SN-BRAVO-1", pool="train"),
    "b2": Gpu("GPU-bbbb-0002", "gpu-bravo7", 0, "A100", serial="SN-BRAVO-2", pool="pool-x", labels={"team": "bravo"}),
}
OWNERS = {
    "a0": (A_POD,),
    "a1": (A_JOB,),
    "both": (A_SHARED, B_BOX),
    "b0": (B_POD,),
    "b1": (B_JOB,),
    "b2": (B_BOX,),
}
OF_B = (
    "bravo", "bob.bravo", "bobsky", "böb user", "beate", "990017", "bcbcbcbcbcbc", "90201", "90202", "90203", "90204",
    "GPU-bbbb", "SN-BRAVO", "gpu-bravo7", "bbbb-", "pool-x", "notes of the operators", "rita",
)  # fmt: skip
"""Parts of what belongs to B, or to who operates the fleet, alone."""
OF_A = ("GPU-aaaa-0000", "GPU-aaaa-0001", "GPU-cccc-0000")
SECRETS = {name: f"{name}-secret-of-sixteen" for name in ("tenant", "account", "fleet", "rita", "none")}


class Shows(FakeExecutor):
    """Which account a Slurm job is of, and what nodes hold."""

    def nodes(self) -> dict[str, NodeState]:
        return {
            gpu.host: NodeState(gpu.host, True, jobs={one.pod_uid: "" for one in owners if one.pod_uid} or None)
            for gpu, owners in ((GPUS[name], OWNERS[name]) for name in GPUS)
        }

    def work(self) -> WorkloadSeen:
        return WorkloadSeen({
            "slurm/550011": WorkloadFacts(account="alpha-account", user="anna.alpha"),
            "slurm/990017": WorkloadFacts(account="bravo-account", user="bobsky", team="bravo-team"),
        })  # fmt: skip


def _values(name: str, step: int) -> dict[str, float]:
    hot = 97.0 if name in {"a0", "b0", "b1"} else 55.0
    found = {"gpu_temperature_celsius": hot + step % 2, "gpu_power_watts": 300.0, "gpu_utilization_ratio": 0.9}
    found["gpu_memory_used_ratio"] = 0.5
    return found | {f'gpu_process_memory_used_bytes{{pid="{one.pid}"}}': 1e9 for one in OWNERS[name]}


def _batch(step: int) -> Batch:
    at = T0 + step * STEP
    # Of the first steps GPU a0 was another's.
    readings = [
        Reading(gpu, at, _values(name, step), owners=(B_EARLY,) if name == "a0" and step < 30 else OWNERS[name])
        for name, gpu in GPUS.items()
    ]
    events = []
    if step in {10, 80}:
        for name in ("a0", "a1", "b1", "b2"):
            who = B_EARLY if step == 10 else OWNERS[name][0]
            text = f"NVRM: Xid (PCI): 79, pid={who.pid}, name={who.process}, fallen off the bus"
            events.append(Event(EventKind.XID, GPUS[name].uuid, GPUS[name].host, at, 79, text, "kernel_log"))
    return Batch(readings=readings, events=events)


@dataclass
class World:
    """A brain with the fleet of A and B, and clients of its API by name of the token."""

    running: RunningBrain
    clients: dict[str, TestClient] = field(default_factory=dict)

    def get(self, path: str, who: str = "tenant") -> tuple[int, str, bytes]:
        answer = self.clients[who].get(path)
        return answer.status_code, answer.headers.get("content-type", ""), answer.content


def _settings(folder: Path) -> Settings:
    return Settings.model_validate(
        {
            "store": {"path": folder / "store.db"},
            "journal": {"path": folder / "journal.db"},
            "forecast": {"worker": False},
            "prices": {"currency": "EUR", "gpu_hour_default": 2.0},
            "actions": {"managed_pools": ["train", "pool-x"], "mode": "propose", "boot_grace_seconds": 0},
        }
    )


def _api() -> ApiSettings:
    def token(name: str, role: str, **more: object) -> dict[str, object]:
        return {"name": name, "role": role, "secret": SECRETS[name], **more}

    tokens = [
        token("tenant", "viewer", namespaces=["alpha"]),
        token("account", "viewer", namespaces=["alpha-account"]),
        token("none", "viewer", namespaces=["empty"]),
        token("fleet", "viewer"),
        token("rita", "admin"),
    ]
    limits = {"requests_per_second": 1e6, "request_burst": 10**6}
    return ApiSettings.model_validate({"tokens": tokens, "limits": limits})


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    clock = ManualClock(T0)
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(assembly, "Managers", lambda _executors, *rest: Managers([Shows()], *rest))
        running = open_brain(_settings(tmp_path_factory.mktemp("tenants")), clock, propose=True)
    made = World(running)
    try:
        for step in range(STEPS):
            if step % 15 == 0:
                running.brain.managers.look()
                running.brain.managers.look_at_work()
            running.brain.accept(_batch(step))
            clock.advance(STEP)
            if step % 15 == 14:
                running.brain.tick()
        running.brain.managers.look()
        running.brain.managers.look_at_work()
        running.brain.usage.look()
        running.brain.forecast()
        app = create_app(BrainService(running.brain), _api(), clock)
        for name, secret in SECRETS.items():
            headers = {"Authorization": f"Bearer {secret}"}
            made.clients[name] = TestClient(app, base_url="http://127.0.0.1", headers=headers)
        paused = made.clients["rita"].post("/v1/pause", json={"reason": "notes of the operators"})
        assert paused.status_code == 200
        yield made
    finally:
        running.stop()


def _routes() -> list[str]:
    found = {
        route.path
        for router in ROUTERS
        for route in router.routes
        if isinstance(route, APIRoute) and "GET" in route.methods
    }
    return sorted(found)


def _asked(path: str) -> list[str]:
    """A route with each kind of parameter that it takes."""
    start, end = to_iso(T0 - DAY), to_iso(T0 + DAY)
    query = {
        "/v1/gpus/{uuid}/series": f"?metric=gpu_temperature_celsius&start={start}&end={end}",
        "/v1/gpus/{uuid}/peers": "?metric=gpu_temperature_celsius",
        "/v1/usage": f"?by=namespace&by=user&by=job&start={start[:10]}&end={to_iso(T0 + 2 * DAY)[:10]}",
        "/v1/usage/csv": "?by=job",
        "/v1/orders": "?host=node-alpha-1",
        "/v1/diagnoses": "?host=node-mixed",
    }.get(path, "")
    uuids = [gpu.uuid for gpu in GPUS.values()]
    names = {"{uuid}": uuids, "{planner}": ["migration", "consolidation"], "{card_id}": ["x"], "{decision_id}": ["x"]}
    for mark, values in names.items():
        if mark in path:
            return [path.replace(mark, one) + query for one in values]
    return [path, path + query] if query else [path]


def foreign_in(body: bytes) -> list[str]:
    """What of B stands in an answer, also where JSON escapes it."""
    text = body.decode("utf-8", "replace")
    with contextlib.suppress(ValueError):
        text += json.dumps(json.loads(text), ensure_ascii=False)
    return [one for one in OF_B if one.casefold() in text.casefold()]


@pytest.mark.parametrize("who", ["tenant", "account", "none"])
@pytest.mark.parametrize("path", _routes())
def test_no_answer_to_a_tenant_names_what_is_anothers(world: World, path: str, who: str) -> None:
    assert path in ROUTES, f"{path} is new: say in tocsin.api.tenancy what it is to a tenant"
    for asked in _asked(path):
        status, kind, body = world.get(asked, who)
        assert foreign_in(body) == [], (asked, body[:2000])
        assert status != 500, asked
        if ROUTES[path] is Tenancy.REFUSED:
            assert status == 403, asked
        assert not kind or kind.startswith(("application/json", "text/")), asked


def test_the_law_can_fail(world: World) -> None:
    """The fleet does name B where somebody reads all of it, so the law above has something to find."""
    for path in (
        "/v1/gpus",
        "/v1/cards",
        "/v1/findings",
        "/v1/map",
        "/v1/usage?by=namespace",
        "/v1/journal?limit=1000",
    ):
        status, _, body = world.get(path, "fleet")
        assert status == 200, path
        assert foreign_in(body), path


def test_each_declared_route_is_one_that_there_is() -> None:
    assert set(ROUTES) - {"/openapi.json"} == set(_routes())


def test_a_tenant_reads_its_own(world: World) -> None:
    def rows(path: str, who: str = "tenant") -> object:
        status, _, body = world.get(path, who)
        assert status == 200, (path, body)
        return json.loads(body)

    gpus = rows("/v1/gpus")
    assert {one["uuid"] for one in gpus} == {"GPU-aaaa-0000", "GPU-cccc-0000"}  # type: ignore[attr-defined]
    assert {one["uuid"] for one in rows("/v1/gpus", "account")} == {"GPU-aaaa-0001"}  # type: ignore[attr-defined]
    assert rows("/v1/gpus", "none") == []
    assert rows("/v1/me")["namespaces"] == ["alpha"]  # type: ignore[index]
    assert rows("/v1/fleet")["gpus"] == 2  # type: ignore[index]
    assert sorted(rows("/v1/map")["uuid"]) == ["GPU-aaaa-0000", "GPU-cccc-0000"]  # type: ignore[index]
    assert rows("/v1/findings")
    assert rows("/v1/cards")["items"]  # type: ignore[index]
    card = rows("/v1/cards")["items"][0]  # type: ignore[index]
    assert rows(f"/v1/cards/{card['id']}")["headline"] == card["headline"]  # type: ignore[index]
    shared = rows("/v1/gpus/GPU-cccc-0000")
    assert [one["pid"] for one in shared["owners"]] == [103]  # type: ignore[index]
    assert not [name for name in shared["values"] if "pid" in name and "103" not in name]  # type: ignore[index]
    used = rows("/v1/usage?by=namespace")
    assert [one["group"] for one in used["rows"]] == [{"namespace": "alpha"}]  # type: ignore[index]
    assert used["total"]["cost"] > 0  # type: ignore[index]
    everybody = rows("/v1/usage?by=namespace", "fleet")
    assert used["total"]["gpu_hours"] < everybody["total"]["gpu_hours"]  # type: ignore[index]
    assert {one["group"]["account"] for one in rows("/v1/usage?by=account", "account")["rows"]} == {"alpha-account"}  # type: ignore[index]


def test_a_gpu_is_seen_as_far_back_as_it_was_held(world: World) -> None:
    metric = "metric=gpu_temperature_celsius"
    span = f"start={to_iso(T0 - MINUTE)}&end={to_iso(T0 + STEPS * STEP)}&max_points=1000"
    whole = json.loads(world.get(f"/v1/gpus/GPU-aaaa-0000/series?{metric}&{span}", "fleet")[2])
    own = json.loads(world.get(f"/v1/gpus/GPU-aaaa-0000/series?{metric}&{span}")[2])
    assert (len(whole["at"]), len(own["at"])) == (STEPS, STEPS - 30)
    assert own["at"] == whole["at"][30:]
    events = json.loads(world.get("/v1/gpus/GPU-aaaa-0000")[2])["events"]
    assert [one["at"] for one in events] == [to_iso(T0 + 80 * STEP)]
    strange = f'gpu_process_memory_used_bytes{{pid="{B_BOX.pid}"}}'
    clients = world.clients["tenant"]
    answer = clients.get("/v1/gpus/GPU-cccc-0000/series", params={"metric": ["gpu_power_watts", strange]})
    assert list(answer.json()["metrics"]) == ["gpu_power_watts"]


def test_what_is_anothers_and_what_is_not_there_are_answered_alike(world: World) -> None:
    for path in ("/v1/gpus/{}", "/v1/gpus/{}/series?metric=gpu_power_watts"):
        others = [world.get(path.format(uuid)) for uuid in ("GPU-bbbb-0000", "GPU-none")]
        assert others[0] == others[1]
        assert others[0][0] == 404


def test_a_tenant_changes_nothing_and_asks_no_what_if(world: World) -> None:
    for path in ("/v1/pause", "/v1/what-if", "/v1/snoozes", "/v1/inject"):
        assert world.clients["tenant"].post(path, json={}).status_code == 403, path


def test_a_map_that_is_known_is_not_sent_again(world: World) -> None:
    first = world.clients["tenant"].get("/v1/map")
    again = world.clients["tenant"].get("/v1/map", headers={"If-None-Match": first.headers["etag"]})
    assert (again.status_code, again.content) == (304, b"")


# ---------------------------------------------------------------------- names that are struck out

hosts = st.from_regex(r"[a-z]([a-z0-9-]{1,12}[a-z0-9])(\.[a-z]{2,5}){0,2}", fullmatch=True)
anything = st.text(min_size=1, max_size=20)


@settings(suppress_health_check=[HealthCheck.too_slow])
@given(foreign=st.sets(hosts | anything, max_size=6), before=st.sampled_from(["", " ", "on ", "(", "pod ns/", "host:"]))
def test_a_name_of_another_is_found_wherever_it_stands_as_a_word(foreign: set[str], before: str) -> None:
    names = Names.of(foreign, set(), frozenset())
    for one in foreign:
        if any(map(str.isalnum, one)) and not one.isdecimal():
            told = names.struck(f"{before}{one}, since 4 h")
            assert told != f"{before}{one}, since 4 h"
            assert STRUCK in told


@given(own=st.sets(hosts, min_size=1, max_size=4), foreign=st.sets(hosts, max_size=4))
def test_an_own_name_stays(own: set[str], foreign: set[str]) -> None:
    alone = {one for one in own if "." not in one}
    names = Names.of(foreign, own, frozenset())
    for one in alone:
        assert names.struck(f"on {one}: 5") == f"on {one}: 5"


def test_words_of_the_api_are_nobodys_name() -> None:
    names = Names.of({"critical", "host", "train-b"}, set(), frozenset({"critical", "host"}))
    document = {"state": "critical", "host": "train-b", "train-b": 1, "n": [1, None, "on train-b."]}
    assert names.of_json(document) == {"state": "critical", "host": STRUCK, "n": [1, None, f"on {STRUCK}."]}


def test_a_process_that_is_not_the_tenants_is_struck_whoever_it_was_of() -> None:
    names = Names.of(set(), {"7"}, frozenset())
    told = names.struck("Xid 79, pid=7, name=own, Ch 8; pid='8', name=gone by, Ch 9")
    assert told == f"Xid 79, pid=7, name=own, Ch 8; pid {STRUCK}, Ch 9"


def test_a_number_is_struck_where_it_is_a_jobs() -> None:
    names = Names.of({"17"}, set(), frozenset())
    assert names.struck("Slurm job 17 at 17 °C, slurm/17") == f"Slurm job {STRUCK} at 17 °C, slurm/{STRUCK}"
