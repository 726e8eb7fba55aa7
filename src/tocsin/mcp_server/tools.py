"""The tools: each asks the brain one or two questions. None of them changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import httpx2
from pydantic import Field

from tocsin.client.client import Client
from tocsin.client.models import GpuState, GpuSummary
from tocsin.client.models_cards import CardState
from tocsin.domain.decision import DecisionState
from tocsin.http_client import client_context
from tocsin.mcp_server import answers
from tocsin.mcp_server.answers import Limit
from tocsin.rules.xid_explain import Catalogues, explain_sxid, explain_xid

MOST_NAME = 128
CardId = Annotated[str, Field(min_length=1, max_length=MOST_NAME, description="Id of a card, from list_cards.")]
GpuId = Annotated[str, Field(min_length=1, max_length=MOST_NAME, description="UUID of a GPU, from find_gpus.")]
DecisionId = Annotated[str, Field(min_length=1, max_length=MOST_NAME, description="Id, from list_decisions.")]
Words = Annotated[
    str, Field(max_length=MOST_NAME, description="Part of a host's name, model, pool or UUID; empty: all.")
]


class GetOnly(httpx2.BaseTransport):
    """Lets questions through and nothing else: not even a mistake in a tool can change the fleet."""

    def __init__(self, inner: httpx2.BaseTransport) -> None:
        self._inner = inner

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        if request.method != "GET":
            raise httpx2.UnsupportedProtocol(f"{request.method} is refused: this server only reads", request=request)
        return self._inner.handle_request(request)

    def close(self) -> None:
        self._inner.close()


def reading_client(url: str, token: str, ca: Path | None = None) -> Client:
    """A client of the brain at `url` that can only ask. Raises InputError for a CA file that cannot be used."""
    way = httpx2.HTTPTransport(verify=client_context(ca), trust_env=False)
    return Client(url, token, transport=GetOnly(way))


class Tools:
    """One method a tool, over the API of one brain; its docstring is what an assistant reads of it.

    Raises TocsinError.
    """

    def __init__(self, client: Client, catalogues: Catalogues) -> None:
        self._client = client
        self._catalogues = catalogues

    def fleet_status(self) -> answers.FleetStatus:
        """How the whole fleet is: GPUs by state, open incidents, mode, what waits for a person. Start here."""
        return answers.fleet_status(self._client.summary())

    def list_cards(
        self,
        limit: Limit = 20,
        state: Annotated[CardState | None, Field(description="Only cards in this state; default: open ones.")] = None,
    ) -> answers.CardList:
        """What wants attention, the most urgent first: one card for each cause, with the one action proposed."""
        return answers.card_list(self._client.cards(limit, state))

    def get_card(self, card_id: CardId) -> answers.CardDetail:
        """One card with what it touches, what happens next and the evidence that it rests on."""
        return answers.card_detail(self._client.card(card_id))

    def find_gpus(
        self,
        words: Words = "",
        state: Annotated[GpuState | None, Field(description="Only GPUs in this state.")] = None,
        limit: Limit = 20,
    ) -> answers.GpuList:
        """GPUs by part of a name and by state, the worst first: their UUIDs are what the other tools ask for."""
        low = words.casefold()
        found = [
            gpu
            for gpu in self._client.gpus()
            if state in (None, gpu.state)
            and any(low in one.casefold() for one in (gpu.host, gpu.uuid, gpu.model, gpu.pool))
        ]
        found.sort(key=_urgency)
        return answers.GpuList(total=len(found), items=answers.few(found, answers.gpu_line, limit))

    def gpu_health(self, gpu: GpuId) -> answers.GpuHealth:
        """One GPU now: state, main readings, findings, predictions, and which metrics are missing and why."""
        return answers.gpu_health(self._client.gpu(gpu))

    def gpu_evidence(self, gpu: GpuId) -> answers.GpuEvidence:
        """What claims about one GPU rest on: XIDs and other events, findings with their evidence, past decisions."""
        return answers.gpu_evidence(self._client.gpu(gpu))

    def list_decisions(
        self,
        limit: Limit = 20,
        state: Annotated[DecisionState | None, Field(description="Only decisions in this state.")] = None,
    ) -> answers.DecisionList:
        """What Tocsin intends or did, newest first, and which guards hold it."""
        found = self._client.decisions(limit, state)
        return answers.DecisionList(items=answers.few(found, answers.decision_line, limit))

    def get_decision(self, decision_id: DecisionId) -> answers.DecisionDetail:
        """One decision: what each guard said of it, and what came of it."""
        return answers.decision_detail(self._client.decision(decision_id))

    def list_predictions(self, limit: Limit = 20) -> answers.PredictionList:
        """What is foretold, the most urgent first: the chance of a fault, memory that runs full, heat."""
        found = [one for one in self._client.predictions() if not one.muted]
        return answers.PredictionList(total=len(found), items=answers.few(found, answers.prediction_line, limit))

    def explain_xid(
        self,
        code: Annotated[int, Field(ge=1, le=100_000, description="Number of the driver error, such as 79.")],
        switch: Annotated[bool, Field(description="Whether it is an SXid of an NVSwitch.")] = False,
    ) -> answers.XidMeaning:
        """What an NVIDIA driver error (XID) means and asks for, by Tocsin's catalogue; asks no brain."""
        known = self._catalogues
        return answers.xid_meaning(explain_sxid(known.sxids, code) if switch else explain_xid(known.xids, code))

    def morning_report(
        self, hours: Annotated[int, Field(ge=1, le=168, description="How far back.")] = 24
    ) -> answers.Report:
        """Some sentences on the last hours: what happened, what was done, what was wrong, what waits."""
        return answers.report(self._client.morning_report(hours))


def _urgency(gpu: GpuSummary) -> tuple[int, str, int]:
    return -gpu.state.rank, gpu.host, gpu.index or 0
