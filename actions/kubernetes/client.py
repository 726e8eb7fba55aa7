"""The one module that knows the official Kubernetes client.

Answers are read as plain JSON: the client's models refuse an object of a newer server over a field they do not know,
and nothing here needs them. The client's own retries are off, because they would sleep for as long as a server asks.
"""

from __future__ import annotations

import base64
import json
import os
from collections.abc import Mapping
from datetime import UTC, datetime
from email.utils import parsedate_to_datetime
from typing import Any

from tocsin import __version__
from tocsin.actions.kubernetes.api import PLAIN, Json, KubeError
from tocsin.config.kubernetes import KubernetesSettings
from tocsin.domain.errors import InputError, install_extra

MOST_BYTES = 64 * 1024 * 1024
"""Most bytes of an answer (own choice): lists come in pages."""
PIECE_BYTES = 65_536
_LACKING = "the kubernetes library is not installed"


class KubernetesClient:
    """An API server by the official client; calls may come from several threads."""

    def __init__(self, client: Any, timeout_seconds: float) -> None:
        self._client = client
        self._timeout = timeout_seconds

    @property
    def server(self) -> str:
        return str(self._client.configuration.host)

    def ask(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: object = None,
        content_type: str = PLAIN,
    ) -> Json:
        from kubernetes.client.exceptions import ApiException
        from kubernetes.config import ConfigException
        from urllib3.exceptions import HTTPError

        headers = {"Accept": PLAIN, "Accept-Encoding": "identity"} | (
            {} if body is None else {"Content-Type": content_type}
        )
        try:
            request = self._client.param_serialize(
                method=method,
                resource_path=path,
                query_params=list((query or {}).items()),
                header_params=headers,
                body=body,
                auth_settings=["BearerToken"],
            )
        except (ConfigException, OSError) as error:
            raise KubeError(0, f"no valid credentials: {error}") from error
        try:
            answer = self._client.call_api(*request, _request_timeout=self._timeout)
            content = _bounded(answer.response)
        except ApiException as error:
            raise KubeError(0, f"no secure connection: {error.reason}") from error
        except (HTTPError, OSError) as error:
            raise _no_answer(error) from error
        try:
            return judge(answer.status, answer.headers, content)
        except KubeError as error:
            raise _expired(error, request[2], answer.headers) or error from None

    def close(self) -> None:
        self._client.close()


def connect(settings: KubernetesSettings) -> KubernetesClient:
    """A door to the cluster that `settings` name; nothing is asked of it yet.

    Raises InputError where the library is not installed or the credentials cannot be read.
    """
    try:
        from kubernetes import client, config
        from yaml import YAMLError
    except ModuleNotFoundError as error:
        raise InputError("executor", "kubernetes", _LACKING, install_extra("kubernetes")) from error
    configuration = client.Configuration()
    configuration.retries = False
    shown = str(settings.kubeconfig or "")
    load: Any = config
    try:
        if settings.kubeconfig is None and "KUBERNETES_SERVICE_HOST" in os.environ:
            load.load_incluster_config(client_configuration=configuration)
        else:
            load.load_kube_config(
                config_file=shown or None,
                context=settings.context or None,
                client_configuration=configuration,
                persist_config=False,
            )
    except (config.ConfigException, YAMLError, OSError, ValueError, TypeError, AttributeError) as error:
        why = f"the cluster's credentials cannot be read: {' '.join(str(error).split())}"
        raise InputError("kubernetes.kubeconfig", shown, why, "name a kubeconfig") from error
    made = client.ApiClient(configuration)
    # The audit log of the cluster names who asks.
    made.user_agent = f"tocsin/{__version__}"
    return KubernetesClient(made, settings.timeout_seconds)


def _bounded(response: Any) -> bytes:
    """The body of an answer of urllib3; raises HTTPError where it is larger than `MOST_BYTES`, or compressed though
    that was not asked for: what a server answers is a stranger's word."""
    from urllib3.exceptions import DecodeError, ResponseError

    if response.headers.get("Content-Encoding", "identity").strip().lower() not in ("", "identity"):
        raise DecodeError("the answer is compressed, which was not asked for")
    content = bytearray()
    for piece in response.stream(PIECE_BYTES, decode_content=False):
        content += piece
        if len(content) > MOST_BYTES:
            response.close()
            raise ResponseError(f"the answer is larger than {MOST_BYTES} bytes")
    response.release_conn()
    return bytes(content)


def _no_answer(error: Exception) -> KubeError:
    from urllib3.exceptions import ConnectTimeoutError, NewConnectionError

    if isinstance(error, NewConnectionError | ConnectTimeoutError):
        return KubeError(0, f"cannot connect: {_words(error)}")
    return KubeError(0, f"no answer: {_words(error)}", certain=False)


def _expired(error: KubeError, sent: Mapping[str, str], headers: Mapping[str, str]) -> KubeError | None:
    """The 401 in words, where the token that was sent had run out by the server's clock; None for anything else."""
    if error.status != 401:
        return None
    token = next((value for name, value in sent.items() if name.lower() == "authorization"), "").rpartition(" ")[2]
    try:
        ends = datetime.fromtimestamp(float(_claims(token)["exp"]), UTC)
        over = ends <= parsedate_to_datetime(headers["Date"])
    except (KeyError, TypeError, ValueError, OverflowError, OSError):
        return None
    words = f"{error.message}: the token expired at {ends:%Y-%m-%dT%H:%M:%SZ}; issue a new one"
    return KubeError(401, words, reason=error.reason) if over else None


def _claims(token: str) -> dict[str, Any]:
    """What a JSON web token says of itself; nobody has checked its signature. Raises ValueError where it is none."""
    parts = token.split(".")
    if len(parts) != 3:
        raise ValueError("not a JSON web token")
    found = json.loads(base64.urlsafe_b64decode(parts[1] + "=" * (-len(parts[1]) % 4)))
    return found if isinstance(found, dict) else {}


def _words(error: Exception) -> str:
    return str(error).rpartition("): ")[2] or type(error).__name__


def judge(status: int, headers: Mapping[str, str], content: bytes) -> Json:
    """The body of an answer; raises KubeError for anything but 2xx, with what the server said."""
    try:
        body = json.loads(content) if content else {}
    except ValueError:
        body = {"message": content.decode(errors="replace").strip()[:200]}
    if not isinstance(body, dict):
        raise KubeError(0, f"an answer {status} that is no object", certain=False)
    if 200 <= status < 300:
        return body
    details = body.get("details") or {}
    causes = tuple(str(cause.get("message", "")) for cause in details.get("causes") or ())
    wait = headers.get("Retry-After") or details.get("retryAfterSeconds")
    raise KubeError(
        status,
        str(body.get("message") or "no reason given"),
        reason=str(body.get("reason") or ""),
        causes=causes,
        retry_after=float(wait) if wait is not None and str(wait).isdecimal() else None,
        certain=status < 500,
    )
