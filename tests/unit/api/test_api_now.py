"""The map with its tag, the list of what needs attention, and the peers of a GPU, over HTTP."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from tocsin.api.app import create_app
from tocsin.client.client import Client
from tocsin.client.errors import BadRequest, NotFound
from tocsin.client.models import FleetMap, PeerGroup
from tocsin.client.models_cards import CardState
from tocsin.config.access import ApiSettings
from tocsin.domain.clock import DAY, HOUR
from tocsin_testing import fake_fleet as fleet
from tocsin_testing.fake_service import FakeService, serving

HOT = fleet.uuid(*fleet.HOT)


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def http(service: FakeService) -> TestClient:
    return TestClient(create_app(service, ApiSettings()), base_url="http://127.0.0.1", client=("127.0.0.1", 1))


@pytest.fixture
def client(service: FakeService) -> Iterator[Client]:
    with serving(service) as url, Client(url) as made:
        yield made


def test_the_map_says_of_each_gpu_what_the_list_says(client: Client) -> None:
    found, tag = client.fleet_map()
    assert found is not None
    assert tag.startswith('"')
    gpus = client.gpus()
    assert found.uuid == [gpu.uuid for gpu in gpus]
    assert [found.hosts[host] for host in found.host] == [gpu.host for gpu in gpus]
    assert [found.racks[host] for host in found.host] == [gpu.rack for gpu in gpus]
    assert found.state == [gpu.state.rank for gpu in gpus]
    assert found.temperature == [gpu.temperature_celsius for gpu in gpus]


def test_an_unchanged_map_is_not_sent_again(http: TestClient, service: FakeService) -> None:
    first = http.get("/v1/map")
    tag = first.headers["etag"]
    for sent in (tag, f'"other", {tag}'):
        again = http.get("/v1/map", headers={"If-None-Match": sent})
        assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", tag)
    assert http.get("/v1/map", headers={"If-None-Match": '"other"'}).content == first.content
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fleet, "HOSTS", 2)
        changed = http.get("/v1/map", headers={"If-None-Match": tag})
    assert changed.status_code == 200
    assert len(FleetMap.model_validate_json(changed.content).uuid) == 16
    assert changed.headers["etag"] != tag


def test_the_map_is_for_those_who_may_read() -> None:
    guarded = create_app(FakeService(), ApiSettings(client_ca="/ca", tls_certificate="/c", tls_key="/k"))  # type: ignore[arg-type]
    http = TestClient(guarded, base_url="http://127.0.0.1")
    assert http.get("/v1/map").status_code == 401
    assert http.get("/v1/attention").status_code == 401


def test_the_map_is_a_fraction_of_the_list(http: TestClient) -> None:
    assert 5 * len(http.get("/v1/map").content) < len(http.get("/v1/gpus").content)


def test_attention_has_the_worst_and_counts_the_rest(client: Client) -> None:
    whole, two = client.attention(), client.attention(2)
    assert [item.state.value for item in whole.items][:2] == ["lost", "critical"]
    assert two.items == whole.items[:2]
    assert two.total == whole.total == len(whole.items)


def test_peers_are_a_band_around_their_middle(client: Client) -> None:
    start, end = fleet.NOW_MS - HOUR, fleet.NOW_MS
    band = client.peers(HOT, ["gpu_power_watts"], PeerGroup.NODE, start, end, 30)
    assert (band.peers, band.group, band.by, len(band.at)) == (7, 7, PeerGroup.NODE, 30)
    rows = zip(band.low["gpu_power_watts"], band.middle["gpu_power_watts"], band.high["gpu_power_watts"], strict=True)
    assert all((low or 0) <= (middle or 0) <= (high or 0) for low, middle, high in rows)


def test_what_cannot_be_asked_is_said(client: Client) -> None:
    with pytest.raises(NotFound):
        client.peers("GPU-none", ["gpu_power_watts"])
    with pytest.raises(BadRequest, match="gpu_power_watts"):
        client.peers(HOT, ["gpu_power_wats"])
    with pytest.raises(BadRequest, match="start"):
        client.peers(HOT, ["gpu_power_watts"], PeerGroup.NODE, 2_000, 1_000)
    with pytest.raises(BadRequest, match=r"start.*more than 35 days before end"):
        client.peers(HOT, ["gpu_power_watts"], PeerGroup.NODE, fleet.NOW_MS - 35 * DAY - 1, fleet.NOW_MS)
    assert client.peers(HOT, ["gpu_power_watts"], PeerGroup.NODE, fleet.NOW_MS - 35 * DAY, fleet.NOW_MS, 30).peers == 7


@pytest.mark.parametrize("query", ["by=rack", "points=5", "points=1001", "metric="])
def test_bad_parameters_are_refused(http: TestClient, query: str) -> None:
    assert http.get(f"/v1/gpus/{HOT}/peers?metric=gpu_power_watts&{query}").status_code in {400, 422}


def test_cards_have_the_worst_first_and_are_found_by_their_id(client: Client, http: TestClient) -> None:
    whole, one = client.cards(), client.cards(1)
    assert (one.items, one.total) == (whole.items[:1], len(whole.items))
    assert whole.items[0].health.rank == max(card.health.rank for card in whole.items)
    assert client.card(whole.items[0].id) == whole.items[0]
    assert client.cards(state=CardState.RESOLVED).items == []
    assert whole.waiting == client.summary().decisions_approvable
    with pytest.raises(NotFound, match="no card"):
        client.card("0" * 16)
    assert http.get("/v1/cards", params={"state": "gone"}).status_code == 422
    assert http.get("/v1/cards/" + "x" * 65).status_code == 422


def test_what_changed_is_bounded_by_hours_and_lines(client: Client, http: TestClient) -> None:
    found = client.changes()
    assert (found.total, len(found.items)) == (14, 12)
    assert http.get("/v1/changes?hours=25").status_code == 422
    assert http.get("/v1/changes?limit=201").status_code == 422
