"""The tools: each asks the brain one or two questions. None of them changes anything."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import httpx2
from pydantic import Field

from tocsin.client.client import Client
from tocsin.client.models import GpuDetail, GpuState, GpuSummary
from tocsin.client.models_cards import CardState
from tocsin.client.whole import every_gpu, whole_summary
from tocsin.client.whole_cards import fleet_cards
from tocsin.domain.decision import DecisionState
from tocsin.domain.errors import Unavailable
from tocsin.http_client import client_context
from tocsin.mcp_server import answers
from tocsin.mcp_server.answers import Limit
from tocsin.mcp_server.cells import Cells, gone
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
    """One method a tool, over the API of one brain, which answers for all cells of its fleet; its docstring is what an
    assistant reads of it.

    Raises TocsinError.
    """

    def __init__(self, client: Client, catalogues: Catalogues) -> None:
        self._client = client
        self._catalogues = catalogues
        self._cells = Cells(client)

    def fleet_status(self) -> answers.FleetStatus:
        """How the whole fleet is: GPUs by state, open incidents, mode, what waits for a person. Start here."""
        if not self._cells.several():
            return answers.fleet_status(self._client.summary())
        found = self._client.cells_summary()
        if not found.answers:
            raise Unavailable("; ".join(gone(found)))
        cells = {answers.plain(name): one.gpus for name, one in sorted(found.answers.items())}
        told = answers.fleet_status(whole_summary(found.answers))
        return told.model_copy(update={"cells": cells, "missing_cells": gone(found)})

    def list_cards(
        self,
        limit: Limit = 20,
        state: Annotated[CardState | None, Field(description="Only cards in this state; default: open ones.")] = None,
    ) -> answers.CardList:
        """What wants attention, the most urgent first: one card for each cause, with the one action proposed."""
        if not self._cells.several():
            return answers.card_list(self._client.cards(limit, state))
        found = self._client.cells_cards(limit, state=state)
        shown, total = fleet_cards(found.answers, limit)
        return answers.CardList(
            total=total,
            hidden=sum(one.hidden for one in found.answers.values()),
            items=[answers.card_line(one.card, one.cells) for one in shown],
            missing_cells=gone(found),
        )

    def get_card(self, card_id: CardId) -> answers.CardDetail:
        """One card with what it touches, what happens next and the evidence that it rests on."""
        cell, card = self._cells.everywhere(lambda client: client.card(card_id))[0]
        return answers.card_detail(card, cell)

    def find_gpus(
        self,
        words: Words = "",
        state: Annotated[GpuState | None, Field(description="Only GPUs in this state.")] = None,
        limit: Limit = 20,
    ) -> answers.GpuList:
        """GPUs by part of a name and by state, the worst first: their UUIDs are what the other tools ask for."""
        low, lacking = words.casefold(), list[str]()
        if self._cells.several():
            every = self._client.cells_gpus()
            known, lacking = every_gpu(every.answers), gone(every)
            cells = {id(gpu): name for name, gpus in every.answers.items() for gpu in gpus}
        else:
            known, cells = self._client.gpus(), {}
        found = [
            gpu
            for gpu in known
            if state in (None, gpu.state)
            and any(low in one.casefold() for one in (gpu.host, gpu.uuid, gpu.model, gpu.pool))
        ]
        found.sort(key=_urgency)
        items = answers.few(found, lambda gpu: answers.gpu_line(gpu, cells.get(id(gpu), "")), limit)
        return answers.GpuList(total=len(found), items=items, missing_cells=lacking)

    def gpu_health(self, gpu: GpuId) -> answers.GpuHealth:
        """One GPU now: state, main readings, findings, predictions, and which metrics are missing and why."""
        cell, found = self._gpu(gpu)
        return answers.gpu_health(found, cell)

    def gpu_evidence(self, gpu: GpuId) -> answers.GpuEvidence:
        """What claims about one GPU rest on: XIDs and other events, findings with their evidence, past decisions."""
        return answers.gpu_evidence(self._gpu(gpu)[1])

    def _gpu(self, uuid: str) -> tuple[str, GpuDetail]:
        """A GPU as the cell has it that saw it last."""
        found = self._cells.everywhere(lambda client: client.gpu(uuid))
        return max(found, key=lambda one: one[1].summary.last_reading or "")

    def list_decisions(
        self,
        limit: Limit = 20,
        state: Annotated[DecisionState | None, Field(description="Only decisions in this state.")] = None,
    ) -> answers.DecisionList:
        """What Tocsin intends or did, what waits for a person first, then newest first, and which guards hold it."""
        if not self._cells.several():
            return answers.DecisionList(
                items=answers.few(self._client.decisions(limit, state), answers.decision_line, limit)
            )
        whole = self._client.cells_decisions(limit, state=state)
        rows = [(one, name) for name, decisions in sorted(whole.answers.items()) for one in decisions]
        rows.sort(key=lambda row: -row[0].at_ms)
        items = answers.few(rows, lambda row: answers.decision_line(*row), limit)
        return answers.DecisionList(items=items, missing_cells=gone(whole))

    def get_decision(self, decision_id: DecisionId) -> answers.DecisionDetail:
        """One decision: what each guard said of it, and what came of it."""
        cell, found = self._cells.everywhere(lambda client: client.decision(decision_id))[0]
        return answers.decision_detail(found, cell)

    def list_predictions(self, limit: Limit = 20) -> answers.PredictionList:
        """What is foretold, the most urgent first: the chance of a fault, memory that runs full, heat."""
        lacking = list[str]()
        if self._cells.several():
            whole = self._client.cells_predictions()
            # The most urgent of each cell, then the next of each.
            ranks = [(rank, name) for name, found in whole.answers.items() for rank in range(len(found))]
            told, lacking = [whole.answers[name][rank] for rank, name in sorted(ranks)], gone(whole)
        else:
            told = self._client.predictions()
        found = [one for one in told if not one.muted]
        items = answers.few(found, answers.prediction_line, limit)
        return answers.PredictionList(total=len(found), items=items, missing_cells=lacking)

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
        if not self._cells.several():
            return answers.report(self._client.morning_report(hours))
        whole = self._client.cells_report(hours)
        if not whole.answers:
            raise Unavailable("; ".join(gone(whole)))
        every = [(name, answers.report(one)) for name, one in sorted(whole.answers.items())]
        return answers.Report(
            start=min(one.start for _, one in every),
            end=max(one.end for _, one in every),
            sentences=[answers.plain(f"{name}: {text}") for name, one in every for text in one.sentences],
            missing_cells=gone(whole),
        )


def _urgency(gpu: GpuSummary) -> tuple[int, str, int]:
    return -gpu.state.rank, gpu.host, gpu.index or 0
