"""Jira and ServiceNow as far as tickets go: they keep tickets in memory, and refuse what the real ones would refuse.

Made after their documents, never after a real one; each says which requests it has had.
"""

from __future__ import annotations

import base64
import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import jsonschema
from werkzeug import Request, Response

SECRET = "robot@example.com:t0ken-0123456789"
BASIC = "Basic " + base64.b64encode(SECRET.encode()).decode()
JIRA_VALUES = {"project": "GPU", "issuetype": "Task", "resolve_transition": "31"}
SNOW_VALUES = {"assignment_group": "GPU Repair", "close_code": "Solved (Permanently)"}
ADF = jsonschema.Draft4Validator(
    json.loads((Path(__file__).parents[2] / "data" / "atlassian" / "adf_v1.json").read_text())
)
"""The document format as Atlassian publishes it."""


@dataclass
class Ticket:
    """One ticket as the system has it."""

    name: str
    label: str
    fields: dict[str, Any]
    open: bool = True
    comments: list[Any] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)


class RefusedError(Exception):
    """What the system answers to a bad request."""

    def __init__(self, status: int, said: str) -> None:
        self.status, self.said = status, said


class TicketDouble:
    """Base: counts requests, and lets a test answer in its place, before or after the request was carried out."""

    values: dict[str, str]
    template: str
    base = ""

    def __init__(self) -> None:
        self.tickets: dict[str, Ticket] = {}
        self.asked: list[str] = []
        self.instead: Callable[[str], Response | None] = lambda step: None
        self.after: Callable[[str], Response | None] = lambda step: None

    def __call__(self, request: Request) -> Response:
        step = self.step_of(request)
        self.asked.append(step)
        if (answer := self.instead(step)) is not None:
            return answer
        try:
            made = self.carried_out(step, request)
        except RefusedError as refused:
            return Response(json.dumps({"errorMessages": [refused.said]}), refused.status)
        return self.after(step) or made

    def step_of(self, request: Request) -> str:
        raise NotImplementedError

    def carried_out(self, step: str, request: Request) -> Response:
        raise NotImplementedError

    @property
    def only(self) -> Ticket:
        (ticket,) = self.tickets.values()
        return ticket

    def channel(self, **more: Any) -> dict[str, Any]:
        """The channel's settings beside its URL."""
        table = {"template": self.template, "values": self.values} | more
        return {"secret": SECRET, "ticket": table}


def _json(status: int, content: Any) -> Response:
    return Response(json.dumps(content), status, content_type="application/json")


def _need(holds: object, said: str, status: int = 400) -> None:
    if not holds:
        raise RefusedError(status, said)


class JiraCloud(TicketDouble):
    """REST API v3, texts in the Atlassian document format."""

    values = JIRA_VALUES
    template = "jira_cloud"
    api = "/rest/api/3"
    search = "/search/jql"
    authorization = BASIC

    def step_of(self, request: Request) -> str:
        path = request.path.removeprefix(self.api)
        ends = {"comment": "comment", "transitions": "transition", "attachments": "attach"}
        if path == self.search:
            return "find"
        if path == "/issue":
            return "open"
        return ends.get(path.rsplit("/", 1)[-1], "state")

    def carried_out(self, step: str, request: Request) -> Response:
        _need(request.path.startswith(self.api), "no such path", 404)
        _need(request.headers.get("Authorization") == self.authorization, "log in", 401)
        if step == "find":
            return self._found(request)
        if step == "open":
            return self._opened(json.loads(request.data)["fields"])
        key = request.path.removeprefix(self.api).split("/")[2]
        _need(key in self.tickets, "Issue does not exist", 404)
        return self._about(step, self.tickets[key], request)

    def _found(self, request: Request) -> Response:
        wanted = re.fullmatch(
            r'project = "(\w+)" AND labels = "([\w-]+)" AND statusCategory != Done', request.args["jql"]
        )
        _need(wanted and wanted[1] == "GPU", "The JQL query is wrong")
        assert wanted is not None
        _need(request.method == "GET" and request.args["maxResults"] == "1", "wrong query")
        found = [{"id": "1", "key": one.name} for one in self.tickets.values() if one.open and one.label == wanted[2]]
        return _json(200, {"issues": found[:1], "isLast": True})

    def _opened(self, fields: dict[str, Any]) -> Response:
        _need(fields["project"] == {"key": "GPU"} and fields["issuetype"] == {"name": "Task"}, "project")
        _need(0 < len(fields["summary"]) <= 255 and "\n" not in fields["summary"], "summary")
        _need(all(label and " " not in label for label in fields["labels"]), "labels")
        self.check_text(fields["description"])
        key = f"GPU-{len(self.tickets) + 1}"
        self.tickets[key] = Ticket(key, fields["labels"][1], fields)
        return _json(201, {"id": "10000", "key": key, "self": f"http://jira/rest/api/3/issue/{key}"})

    def _about(self, step: str, ticket: Ticket, request: Request) -> Response:
        if step == "state":
            category = {"id": 2, "key": "new" if ticket.open else "done"}
            return _json(200, {"key": ticket.name, "fields": {"status": {"statusCategory": category}}})
        if step == "comment":
            said = json.loads(request.data)["body"]
            self.check_text(said)
            ticket.comments.append(said)
            return _json(201, {"id": "1"})
        if step == "transition":
            _need(json.loads(request.data) == {"transition": {"id": "31"}}, "transition")
            _need(ticket.open, "It is not valid in the present state")
            ticket.open = False
            return Response("", 204)
        _need(request.headers.get("X-Atlassian-Token") == "no-check", "XSRF check failed", 403)
        _need(set(request.files) == {"file"}, "no part named file")
        file = request.files["file"]
        ticket.files[str(file.filename)] = file.read()
        return _json(200, [{"filename": file.filename}])

    def check_text(self, document: Any) -> None:
        """Refuse what is no document."""
        _need(ADF.is_valid(document), "INVALID_INPUT")


