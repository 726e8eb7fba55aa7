"""The law of tenancy, over every route: to a tenant no answer holds a name that belongs to another alone."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator

import pytest
from fastapi.routing import APIRoute
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tocsin.api.app import ROUTERS
from tocsin.api.tenancy import ROUTES, STRUCK, Names, Tenancy
from tocsin.domain.clock import DAY, MINUTE, to_iso
from tocsin_testing.builders import T0
from tocsin_testing.tenants import B_BOX, GPUS, OF_B, STEP, STEPS, World, two_tenants


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[World]:
    with two_tenants(tmp_path_factory.mktemp("tenants")) as made:
        yield made


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
        "/v1/cells/usage": f"?by=namespace&by=user&by=job&start={start[:10]}&end={to_iso(T0 + 2 * DAY)[:10]}",
        "/v1/where": "?gpu=GPU-bbbb-0000&host=node-mixed",
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
        "/v1/cells/usage?by=namespace",
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
    (whole,) = rows("/v1/cells/usage?by=namespace")["answers"].values()  # type: ignore[index]
    assert whole == used
    for path in ("/v1/usage/right-size", "/v1/cells/usage/right-size"):
        assert rows(path)
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
