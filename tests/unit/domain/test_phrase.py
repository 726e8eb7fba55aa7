"""Phrases in two languages: every guard's, with the same values in both."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from itertools import product
from pathlib import Path

import pytest

import tocsin.actions
import tocsin.forecaster
import tocsin.rules
from tocsin.actions.loop.execution import INTERRUPTED
from tocsin.actions.loop.loop import OTHER_WORK
from tocsin.actions.loop.notifications import OVER_WHILE_WITHHELD, UNWANTED
from tocsin.actions.planning.state import GUESSED, UNMANAGED, UNSEEN
from tocsin.domain.finding import Severity
from tocsin.domain.phrase import MOST_VALUES, Phrase, chinese_phrases, in_chinese, names_in, say, say_all, say_count
from tocsin.forecaster.diagnosis.stages import REMEDIES
from tocsin.rules.catalogue import csv_rows
from tocsin.rules.layout import FAMILIES
from tocsin.rules.load import load_rules
from tocsin.rules.sxid import shipped_sxids
from tocsin.rules.xid import xid

ACTIONS = Path(next(iter(tocsin.actions.__path__)))
PLANNERS = ("defragment", "follow", "foresight", "placement", "power", "scaling", "simulation", "units")
SPEAKING = (
    *(f"planning/{name}" for name in PLANNERS),
    *(
        "model/cost",
        "model/earning",
        "model/policy",
        "loop/rule_watch",
        "model/goals",
        "model/sentences",
        "loop/decide",
        "loop/execution",
        "loop/loop",
    ),
    *(f"executors/{path.stem}" for path in sorted((ACTIONS / "executors").glob("*.py"))),
    *("kubernetes/actions", "kubernetes/drain", "slurm/nodes", "cloud/auto_scaling"),
)
GUARDS = sorted((ACTIONS / "guards").glob("*.py"))
FORECASTER = Path(next(iter(tocsin.forecaster.__path__)))
RULES = Path(next(iter(tocsin.rules.__path__)))
SPEAKERS = [
    *(ACTIONS / f"{name}.py" for name in SPEAKING),
    *(FORECASTER / f"{name}.py" for name in ("trend/seasonal", "trend/model_threshold")),
    *(FORECASTER / f"{name}.py" for name in ("capacity/filling", "hazard/scorer")),
    *(RULES / f"conditions/{name}.py" for name in ("growth", "missing_family", "peer", "stuck")),
]
COUNTED = ("GPU", "host", "node", "piece", "step")
PEOPLE = ("paused by {who} at {at}", "rejected by {who}")
SILENCES = ("acknowledged", "snoozed", "maintenance planned")
APPROVAL = "waits for a person: tocsin approve {id}"
NEEDED = ("", "; host {host} is the only one that is managed", "; host {host} holds all of pool {pool}")
MADE_OF_PARTS = (
    *(f"{one}{why}" for one, why in product(PEOPLE, ("", ": {reason}"))),
    *(
        f"{one}{what} by {{who}} until {{at}}{why}"
        for one, what, why in product(SILENCES, ("", " for {kind} {name}"), ("", ": {reason}"))
    ),
    *(str(say_count(n, one)).replace(str(n), "{n}") for n, one in product((1, 2), COUNTED)),
    *(UNMANAGED, UNSEEN, GUESSED, INTERRUPTED, OTHER_WORK, UNWANTED, OVER_WHILE_WITHHELD, *REMEDIES.values()),
    *FAMILIES,
    *(f"{{n}} {unit}" for unit in ("error", "errors", "job", "jobs", "GPU", "GPUs")),
    *(f"{APPROVAL}{needed}{why}" for needed, why in product(NEEDED, ("", "; {why}"))),
)


def reasons(tree: ast.AST) -> Iterator[ast.expr]:
    """What guards give as their reason."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id in ("Hold", "Deny"):
            yield node.args[0]


def templates(tree: ast.AST) -> Iterator[str]:
    """Texts with names in braces that are no part of a larger one, and what `say` is given."""
    parts = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in node.values}
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) and node.func.id == "say":
            yield from (str(one.value) for one in node.args if isinstance(one, ast.Constant))
        elif isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in parts:
            whole = re.search(r"\{[a-z_]+\}", node.value) and not node.value.startswith((" ", ":", "{why}"))
            yield from [node.value] if whole else []


