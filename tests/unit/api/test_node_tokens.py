"""Tokens of pods: which are asked about, what of the answer is kept, and what it costs when they are made up."""

from __future__ import annotations

import base64
import threading

import pytest
from fastapi.testclient import TestClient
from hypothesis import example, given
from hypothesis import strategies as st
from pydantic import SecretStr, ValidationError
from starlette.datastructures import Headers

from tocsin.api.app import create_app
from tocsin.api.auth import Authenticator
from tocsin.api.errors import ApiError
from tocsin.api.node_tokens import (
    ASKED_BURST,
    ASKED_PER_SECOND,
    AWAY_SECONDS,
    MOST_AT_ONCE,
    MOST_CHARACTERS,
    MOST_SECONDS,
    MOST_WRONG,
    WRONG_BURST,
    WRONG_PER_SECOND,
    WRONG_SECONDS,
    NodeTokens,
    NotReviewed,
    PodToken,
)
from tocsin.api.principal import Principal
from tocsin.config.access import ApiSettings, Role
from tocsin.config.host_tokens import host_token
from tocsin.domain.clock import SECOND, ManualClock
from tocsin.domain.errors import InputError
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService
from tocsin_testing.pod_tokens import ACCOUNT, FakeReviews, jwt_of, pod_token

SETTINGS = ApiSettings(node_service_accounts=[ACCOUNT])
TOKEN = pod_token("Node-1", T0)


class Cluster:
    """A brain's view of a cluster that knows `TOKEN`, which is node-1's."""

    def __init__(self, settings: ApiSettings = SETTINGS) -> None:
        self.clock, self.reviews = ManualClock(T0), FakeReviews()
        self.reviews.known[TOKEN] = PodToken(ACCOUNT, "Node-1")
        self.nodes = NodeTokens(settings, self.clock, self.reviews)

    def ask(self, token: str, client: str = "10.0.0.1") -> Principal | None:
        return self.nodes.principal(token, client)

    def refusal(self, token: str, client: str = "10.0.0.1") -> tuple[int, str]:
        with pytest.raises(ApiError) as caught:
            self.ask(token, client)
        self.retry_after = (caught.value.headers or {}).get("Retry-After")
        return caught.value.status_code, caught.value.code


@pytest.fixture
def cluster() -> Cluster:
    return Cluster()


def test_it_speaks_for_the_node_of_its_pod_alone(cluster: Cluster) -> None:
    found = cluster.ask(TOKEN)
    assert found is not None
    assert (found.name, found.role, found.hosts) == ("host:node-1", Role.AGENT, {"node-1"})
    assert found.speaks_for("NODE-1")
    assert not found.speaks_for("node-2")


OTHERS = {
    "no token of ours": "a-secret-of-sixteen",
    "a token of a node": host_token("k" * 32, "node-1"),
    "another account": pod_token("n", T0, sub="system:serviceaccount:tocsin:default"),
    "no account": pod_token("n", T0, sub=None),
    "an account in a list": pod_token("n", T0, sub=[ACCOUNT]),
    "for the API server": pod_token("n", T0, aud=["https://kubernetes.default.svc"]),
    "for nobody": pod_token("n", T0, aud=None),
    "longer than any": pod_token("n", T0, padding="x" * MOST_CHARACTERS),
    "no claims": jwt_of("[]"),
    "claims that nest": jwt_of("[" * 6000),
    "a number of 5,000 digits": jwt_of("1" * 5000),
    "no JSON": jwt_of("{"),
    "no base64": "e30.!!!!!.c2ln",
    "no signature": TOKEN.rpartition(".")[0] + ".",
}


@pytest.mark.parametrize("token", OTHERS.values(), ids=OTHERS)
def test_what_does_not_claim_to_be_one_is_left_to_others_and_never_asked_about(cluster: Cluster, token: str) -> None:
    assert cluster.ask(token) is None
    assert cluster.reviews.asked == []


