"""The `/metrics` of an agent as a source of readings, for whoever looks at a node from outside and without a brain."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import httpx2
from prometheus_client.parser import text_string_to_metric_families

from tocsin.domain.batch import Batch
from tocsin.domain.errors import InputError, Unavailable
from tocsin.domain.identity import Gpu
from tocsin.domain.metrics import METRICS, variant
from tocsin.domain.reading import Reading

TIMEOUT_S = 5.0


class AgentPage:
    """A `Source` over one agent's page at `url`.

    Readings are dated now: the page tells no instant, and it leaves out what is too old. Events, owners and reasons why
    a value is missing are not on it. `read` raises Unavailable where there is no answer, or it is no page of an agent.
    """

    name = "agent"

    def __init__(self, url: str, transport: httpx2.BaseTransport | None = None) -> None:
        if not url.startswith(("http://", "https://")):
            remedy = "name its page, for example http://127.0.0.1:9835/metrics"
            raise InputError("--agent", url, "is no http or https URL", remedy)
        self.url = url if url.rstrip("/").endswith("/metrics") else f"{url.rstrip('/')}/metrics"
        self._http = httpx2.Client(timeout=TIMEOUT_S, transport=transport, trust_env=False)
        self._gpus: list[Gpu] = []

    def gpus(self) -> list[Gpu]:
        return list(self._gpus)

    def read(self, now_ms: int) -> Batch:
        readings = list(read_agent_page(self._page(), now_ms))
        self._gpus = [reading.gpu for reading in readings]
        return Batch(readings=readings)

    def _page(self) -> str:
        try:
            response = self._http.get(self.url)
        except (httpx2.RequestError, httpx2.InvalidURL) as error:
            hint = "start it with `tocsin agent`, or correct the URL"
            raise Unavailable(f"no agent answers at {self.url} ({error}); {hint}") from error
        if response.status_code != 200:
            raise Unavailable(f"{self.url} answers {response.status_code}; name the /metrics of an agent")
        return response.text

    def close(self) -> None:
        self._http.close()


def read_agent_page(page: str, at_ms: int) -> Iterator[Reading]:
    """A reading of each GPU on `page`, dated `at_ms`. Raises Unavailable where it is no page of an agent."""
    gpus: dict[str, Gpu] = {}
    values: dict[str, dict[str, float]] = {}
    is_agent = False
    try:
        for family in text_string_to_metric_families(page):
            is_agent = is_agent or family.name == "tocsin_gpus"
            for sample in family.samples:
                spec = METRICS.get(sample.name)
                if spec is None or "gpu_uuid" not in sample.labels:
                    continue
                gpu = _gpu(sample.labels)
                gpus.setdefault(gpu.uuid, gpu)
                label = spec.label
                key = variant(spec.name, label, sample.labels[label]) if label in sample.labels else spec.name
                values.setdefault(gpu.uuid, {})[key] = float(sample.value)
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser of prometheus-client answers malformed lines with whatever it stumbles over.
        raise Unavailable(f"the page is not that of an agent ({error}); name its /metrics") from None
    if not is_agent:
        raise Unavailable("the page is not that of an agent: tocsin_gpus is missing; name its /metrics")
    for uuid, gpu in gpus.items():
        yield Reading(gpu, at_ms, values[uuid])


def _gpu(labels: Mapping[str, Any]) -> Gpu:
    physical, instance = str(labels["gpu_uuid"]), str(labels.get("mig_uuid", ""))
    index = str(labels.get("gpu_index", ""))
    return Gpu(
        uuid=instance or physical,
        host=str(labels.get("host", "")),
        index=int(index) if index.isdecimal() else None,
        model=str(labels.get("model", "")),
        parent=physical if instance else "",
        mig_profile=str(labels.get("mig_profile", "")),
        pool=str(labels.get("pool", "")),
        simulated=labels.get("simulated") == "true",
    )
