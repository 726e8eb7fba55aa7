"""What the brain asks an API server about tokens of pods, and what it makes of the answers."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tocsin.actions.executors.registry import Dependencies, build_executor
from tocsin.api.node_tokens import NotReviewed, PodToken
from tocsin.config.settings import Settings
from tocsin.domain.clock import ManualClock
from tocsin.runtime.brain.token_reviews import TokenReviews, open_token_reviews, pod_token
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0
from tocsin_testing.kube_double import KubeDouble
from tocsin_testing.kube_recorded import Answer, recorded
from tocsin_testing.kube_site import Site, double_site
from tocsin_testing.pod_tokens import ACCOUNT, AUDIENCE, NODE_NAME, known_to_server

PROJECTED = "a.pod.token"


def settings_of(site: Site) -> Settings:
    section = {"kubeconfig": site.kubeconfig, "checkpoint_seconds": 0}
    return Settings.model_validate({"kubernetes": section, "api": {"node_service_accounts": [ACCOUNT]}})


class Asking:
    """The double, and a brain's way to ask it."""

    def __init__(self, site: Site, double: KubeDouble) -> None:
        self.site, self.double, self.metrics = site, double, OwnMetrics()
        made = open_token_reviews(settings_of(site), self.metrics)
        assert made is not None
        self.reviews: TokenReviews = made
        site.closing(made)
        double.tokens[PROJECTED] = known_to_server("node-1")

    def counted(self, outcome: str) -> float:
        found = self.metrics.registry.get_sample_value("tocsin_token_reviews_total", {"outcome": outcome})
        return found or 0.0


@pytest.fixture
def asking(tmp_path: Path) -> Iterator[Asking]:
    with double_site(tmp_path) as site:
        assert site.double is not None
        yield Asking(site, site.double)


def test_the_account_and_the_node_are_the_servers_word(asking: Asking) -> None:
    assert asking.reviews.review(PROJECTED) == PodToken(ACCOUNT, "node-1")
    assert asking.reviews.review("made.up.token") is None
    (asked, _) = asking.double.served
    assert (asked.method, asked.path) == ("POST", "/apis/authentication.k8s.io/v1/tokenreviews")
    assert asked.body["spec"] == {"token": PROJECTED, "audiences": [AUDIENCE]}
    assert (asking.counted("known"), asking.counted("unknown")) == (1, 1)


def test_a_token_for_another_audience_is_nobodys(asking: Asking) -> None:
    asking.double.tokens[PROJECTED]["audiences"] = ["https://kubernetes.default.svc"]
    assert asking.reviews.review(PROJECTED) is None


GOOD: dict[str, Any] = {"authenticated": True, **known_to_server("node-1")}


def with_nodes(*names: object) -> dict[str, Any]:
    return GOOD | {"user": GOOD["user"] | {"extra": {NODE_NAME: list(names)}}}


STATUSES: dict[str, tuple[dict[str, Any], PodToken | None]] = {
    "as it should be": (GOOD, PodToken(ACCOUNT, "node-1")),
    "not authenticated": (GOOD | {"authenticated": False}, None),
    "authenticated, in a word": (GOOD | {"authenticated": "true"}, None),
    "of a server that knows no audiences": ({k: v for k, v in GOOD.items() if k != "audiences"}, None),
    "for others": (GOOD | {"audiences": ["vault"]}, None),
    "nothing": ({}, None),
    "before Kubernetes 1.30": (GOOD | {"user": {"username": ACCOUNT}}, PodToken(ACCOUNT, "")),
    "extra is null": (GOOD | {"user": {"username": ACCOUNT, "extra": None}}, PodToken(ACCOUNT, "")),
    "no node": (with_nodes(), PodToken(ACCOUNT, "")),
    "two nodes": (with_nodes("node-1", "node-2"), PodToken(ACCOUNT, "")),
    "a node that is no name": (with_nodes("node\n1"), PodToken(ACCOUNT, "")),
    "a node of 300 characters": (with_nodes("n" * 300), PodToken(ACCOUNT, "")),
    "a node that is a number": (with_nodes(7), PodToken(ACCOUNT, "")),
}


@pytest.mark.parametrize(("status", "wanted"), STATUSES.values(), ids=STATUSES)
def test_a_status_is_read_by_the_letter(status: dict[str, Any], wanted: PodToken | None) -> None:
    assert pod_token(status, AUDIENCE) == wanted


def test_a_server_that_gives_no_answer_makes_no_token_wrong_and_is_logged_once(asking: Asking) -> None:
    trouble = [Answer(500, {"message": "etcd"}, {}), Answer(429, {"message": "slow down"}, {"Retry-After": "7"})]
    for answer in trouble:
        asking.double.before = lambda _, answer=answer: answer  # type: ignore[misc]
        with capture_logs() as said:
            for _ in range(3):
                with pytest.raises(NotReviewed) as caught:
                    asking.reviews.review(PROJECTED)
        assert len(said) == 1
        assert PROJECTED not in str(said)
    assert caught.value.seconds == 7.0
    asking.double.before = lambda _: None
    assert asking.reviews.review(PROJECTED) is not None
    assert asking.counted("failed") == 6


def test_what_the_server_says_of_the_request_holds_up_no_other_token(asking: Asking) -> None:
    asking.double.before = lambda _: Answer(413, {"message": "too large"}, {})
    assert asking.reviews.review(PROJECTED) is None


def test_a_brain_without_the_right_says_which_role_it_lacks(asking: Asking) -> None:
    asking.double.withheld = frozenset({"create tokenreviews"})
    with capture_logs() as said, pytest.raises(NotReviewed):
        asking.reviews.review(PROJECTED)
    assert "role tocsin-tokenreviews" in said[0]["problem"]
    executor: Any = build_executor("kubernetes", Dependencies(settings=settings_of(asking.site), clock=ManualClock(T0)))
    asking.site.closing(executor)
    assert [str(need) for need in executor.missing_rights()] == ["create tokenreviews.authentication.k8s.io"]


def test_a_brain_whose_own_credentials_are_refused_turns_nobody_away_for_good(asking: Asking) -> None:
    asking.double.before = lambda _: recorded("auth_401")
    with pytest.raises(NotReviewed):
        asking.reviews.review(PROJECTED)


def test_nothing_is_opened_where_no_account_is_named() -> None:
    assert open_token_reviews(Settings(), OwnMetrics()) is None
