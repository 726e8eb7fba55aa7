"""The requests of a ticket system as a file of templates, and how words are put into them.

A word, `${name}`, may stand in any text of a request, and only a text is ever put there: bodies are made into JSON, and
paths and queries percent-encoded, after that. What is put in is not read again.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from importlib import resources
from pathlib import Path
from typing import Any, Literal, Self
from urllib.parse import quote

from pydantic import Field, field_validator, model_validator

from tocsin.domain.alert_level import AlertLevel
from tocsin.domain.errors import InputError
from tocsin.rules.load import parsed, read_toml, validated
from tocsin.rules.schema import Part, did_you_mean

WHAT = "ticket template"
MOST_CHARACTERS = 64 * 1024
"""Of a file of templates."""
SHIPPED = ("jira_cloud", "jira_data_center", "servicenow")
"""Templates that ship."""
MOST_RESOLVING = 4
"""Requests that resolve a ticket."""
SECRETS = frozenset({"secret", "basic"})
"""Words for headers alone."""
NAMES = frozenset({"id", "ticket", "file", "sha256"})
"""Words of letters, digits, `.`, `_` and `-`: all that paths and queries may have beside the site's own values."""
TEXTS = frozenset(
    {
        "title", "sentence", "facts", "text", "rule", "subject", "host", "pool", "category", "severity", "level",
        "card", "decision", "at", "runbook", "console", "evidence",
    }
)  # fmt: skip
"""Words of the notification, for bodies."""

_WORD = re.compile(r"\$\{([^{}]*)\}")
_PATH = re.compile(r"(/[A-Za-z0-9._~${}-]+)+/?")
_JSON_PATH = r"^[A-Za-z0-9_-]+(\.[A-Za-z0-9_-]+)*$"
_FULL_WIDTH = 0xFEE0
"""From a printable letter of ASCII to its full-width form."""

Words = Mapping[str, str]


class Request(Part):
    """One request."""

    method: Literal["GET", "POST", "PUT", "PATCH"] = "POST"
    path: str
    """Below the channel's `url`."""
    query: dict[str, str] = Field(default_factory=dict)
    body: dict[str, Any] | None = None
    """JSON; None: no body."""

    @field_validator("path")
    @classmethod
    def _is_path(cls, path: str) -> str:
        if not _PATH.fullmatch(path) or {".", ".."} & set(path.split("/")):
            raise ValueError("is no path such as /rest/api/3/issue/${ticket}")
        return path

    @model_validator(mode="after")
    def _has_texts(self) -> Self:
        for key, leaf in _leaves(self.body or {}):
            if "${" in key:
                raise ValueError(f"has a word in key {key!r}: words stand in values alone")
            if not isinstance(leaf, str | bool | int) and not (isinstance(leaf, float) and abs(leaf) < float("inf")):
                raise ValueError(f"has {leaf!r}, which JSON does not know")
        return self

    def texts(self) -> Iterator[tuple[bool, str]]:
        """Every text, and whether it stands in the body."""
        yield False, self.path
        yield from ((False, value) for value in self.query.values())
        yield from ((True, leaf) for _, leaf in _leaves(self.body or {}) if isinstance(leaf, str))


class Answered(Request):
    """A request whose answer names a ticket; `ticket` leads to its name, such as `issues.0.key`."""

    ticket: str = Field(pattern=_JSON_PATH, max_length=200)


class Find(Answered):
    """Looks for a ticket that is open. A list of none is none; what is not there but in a list is an error."""

    method: Literal["GET", "POST", "PUT", "PATCH"] = "GET"


class Opening(Answered):
    """Opens a ticket; `number` leads to what people call it, where that is not its name."""

    number: str = Field(default="", pattern=f"^$|{_JSON_PATH}", max_length=200)


class State(Request):
    """Asks how a ticket stands: `field` leads to it, `over` are the states of one that nobody works on any more."""

    method: Literal["GET", "POST", "PUT", "PATCH"] = "GET"
    field: str = Field(pattern=_JSON_PATH, max_length=200)
    over: list[str] = Field(min_length=1)


class Attaching(Request):
    """Attaches a file, as form `field` of a multipart body, or as the body."""

    send: Literal["multipart", "raw"] = "multipart"
    field: str = Field(default="file", pattern=r"^[A-Za-z0-9_-]+$")

    @model_validator(mode="after")
    def _only_the_file(self) -> Self:
        if self.body is not None:
            raise ValueError("has a body: the file is all that is sent")
        return self