LIVES = {
    "expired": (T0 // SECOND, "token_expired"),
    "for ever": (None, "token_unknown"),
    "for years": (T0 // SECOND + MOST_SECONDS + 1, "token_unknown"),
    "true": (True, "token_unknown"),
    "a word": ("tomorrow", "token_unknown"),
    "without end": (float("inf"), "token_unknown"),
    "no number": (float("nan"), "token_unknown"),
    "before all time": (-1, "token_unknown"),
}


@pytest.mark.parametrize(("ends", "code"), LIVES.values(), ids=LIVES)
def test_one_whose_life_is_beyond_reason_is_refused_without_asking(cluster: Cluster, ends: object, code: str) -> None:
    assert cluster.refusal(pod_token("node-1", T0, exp=ends)) == (401, code)
    assert cluster.reviews.asked == []


@given(st.binary(max_size=300) | st.text(max_size=300).map(str.encode))
@example(b'{"aud": "tocsin", "sub": "system:serviceaccount:tocsin:tocsin-agent", "exp": 1e400}')
def test_nothing_that_is_made_up_is_a_node(claims: bytes) -> None:
    cluster = Cluster()
    token = f"e30.{base64.urlsafe_b64encode(claims).decode().rstrip('=')}.c2ln"
    refused = 401
    try:
        assert cluster.ask(token) is None
    except ApiError as error:
        refused = error.status_code
    assert refused == 401


def test_what_the_server_says_is_believed_for_a_while_and_never_beyond_the_token(cluster: Cluster) -> None:
    cluster.ask(TOKEN)
    cluster.clock.advance(round(SETTINGS.node_token_seconds * SECOND) - 1)
    assert cluster.ask(TOKEN) is not None
    assert len(cluster.reviews.asked) == 1
    cluster.clock.advance(1)
    assert cluster.ask(TOKEN) is not None
    assert len(cluster.reviews.asked) == 2
    short = pod_token("node-1", cluster.clock.now_ms(), exp=cluster.clock.now_ms() // SECOND + 30)
    cluster.reviews.known[short] = PodToken(ACCOUNT, "node-1")
    cluster.ask(short)
    cluster.clock.advance(31 * SECOND)
    assert cluster.refusal(short) == (401, "token_expired")


def test_a_pod_that_is_gone_is_refused_once_the_word_about_it_is_old(cluster: Cluster) -> None:
    cluster.ask(TOKEN)
    cluster.reviews.known.clear()
    cluster.clock.advance(round(SETTINGS.node_token_seconds * SECOND))
    assert cluster.refusal(TOKEN) == (401, "token_unknown")


WRONG_ANSWERS = {
    "of another account": (PodToken("system:serviceaccount:default:default", "node-1"), "token_unknown"),
    "of a person": (PodToken("kubernetes-admin", "node-1"), "token_unknown"),
    "without a node": (PodToken(ACCOUNT, ""), "token_without_node"),
}


@pytest.mark.parametrize(("answer", "code"), WRONG_ANSWERS.values(), ids=WRONG_ANSWERS)
def test_an_answer_that_names_no_node_of_an_agent_is_refused_with_the_remedy(
    cluster: Cluster, answer: PodToken, code: str
) -> None:
    cluster.reviews.known[TOKEN] = answer
    assert cluster.refusal(TOKEN) == (401, code)
    with pytest.raises(ApiError) as caught:
        cluster.ask(TOKEN)
    assert ("tocsin token issue --host" in caught.value.message) == (code == "token_without_node")
    assert len(cluster.reviews.asked) == 1


def test_a_wrong_one_is_remembered_briefly(cluster: Cluster) -> None:
    forged = pod_token("node-1", T0, signature="Zm9yZ2Vk")
    for _ in range(5):
        assert cluster.refusal(forged) == (401, "token_unknown")
    assert len(cluster.reviews.asked) == 1
    cluster.reviews.known[forged] = PodToken(ACCOUNT, "node-1")
    cluster.clock.advance(round(WRONG_SECONDS * SECOND))
    assert cluster.ask(forged) is not None


def junk(count: int) -> list[str]:
    return [pod_token("node-1", T0, jti=str(number)) for number in range(count)]


def test_ten_thousand_made_up_tokens_of_one_address_cost_a_few_questions(cluster: Cluster) -> None:
    statuses = {cluster.refusal(token, "10.6.6.6")[0] for token in junk(10_000)}
    assert statuses == {401, 429}
    assert len(cluster.reviews.asked) == WRONG_BURST
    assert cluster.retry_after == str(round(1 / WRONG_PER_SECOND))
    # Whoever else there is, known or not, notices nothing.
    assert cluster.ask(TOKEN, "10.0.0.1") is not None
    cluster.clock.advance(60 * SECOND)
    for token in junk(10_000)[5_000:]:
        cluster.refusal(token, "10.6.6.6")
    assert len(cluster.reviews.asked) <= 2 * WRONG_BURST + 60 * WRONG_PER_SECOND + 1


def test_of_many_addresses_they_cost_no_more_than_the_common_rate(cluster: Cluster) -> None:
    for number, token in enumerate(junk(10_000)):
        cluster.refusal(token, f"2001:db8:{number:x}::1")
        cluster.clock.advance(1)
    assert len(cluster.reviews.asked) <= ASKED_BURST + 10 * ASKED_PER_SECOND
    one_subscriber = Cluster()
    for number, token in enumerate(junk(1_000)):
        one_subscriber.refusal(token, f"2001:db8::{number:x}")
    assert len(one_subscriber.reviews.asked) == WRONG_BURST


def test_a_flood_from_the_address_of_an_honest_node_takes_nothing_that_it_has(cluster: Cluster) -> None:
    """As behind a proxy: all have one address."""
    cluster.ask(TOKEN)
    for token in junk(100):
        cluster.refusal(token)
    cluster.clock.advance(round(SETTINGS.node_token_seconds * SECOND))
    for token in junk(200)[100:]:
        cluster.refusal(token)
    assert cluster.ask(TOKEN) is not None


def test_honest_nodes_behind_one_address_are_all_let_in_after_a_start(cluster: Cluster) -> None:
    fleet = [pod_token(f"n{number}", T0, jti=f"n{number}") for number in range(1_000)]
    cluster.reviews.known |= {token: PodToken(ACCOUNT, f"n{number}") for number, token in enumerate(fleet)}
    left, seconds, statuses = set(fleet), 0, set()
    while left and seconds < 60:
        for token in sorted(left):
            try:
                cluster.ask(token)
                left.discard(token)
            except ApiError as error:
                statuses.add(error.status_code)
        cluster.clock.advance(SECOND)
        seconds += 1
    assert seconds <= 1_000 / ASKED_PER_SECOND
    assert statuses == {429}


def test_what_is_remembered_is_bounded(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tocsin.api.node_tokens.MOST_KNOWN", 3)
    monkeypatch.setattr("tocsin.api.node_tokens.MOST_WRONG", 3)
    small = Cluster()
    wrong = junk(4)
    for token in wrong:
        small.refusal(token)
    small.refusal(wrong[-1])
    assert len(small.reviews.asked) == 4
    small.refusal(wrong[0])
    assert len(small.reviews.asked) == 5
    good = [pod_token("n", T0, jti=f"good{number}") for number in range(4)]
    small.reviews.known |= dict.fromkeys(good, PodToken(ACCOUNT, "n"))
    for token in (*good, good[-1], good[0]):
        small.ask(token)
    assert len(small.reviews.asked) == 5 + 5
    assert MOST_WRONG < 100_000


def test_while_the_server_is_away_known_tokens_go_on_and_others_wait_and_are_not_wrong(cluster: Cluster) -> None:
    cluster.ask(TOKEN)
    cluster.reviews.away = NotReviewed("cannot connect")
    new = pod_token("node-2", T0)
    for _ in range(100):
        assert cluster.refusal(new) == (503, "unavailable")
    assert cluster.retry_after == str(round(AWAY_SECONDS))
    assert len(cluster.reviews.asked) == 2, "nobody asks again at once"
    assert cluster.ask(TOKEN) is not None
    cluster.clock.advance(round(SETTINGS.node_token_seconds * SECOND))
    assert cluster.refusal(TOKEN) == (503, "unavailable")
    cluster.reviews.away = None
    cluster.clock.advance(round(AWAY_SECONDS * SECOND))
    cluster.reviews.known[new] = PodToken(ACCOUNT, "node-2")
    assert cluster.ask(TOKEN) is not None
    assert cluster.ask(new) is not None


def test_a_server_that_says_when_to_come_back_is_believed_within_reason(cluster: Cluster) -> None:
    for asked, waits in ((7.0, "7"), (86_400.0, "60")):
        cluster.reviews.away = NotReviewed("429", asked)
        assert cluster.refusal(TOKEN)[0] == 503
        assert cluster.retry_after == waits
        cluster.clock.advance(60 * SECOND)


def test_outages_are_put_down_to_no_address(cluster: Cluster) -> None:
    cluster.reviews.away = NotReviewed("cannot connect")
    for token in junk(3 * WRONG_BURST):
        assert cluster.refusal(token)[0] == 503
        cluster.clock.advance(round(AWAY_SECONDS * SECOND))
    cluster.reviews.away = None
    assert cluster.ask(TOKEN) is not None


def test_so_many_questions_are_under_way_and_no_more(cluster: Cluster) -> None:
    begun, end = threading.Semaphore(0), threading.Event()

    def wait() -> None:
        begun.release()
        end.wait(20)

    cluster.reviews.meanwhile = wait
    tokens = [pod_token("n", T0, jti=str(number)) for number in range(MOST_AT_ONCE)]
    cluster.reviews.known |= dict.fromkeys(tokens, PodToken(ACCOUNT, "n"))
    threads = [threading.Thread(target=cluster.ask, args=(token, "10.0.0.2")) for token in tokens]
    for one in threads:
        one.start()
    for _ in threads:
        assert begun.acquire(timeout=20)
    assert cluster.refusal(TOKEN) == (503, "unavailable")
    end.set()
    for one in threads:
        one.join(20)
    assert cluster.ask(TOKEN) is not None


def authenticator(reviews: FakeReviews, **more: object) -> Authenticator:
    settings = ApiSettings.model_validate({"node_service_accounts": [ACCOUNT], **more})
    return Authenticator(settings, ManualClock(T0), reviews=reviews)


def test_a_revoked_node_is_refused_and_the_other_kinds_of_tokens_still_work(cluster: Cluster) -> None:
    key = "k" * 32
    made = authenticator(cluster.reviews, revoked_hosts=["node-1"], host_key=SecretStr(key))
    with pytest.raises(ApiError) as caught:
        made.principal(Headers({"authorization": f"Token {TOKEN}"}), "10.0.0.1")
    assert (caught.value.status_code, caught.value.code) == (401, "token_revoked")
    other = Headers({"authorization": f"Bearer {host_token(key, 'node-2')}"})
    assert made.principal(other, "10.0.0.1").hosts == {"node-2"}
    with pytest.raises(ApiError) as caught:
        made.principal(Headers({"authorization": f"Bearer {OTHERS['another account']}"}), "10.0.0.1")
    assert caught.value.code == "token_unknown"


def test_with_such_accounts_nobody_is_served_for_the_address_alone() -> None:
    assert ApiSettings().open_to_loopback
    assert not SETTINGS.open_to_loopback
    with pytest.raises(InputError, match=r"api\.node_service_accounts.*no cluster to ask"):
        Authenticator(SETTINGS, ManualClock(T0))


@pytest.mark.parametrize("name", ["tocsin-agent", "system:serviceaccount:tocsin", "system:serviceaccount:a:b:c", ""])
def test_an_account_is_spelt_as_the_server_spells_it(name: str) -> None:
    with pytest.raises(ValidationError, match="node_service_accounts"):
        ApiSettings(node_service_accounts=[name])


def test_over_http_the_server_is_asked_from_a_thread_and_refusals_are_counted(cluster: Cluster) -> None:
    service = FakeService()
    http = TestClient(create_app(service, SETTINGS, ManualClock(T0), cluster.reviews))
    me = http.get("/v1/me", headers={"Authorization": f"Bearer {TOKEN}"})
    assert me.json() == {"name": "host:node-1", "role": "agent", "scopes": [], "hosts": ["node-1"]}
    assert {name.split("-")[0] for name in cluster.reviews.threads} == {"AnyIO worker thread"}
    forged = http.get("/v1/me", headers={"Authorization": f"Bearer {pod_token('node-2', T0)}"})
    assert (forged.status_code, forged.json()["error"]["code"]) == (401, "token_unknown")
    cluster.reviews.away = NotReviewed("cannot connect")
    away = http.get("/v1/me", headers={"Authorization": f"Bearer {pod_token('node-3', T0)}"})
    assert (away.status_code, away.headers["Retry-After"]) == (503, "2")
    assert service.refusals == {"token_unknown": 1, "unavailable": 1}
