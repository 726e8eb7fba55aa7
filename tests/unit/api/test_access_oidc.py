"""Tokens of an OpenID Connect provider: which are taken, which are not, and what becomes of its keys."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json

import pytest
from fastapi.testclient import TestClient
from joserfc.jwk import ECKey, RSAKey
from pydantic import ValidationError
from pytest_httpserver import HTTPServer

from tocsin.api.app import create_app
from tocsin.api.errors import ApiError
from tocsin.api.oidc import REFETCH_SECONDS, STALE_MS, OidcVerifier
from tocsin.config.access import ApiSettings, OidcSettings, Role
from tocsin.domain.clock import MINUTE, SECOND, ManualClock
from tocsin_testing.builders import T0
from tocsin_testing.fake_service import FakeService
from tocsin_testing.oidc_provider import CLIENT, Provider, ec_key

GROUPS = [
    {"group": "GPU-Ops", "role": "operator", "scopes": [{"pools": ["train-*"], "actions": ["throttle"]}]},
    {"group": "everyone", "role": "viewer"},
]


@pytest.fixture
def clock() -> ManualClock:
    return ManualClock(T0)


@pytest.fixture
def provider(httpserver: HTTPServer, clock: ManualClock) -> Provider:
    return Provider(httpserver, clock.now_ms() // SECOND)


def settings(provider: Provider, **more: object) -> OidcSettings:
    base = {"issuer": provider.issuer, "client_id": CLIENT, "groups": GROUPS, "algorithms": ["ES256"], **more}
    return OidcSettings.model_validate(base)


@pytest.fixture
def verifier(provider: Provider, clock: ManualClock) -> OidcVerifier:
    return OidcVerifier(settings(provider), clock)


def refusal(verifier: OidcVerifier, token: str) -> tuple[int, str, str]:
    with pytest.raises(ApiError) as caught:
        verifier.principal(token)
    return caught.value.status_code, caught.value.code, caught.value.message


def test_a_head_that_nests_is_no_token(verifier: OidcVerifier) -> None:
    head = base64.urlsafe_b64encode(b"[" * 20_000).decode().rstrip("=")
    assert refusal(verifier, f"{head}.e30.c2ln")[:2] == (401, "token_unknown")


def test_a_good_token_makes_a_principal_with_role_and_scope(provider: Provider, verifier: OidcVerifier) -> None:
    who = verifier.principal(provider.sign())
    assert (who.name, who.role) == ("oidc:anna", Role.OPERATOR)
    assert who.scope_texts() == ["train-*: throttle"]
    assert verifier.principal(provider.sign(groups="everyone")).role is Role.VIEWER
    verifier.close()


@pytest.mark.parametrize(
    ("claims", "code", "says"),
    [
        ({"iss": "https://evil.example"}, "token_unknown", "iss"),
        ({"iss": None}, "token_unknown", "iss"),
        ({"aud": "another-app"}, "token_unknown", "aud"),
        ({"aud": None}, "token_unknown", "aud"),
        ({"aud": [1]}, "token_unknown", "aud"),
        ({"exp": T0 // SECOND - 31}, "token_expired", "expired"),
        ({"exp": None}, "token_unknown", "exp"),
        ({"exp": "tomorrow"}, "token_unknown", "exp"),
        ({"nbf": T0 // SECOND + 31}, "token_unknown", "not yet valid"),
        ({"iat": T0 // SECOND + 31}, "token_unknown", "future"),
        ({"preferred_username": None}, "token_unknown", "preferred_username"),
        ({"preferred_username": "a\nb"}, "token_unknown", "preferred_username"),
        ({"preferred_username": ["anna"]}, "token_unknown", "preferred_username"),
    ],
)
def test_a_token_with_a_bad_claim_is_refused(
    provider: Provider, verifier: OidcVerifier, claims: dict[str, object], code: str, says: str
) -> None:
    status, found, message = refusal(verifier, provider.sign(**claims))
    assert (status, found) == (401, code)
    assert says in message


def test_clocks_may_differ_by_the_leeway(provider: Provider, verifier: OidcVerifier) -> None:
    now = provider.now_s
    assert verifier.principal(provider.sign(exp=now - 29, nbf=now + 30, iat=now + 30)).name == "oidc:anna"


def test_who_is_in_no_mapped_group_has_no_role(provider: Provider, verifier: OidcVerifier) -> None:
    for groups in (None, [], ["other"], {"gpu-ops": True}, 7):
        status, code, message = refusal(verifier, provider.sign(groups=groups))
        assert (status, code) == (403, "no_role")
        assert "oidc:anna is in no group" in message


def test_an_email_counts_only_where_the_provider_has_verified_it(provider: Provider, clock: ManualClock) -> None:
    verifier = OidcVerifier(settings(provider, name_claim="email"), clock)
    assert refusal(verifier, provider.sign(email="anna@example.org"))[1] == "token_unknown"
    assert refusal(verifier, provider.sign(email="anna@example.org", email_verified="true"))[1] == "token_unknown"
    assert verifier.principal(provider.sign(email="a@example.org", email_verified=True)).name == "oidc:a@example.org"


def unsigned(provider: Provider) -> str:
    _, payload, _ = provider.sign().split(".")
    head = base64.urlsafe_b64encode(json.dumps({"alg": "none", "kid": "one"}).encode()).decode().rstrip("=")
    return f"{head}.{payload}."


def confused(provider: Provider) -> str:
    """The classic: the public key, which everybody has, as the secret of an HMAC."""
    public = provider.keys[0]
    assert isinstance(public, ECKey)
    head = base64.urlsafe_b64encode(json.dumps({"alg": "HS256", "kid": "one"}).encode()).decode().rstrip("=")
    signed = f"{head}.{provider.sign().split('.')[1]}"
    mac = hmac.new(public.as_pem(private=False), signed.encode(), hashlib.sha256).digest()
    return f"{signed}.{base64.urlsafe_b64encode(mac).decode().rstrip('=')}"


def test_the_signature_decides(provider: Provider, verifier: OidcVerifier) -> None:
    good = provider.sign()
    head, payload, signature = good.split(".")
    forged = base64.urlsafe_b64encode(json.dumps({"sub": "x"}).encode()).decode().rstrip("=")
    stranger = ec_key("one")
    for token in (
        f"{head}.{forged}.{signature}",
        f"{head}.{payload}.{signature[:-4]}AAAA",
        provider.sign(stranger),
        unsigned(provider),
        confused(provider),
        "a.b.c",
        "..",
    ):
        assert refusal(verifier, token)[:2] == (401, "token_unknown")


def test_only_the_algorithms_of_the_settings_are_taken(provider: Provider, clock: ManualClock) -> None:
    rsa = RSAKey.generate_key(2048, {"kid": "rsa", "alg": "RS256", "use": "sig"})
    provider.keys.append(rsa)
    assert refusal(OidcVerifier(settings(provider), clock), provider.sign(rsa))[1] == "token_unknown"
    both = OidcVerifier(settings(provider, algorithms=["RS256", "ES256"]), clock)
    assert both.principal(provider.sign(rsa)).name == "oidc:anna"
    for bad in ("none", "HS256"):
        with pytest.raises(ValidationError, match="algorithms"):
            settings(provider, algorithms=[bad])


def test_keys_are_fetched_once_and_again_for_a_new_one(
    provider: Provider, verifier: OidcVerifier, clock: ManualClock
) -> None:
    for _ in range(5):
        verifier.principal(provider.sign())
    assert provider.fetches == 1
    old = provider.sign()
    provider.keys = [ec_key("two")]
    clock.advance(int(REFETCH_SECONDS * SECOND))
    assert verifier.principal(provider.sign()).name == "oidc:anna"
    assert provider.fetches == 2
    assert refusal(verifier, old)[1] == "token_unknown"


def test_invented_key_ids_do_not_make_us_ask_for_each(provider: Provider, verifier: OidcVerifier) -> None:
    stranger = ec_key("one")
    for number in range(20):
        refusal(verifier, provider.sign(stranger, {"kid": f"invented-{number}"}))
    assert provider.fetches == 1


def test_known_keys_outlast_a_short_outage_of_the_provider_and_no_long_one(
    provider: Provider, verifier: OidcVerifier, clock: ManualClock
) -> None:
    verifier.principal(provider.sign())
    provider.down = True
    clock.advance(30 * MINUTE)
    provider.now_s = clock.now_ms() // SECOND
    assert verifier.principal(provider.sign()).name == "oidc:anna"
    clock.advance(STALE_MS)
    provider.now_s = clock.now_ms() // SECOND
    assert refusal(verifier, provider.sign())[:2] == (503, "unavailable")
    provider.down = False
    clock.advance(int(REFETCH_SECONDS * SECOND))
    assert verifier.principal(provider.sign()).name == "oidc:anna"


def test_a_discovery_document_of_another_issuer_is_not_believed(provider: Provider, verifier: OidcVerifier) -> None:
    provider.claimed_issuer = "https://evil.example"
    assert refusal(verifier, provider.sign())[:2] == (503, "unavailable")


@pytest.mark.parametrize(
    ("change", "says"),
    [
        ({"issuer": "http://sso.example"}, "https"),
        ({"client_id": ""}, "client_id is needed"),
        ({"groups": []}, "nobody could log in"),
        ({"groups": [{"group": "x", "role": "agent"}]}, "role"),
        ({"groups": [{"group": "x", "role": "viewer", "scopes": [{"actions": ["throtle"]}]}]}, "no action 'throtle'"),
    ],
)
def test_settings_that_cannot_work_are_refused(provider: Provider, change: dict[str, object], says: str) -> None:
    with pytest.raises(ValidationError, match=says):
        settings(provider, **change)


def test_the_api_takes_such_tokens_and_journals_the_person(provider: Provider, clock: ManualClock) -> None:
    everything = [{"group": "gpu-ops", "role": "operator"}]
    service = FakeService()
    app = create_app(service, ApiSettings(oidc=settings(provider, groups=everything)), clock)
    http = TestClient(app, base_url="http://127.0.0.1", client=("127.0.0.1", 1))
    bearer = {"Authorization": f"Bearer {provider.sign()}"}
    assert http.get("/v1/me", headers=bearer).json()["name"] == "oidc:anna"
    assert http.post("/v1/pause", json={"reason": "x"}, headers=bearer).status_code == 200
    assert service.journal(0, 10, ["pause"])[0].actor == "oidc:anna"
    # Nobody is let in for sitting on this machine once there is a way to say who one is.
    assert http.get("/v1/me").status_code == 401
    refused = http.get("/v1/me", headers={"Authorization": f"Bearer {provider.sign(aud='x')}"})
    assert (refused.status_code, refused.headers["www-authenticate"]) == (401, 'Bearer error="invalid_token"')
    assert http.get("/v1/login/methods").json() == {
        "password": False,
        "oidc": {"issuer": provider.issuer, "client_id": CLIENT, "scope": "openid profile"},
    }