class TicketTemplate(Part):
    """What is asked of a ticket system."""

    headers: dict[str, str] = Field(default_factory=dict)
    """Of every request."""
    attach_headers: dict[str, str] = Field(default_factory=dict)
    """Of `attach` beside these."""
    inert: str = Field(default="", pattern=r"^[!-/:-@\[-`{-~]*$")
    """Letters that mean something in the system's texts; in words of the notification they are written full-width."""
    by_level: dict[str, dict[AlertLevel, str]] = Field(default_factory=dict)
    """Words that go by the level of the notification, such as a priority."""
    find: Find
    open: Opening
    comment: Request | None = None
    """What more is told of the same fault."""
    state: State | None = None
    attach: Attaching | None = None
    resolve: list[Request] = Field(min_length=1, max_length=MOST_RESOLVING)

    @model_validator(mode="after")
    def _every_level(self) -> Self:
        for name, words in self.by_level.items():
            if set(words) != set(AlertLevel):
                raise ValueError(f"by_level.{name} needs a text for each of {', '.join(AlertLevel)}")
        return self

    def requests(self) -> dict[str, Request]:
        """Every request by what it is called in errors."""
        one = {"find": self.find, "open": self.open, "comment": self.comment, "state": self.state}
        many = {f"resolve.{number}": request for number, request in enumerate(self.resolve)}
        return {name: each for name, each in ({**one, "attach": self.attach} | many).items() if each is not None}

    def neutral(self, text: str) -> str:
        """`text` without a letter that the system would read as markup."""
        return text.translate({ord(letter): ord(letter) + _FULL_WIDTH for letter in self.inert})


def load_template(named: str, values: Words) -> TicketTemplate:
    """The templates that ship as `named`, else of the file of that path, with the site's `values`.

    Raises InputError for a file that cannot be read or used, for a word that nothing gives or that may not stand where
    it does, and for a value that no text asks for.
    """
    with resources.as_file(resources.files(__package__).joinpath(f"ticket_{named}.toml")) as shipped:
        return _loaded(shipped if named in SHIPPED else Path(named), values)


def _loaded(path: Path, values: Words) -> TicketTemplate:
    text = read_toml(path, WHAT)
    if len(text) > MOST_CHARACTERS:
        raise InputError(WHAT, str(path), f"has more than {MOST_CHARACTERS} characters", "shorten it")
    raw = parsed(text, WHAT, str(path))
    try:
        template = validated(TicketTemplate, raw)
    except InputError as error:
        raise InputError(f"{path.name}: {error.field}", error.value, error.problem, error.remedy) from None
    _check_words(template, path, values)
    return template


def _check_words(template: TicketTemplate, path: Path, values: Words) -> None:
    levels = frozenset(template.by_level)
    for name in (*values, *levels):
        if name in SECRETS | NAMES | TEXTS or (name in values and name in levels):
            raise InputError("ticket.values", name, "is the name of another word", "call it otherwise")
    used: set[str] = set()
    for place, known, text in _places(template, frozenset(values), levels):
        for name in _names_in(text, f"{path.name}: {place}"):
            if name not in known:
                raise InputError(
                    f"{path.name}: {place}", f"${{{name}}}", "no such word here", did_you_mean(name, known)
                )
            used.add(name)
    for name in values:
        if name not in used:
            raise InputError("ticket.values", name, f"is no word of {path.name}", did_you_mean(name, used))


def _places(
    template: TicketTemplate, site: frozenset[str], levels: frozenset[str]
) -> Iterator[tuple[str, frozenset[str], str]]:
    """Each text of the file, where it stands, and the words that may be in it."""
    for name in ("headers", "attach_headers"):
        yield from ((f"{name}.{key}", SECRETS | site, text) for key, text in getattr(template, name).items())
    for place, request in template.requests().items():
        named = {"id"} if place in ("find", "open") else {"id", "ticket"}
        narrow = frozenset(named) | site | ({"file", "sha256"} if place == "attach" else set())
        for in_body, text in request.texts():
            yield place, narrow | TEXTS | levels | {"file", "sha256"} if in_body else narrow, text


def _names_in(text: str, place: str) -> Iterator[str]:
    rest = _WORD.sub("", text)
    if "${" in rest:
        raise InputError(place, text, "has a word without an end", "close it, as in ${title}")
    yield from _WORD.findall(text)


def _leaves(value: Any, key: str = "") -> Iterator[tuple[str, Any]]:
    if isinstance(value, dict):
        # An empty table has no leaf by which its key would be seen.
        yield from ((name, "") for name in value)
        for name, inner in value.items():
            yield from _leaves(inner, name)
    elif isinstance(value, list):
        for inner in value:
            yield from _leaves(inner, key)
    else:
        yield key, value


def filled(text: str, words: Words, write: Callable[[str], str] = str) -> str:
    """`text` with the words in it as `write` gives them."""
    return _WORD.sub(lambda found: write(words[found[1]]), text)


def filled_path(text: str, words: Words) -> str:
    """The same for a path: no word begins another part of it."""
    return filled(text, words, lambda word: quote(word, safe=""))


def filled_json(value: Any, words: Words) -> Any:
    """`value` with the words in its texts, of the very same structure."""
    if isinstance(value, dict):
        return {key: filled_json(inner, words) for key, inner in value.items()}
    if isinstance(value, list):
        return [filled_json(inner, words) for inner in value]
    return filled(value, words) if isinstance(value, str) else value


def at_path(document: object, path: str) -> object:
    """What lies at `path` of an answer; None beyond the end of a list. Raises KeyError where it is shaped otherwise."""
    for step in path.split("."):
        if isinstance(document, dict):
            document = document[step]
        elif isinstance(document, list) and step.isdecimal():
            if int(step) >= len(document):
                return None
            document = document[int(step)]
        else:
            raise KeyError(step)
    return document