@pytest.mark.parametrize("path", GUARDS, ids=lambda path: path.stem)
def test_no_guard_gives_a_reason_that_is_a_text_alone(path: Path) -> None:
    for reason in reasons(ast.parse(path.read_text(encoding="utf-8"))):
        assert not isinstance(reason, ast.Constant | ast.JoinedStr), ast.unparse(reason)


@pytest.mark.parametrize("path", [*GUARDS, *SPEAKERS], ids=lambda path: path.stem)
def test_every_template_is_told_in_chinese(path: Path) -> None:
    assert set(templates(ast.parse(path.read_text(encoding="utf-8")))) <= chinese_phrases().keys()


@pytest.mark.parametrize("template", MADE_OF_PARTS)
def test_what_is_made_of_parts_is_told_in_chinese(template: str) -> None:
    assert template in chinese_phrases()


def test_every_shipped_rule_speaks_chinese() -> None:
    assert {rule.table.alert for rule in load_rules()} <= chinese_phrases().keys()


def test_every_xid_and_sxid_and_every_remedy_is_told_in_chinese() -> None:
    xids, sxids = csv_rows("xid_catalogue.csv"), csv_rows("sxid_catalogue.csv")
    decoded = [row["immediate"] for name in ("xid_nvlink5.csv", "xid_nvlink_registers.csv") for row in csv_rows(name)]
    words = {row["help"] for row in (*xids, *sxids)}
    words |= {word.upper() for word in (*(row["vendor_action"] for row in xids), *decoded)}
    words |= {row["vendor_action"].replace("_", " ") for row in sxids}
    assert len(words) > 150
    assert words <= chinese_phrases().keys()
    assert xid(999).help_zh == "目录中没有的编号"
    assert shipped_sxids().seen(20034, Severity.CRITICAL).help_zh == "原本正常的链路已断开"
    fatal = shipped_sxids().seen(20001, Severity.CRITICAL).help_zh
    assert fatal.endswith("说明链路或线缆有问题；交换机自身称其致命，因此至少终止一个分区")


def test_guards_are_looked_at() -> None:
    found = [name for path in GUARDS for name in templates(ast.parse(path.read_text(encoding="utf-8")))]
    assert len(set(found)) > 30


@pytest.mark.parametrize("template", sorted(chinese_phrases()))
def test_both_languages_name_the_same_values(template: str) -> None:
    chinese = chinese_phrases()[template]
    assert names_in(chinese) == names_in(template)
    assert chinese != template or template == "GPU" or not re.search("[a-z]", re.sub(r"\{\w+\}", "", template))


def test_a_phrase_is_told_in_both() -> None:
    said = say("{kind} {place} has {n} under action already, at most {most}", kind="rack", place="r7", n=2, most=2)
    assert str(said) == "rack r7 has 2 under action already, at most 2"
    assert in_chinese(said) == "机架 r7 已有 2 个正在处理，最多 2 个"


def test_what_people_named_stays_as_they_named_it() -> None:
    said = say("Add {nodes} to pool {pool}.", nodes=say_count(1, "node"), pool="power")
    assert in_chinese(said) == "为资源池 power 增加 1 个节点。"


def test_clauses_are_told_in_both() -> None:
    each = [say("{hosts}: {reason}", hosts=say_count(n, "host"), reason="too few CPUs") for n in (1, 2000)]
    said = say("it fits nowhere now ({reasons})", reasons=say_all(each))
    assert str(said) == "it fits nowhere now (1 host: too few CPUs; 2,000 hosts: too few CPUs)"
    assert in_chinese(said) == "目前无处可放（1 台主机：CPU 不足；2,000 台主机：CPU 不足）"


@pytest.mark.parametrize(
    "phrase",
    [
        None,
        Phrase("a sentence of a site's own guard"),
        Phrase("{gpu} is not healthy"),
        Phrase("{gpu} is not healthy", {"gpu": "g", **{str(n): "" for n in range(MOST_VALUES)}}),
    ],
)
def test_what_cannot_be_told_in_chinese_is_left_to_the_english(phrase: Phrase | None) -> None:
    assert in_chinese(phrase) == ""