class JiraDataCenter(JiraCloud):
    """REST API v2: texts are wiki text, search is another path."""

    template = "jira_data_center"
    api = "/rest/api/2"
    search = "/search"
    authorization = f"Bearer {SECRET}"

    def check_text(self, document: Any) -> None:
        _need(isinstance(document, str) and document, "description")


class ServiceNow(TicketDouble):
    """Table API on incident, and the Attachment API."""

    values = SNOW_VALUES
    template = "servicenow"
    table = "/api/now/table/incident"

    def step_of(self, request: Request) -> str:
        if request.path == "/api/now/attachment/file":
            return "attach"
        if request.path == self.table:
            return "find" if request.method == "GET" else "open"
        if request.method == "GET":
            return "state"
        return "transition" if b'"state"' in request.data else "comment"

    def carried_out(self, step: str, request: Request) -> Response:
        _need(request.headers.get("Authorization") == BASIC, "User Not Authenticated", 401)
        if step == "find":
            wanted = re.fullmatch(r"correlation_id=(\w+)\^stateNOT IN6,7,8", request.args["sysparm_query"])
            _need(wanted, "query")
            assert wanted is not None
            found = [{"sys_id": one.name} for one in self.tickets.values() if one.open and one.label == wanted[1]]
            return _json(200, {"result": found[:1]})
        if step == "open":
            fields = json.loads(request.data)
            _need(all(isinstance(value, str) for value in fields.values()), "fields")
            name = f"{len(self.tickets) + 1:032x}"
            self.tickets[name] = Ticket(name, fields["correlation_id"], fields)
            return _json(201, {"result": {"sys_id": name, "number": f"INC{len(self.tickets):07}"}})
        if step == "attach":
            return self._attached(request)
        return self._about(step, request)

    def _attached(self, request: Request) -> Response:
        ticket = self.tickets.get(request.args["table_sys_id"])
        _need(request.args["table_name"] == "incident" and ticket is not None, "record", 404)
        _need(request.headers.get("Content-Type"), "Content-Type")
        assert ticket is not None
        ticket.files[request.args["file_name"]] = request.data
        return _json(201, {"result": {"sys_id": "0" * 32}})

    def _about(self, step: str, request: Request) -> Response:
        ticket = self.tickets.get(request.path.removeprefix(self.table + "/"))
        _need(ticket is not None, "No Record found", 404)
        assert ticket is not None
        if step == "state":
            return _json(200, {"result": {"state": "1" if ticket.open else "6"}})
        _need(request.method == "PATCH", "method", 405)
        changed = json.loads(request.data)
        if step == "comment":
            ticket.comments.append(changed["work_notes"])
        else:
            _need(changed["state"] == "6" and changed["close_code"] and changed["close_notes"], "mandatory fields", 403)
            ticket.open = False
        ticket.fields |= changed
        return _json(200, {"result": {"sys_id": ticket.name}})


DOUBLES: dict[str, type[TicketDouble]] = {
    "jira_cloud": JiraCloud,
    "jira_data_center": JiraDataCenter,
    "servicenow": ServiceNow,
}
