"""Tokens of pods, over HTTP and a cluster's API server: what one node's says of another, made-up ones, a server that is
away or hangs."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import httpx2
import pytest

from tocsin.api.node_tokens import WRONG_BURST, WRONG_PER_SECOND
from tocsin_testing.attacked import HONEST, HOSTILE, Victim, readings, settings_in
from tocsin_testing.brain_child import start_brain
from tocsin_testing.kube_double import Asked, KubeDouble
from tocsin_testing.kube_recorded import Answer
from tocsin_testing.kube_site import double_site
from tocsin_testing.pod_tokens import ACCOUNT, known_to_server, pod_token

JUNK, SENDERS = 2_000, 20


@dataclass
class Site:
    victim: Victim
    double: KubeDouble
    tokens: dict[str, str]

    def send(self, token: str, body: str, source: str = "127.0.0.1") -> httpx2.Response:
        """One write, from an address that the loopback interface has."""
        with client(source) as http:
            url = f"{self.victim.url}/api/v2/write?precision=ms"
            return http.post(url, content=body, headers={"Authorization": f"Token {token}"})

    def line(self, host: str) -> str:
        """What the node `host` reads of its first GPU now."""
        return readings(int(host.removeprefix("node-")), self.victim.clock.now_ms()).splitlines()[0]

    def questions(self) -> int:
        return sum(one.plural == "tokenreviews" for one in self.double.served)


def client(source: str) -> httpx2.Client:
    return httpx2.Client(transport=httpx2.HTTPTransport(local_address=source), timeout=30)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    folder = tmp_path_factory.mktemp("pods")
    with double_site(folder) as cluster:
        assert cluster.double is not None
        settings = settings_in(str(folder))
        settings.kubernetes.kubeconfig = cluster.kubeconfig
        settings.api.node_service_accounts = [ACCOUNT]
        process, url = start_brain(settings)
        victim = Victim(url, process)
        tokens = {host: pod_token(host, victim.clock.now_ms()) for host in (HOSTILE, HONEST)}
        cluster.double.tokens |= {token: known_to_server(host) for host, token in tokens.items()}
        try:
            yield Site(victim, cluster.double, tokens)
        finally:
            process.terminate()
            process.join(20)


def test_a_node_speaks_for_itself_and_for_no_other(site: Site) -> None:
    for host, token in site.tokens.items():
        assert site.send(token, site.line(host)).status_code == 204
    before = gpu(site)
    forged = site.send(site.tokens[HOSTILE], site.line(HONEST).replace("power_watts=300", "power_watts=1"))
    assert (forged.status_code, forged.json()["error"]["code"]) == (400, "lines_rejected")
    assert gpu(site) == before
    mixed = site.send(site.tokens[HOSTILE], f"{site.line(HONEST)}\n{site.line(HOSTILE)}")
    assert [one["number"] for one in mixed.json()["error"]["details"]["rejected"]] == [1]
    for path in (f"/v1/orders?host={HONEST}", "/v1/gpus", "/metrics"):
        headers = {"Authorization": f"Bearer {site.tokens[HOSTILE]}"}
        assert httpx2.get(f"{site.victim.url}{path}", headers=headers, trust_env=False).status_code == 403


def test_a_signature_that_the_server_does_not_know_is_nobodys(site: Site) -> None:
    head, claims, _ = site.tokens[HONEST].split(".")
    for signature in ("Zm9yZ2Vk", "A" * 342):
        answer = site.send(f"{head}.{claims}.{signature}", site.line(HONEST))
        assert (answer.status_code, answer.json()["error"]["code"]) == (401, "token_unknown")


def test_made_up_tokens_by_the_thousand_cost_a_few_questions(site: Site) -> None:
    assert site.send(site.tokens[HONEST], site.line(HONEST)).status_code == 204
    before, begun = site.questions(), site.victim.clock.monotonic()
    statuses: Counter[int] = Counter()

    def send(sender: int) -> None:
        with client("127.0.0.66") as http:
            for number in range(JUNK // SENDERS):
                token = pod_token(HONEST, site.victim.clock.now_ms(), jti=f"{sender}-{number}")
                headers = {"Authorization": f"Bearer {token}"}
                answer = http.post(f"{site.victim.url}/api/v2/write", content=b"x", headers=headers)
                statuses[answer.status_code] += 1

    with ThreadPoolExecutor(SENDERS) as pool:
        sent = [pool.submit(send, number) for number in range(SENDERS)]
        site.victim.serves()
        assert site.send(site.tokens[HONEST], site.line(HONEST)).status_code == 204
        for one in sent:
            one.result()
    assert statuses.keys() <= {401, 429, 503}
    assert statuses.total() == JUNK
    seconds = site.victim.clock.monotonic() - begun
    # Beside them the two tokens that are good may have come of age.
    assert site.questions() - before <= WRONG_BURST + WRONG_PER_SECOND * seconds + 1 + len(site.tokens)


AWAY = Answer(500, {"kind": "Status", "status": "Failure", "reason": "InternalError", "code": 500}, {})


@pytest.mark.parametrize("trouble", ["hangs", "is away"])
def test_while_the_server_is_away_known_nodes_go_on_and_a_person_pauses(site: Site, trouble: str) -> None:
    assert site.send(site.tokens[HOSTILE], site.line(HOSTILE)).status_code == 204
    end = threading.Event()

    def before(asked: Asked) -> Answer | None:
        if asked.plural != "tokenreviews":
            return None
        if trouble == "hangs":
            end.wait(30)
        return AWAY if trouble == "is away" else None

    site.double.before = before
    try:
        now_ms = site.victim.clock.now_ms()
        # Tokens of each trouble are its own: one that was refused is refused for a while without asking.
        new = [pod_token(f"node-{9 + number}", now_ms, jti=f"{trouble}-{number}") for number in range(30)]
        with ThreadPoolExecutor(len(new)) as pool:
            sent = [pool.submit(site.send, token, "x", f"127.0.0.{9 + n}") for n, token in enumerate(new)]
            site.victim.serves()
            assert site.send(site.tokens[HOSTILE], site.line(HOSTILE)).status_code == 204
            end.set()
            answers = [one.result() for one in sent]
        later = [one for one in answers if one.status_code == 503]
        assert later
        assert all(int(one.headers["Retry-After"]) >= 1 for one in later)
        assert not [one for one in answers if one.status_code == 401 and trouble == "is away"]
    finally:
        end.set()
        site.double.before = lambda _: None


def gpu(site: Site) -> object:
    answer = site.victim.get("/v1/gpus/GPU-0001-0", "anna")
    assert answer.status_code == 200, answer.text
    return answer.json()["values"]
