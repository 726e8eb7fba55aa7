"""What strangers write is parsed in work that grows with its bytes alone, and what cannot be parsed is said.

A quadratic parser needs minutes for each of these texts; the bound leaves a slow machine room.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from tempfile import NamedTemporaryFile

import pytest

from tocsin.actions.kubernetes.api import quantity, whole
from tocsin.actions.slurm.comments import CommentTag, note_of, put, turn
from tocsin.actions.slurm.rest_calls import ping_lines, problems_of, served_of
from tocsin.actions.slurm.state import expand, gpus_by_node, jobs_of_text, nodes_of_text, states_of_text
from tocsin.collector.dcgm.dcgmi import discovered, dmon_row, instances, listed_fields
from tocsin.collector.dcgm.exporter import read_page
from tocsin.collector.dcgm.exposition import Heads
from tocsin.collector.kernel_log.parser import KernelLogParser, KernelRecord, parse_line
from tocsin.collector.kernel_log.readers import decode_any, decode_journal, decode_kmsg, decode_text
from tocsin.collector.npu_smi.plugin_faults import PluginFileError, parse_plugin_faults
from tocsin.collector.npu_smi.text import NpuError, codes_of, parse_info, parse_keys, parse_mapping
from tocsin.collector.nvidia_smi.formats import SmiError, parse_csv, parse_xml
from tocsin.collector.prometheus_history.answers import NotAnAnswer, parse_matrix, parse_newest
from tocsin.collector.redfish.client import MAX_BYTES, RedfishFailed, _document
from tocsin.collector.redfish.walk import Walk
from tocsin.collector.source import NodeIdentity
from tocsin.collector.training_hook.protocol import parse
from tocsin.config.load import load_settings
from tocsin.domain.errors import InputError
from tocsin.hook.wire import MAX_MESSAGE
from tocsin.rules.load import parse_rules
from tocsin_testing.vendor_facts import npu_table

SIZE = 100_000
MOST_SECONDS = 2.0
REFUSED = (SmiError, NotAnAnswer, InputError, NpuError, PluginFileError, ValueError)
"""How parsers say that a text is none of theirs; anything else would end their reader."""


def dcgm(text: str) -> None:
    read_page(text, Heads(NodeIdentity("h")))


def dcgmi(text: str) -> None:
    for line in text.splitlines():
        dmon_row(line, 4)
    discovered(text)
    instances(text)
    listed_fields(text)


def kernel(text: str) -> None:
    parser = KernelLogParser()
    for line in (text, *text.splitlines()[:2_000]):
        parse_line(line)
        list(parser.feed(KernelRecord(line, 1)))
    raw = text.encode("utf-8", "replace")
    decode_any(raw)
    decode_journal(raw)
    decode_kmsg(raw, 0)
    decode_text(text)


def history(text: str) -> None:
    raw = text.encode("utf-8", "replace")
    try:
        parse_matrix(raw)
    finally:
        parse_newest(raw)


def hook(text: str) -> None:
    parse(text.encode("utf-8", "replace")[:MAX_MESSAGE])


def rules(text: str) -> None:
    parse_rules(text, "rules.toml")


def settings(text: str) -> None:
    with NamedTemporaryFile("w", suffix=".toml", encoding="utf-8", errors="replace") as file:
        file.write(text)
        file.flush()
        load_settings(Path(file.name), environ={})


def slurm(text: str) -> None:
    nodes_of_text(text)
    states_of_text(text)
    jobs_of_text(text)
    gpus_by_node(("n1",), [text])
    mark = CommentTag("drain", "0" * 16, 1)
    turn(put(text, mark), "drain", "drained")
    note_of(text)
    expand(text)


def slurmrestd(text: str) -> None:
    problems_of(text)
    ping_lines(text)
    served_of(text)


def npu_smi(text: str) -> None:
    parse_keys(text)
    parse_mapping(text)
    codes_of(text)
    parse_info(text)


def redfish(text: str) -> None:
    """A controller that answers every question with one resource, or with none."""
    try:
        found = _document(text.encode("utf-8", "replace")[:MAX_BYTES])
    except RedfishFailed:
        return
    Walk(lambda _path: found).run()


def quantities(text: str) -> None:
    quantity(text)
    whole(text)
    for part in text.split(",")[:100]:
        quantity(part)


PARSERS: dict[str, Callable[[str], object]] = {
    "slurm": slurm,
    "slurmrestd": slurmrestd,
    "npu-smi": npu_smi,
    "Ascend device plugin": parse_plugin_faults,
    "Redfish": redfish,
    "Kubernetes quantity": quantities,
    "dcgm": dcgm,
    "dcgmi": dcgmi,
    "nvidia-smi XML": parse_xml,
    "nvidia-smi CSV": parse_csv,
    "kernel log": kernel,
    "Prometheus history": history,
    "hook": hook,
    "rules": rules,
    "settings": settings,
}
MATRIX = '{"status":"success","data":{"resultType":"matrix","result":['
SERIES = '{"metric":{"a":"b"},"values":[[1,"2"],[3,"4"]]},'
TEXTS: dict[str, Callable[[int], str]] = {
    "one letter": lambda n: "x" * n,
    "blanks": lambda n: " " * n,
    "quotes": lambda n: '"' * n,
    "backslashes": lambda n: "\\" * n,
    "line ends": lambda n: "\n" * n,
    "brackets": lambda n: "[" * n,
    "braces": lambda n: '{"a":' * (n // 5),
    "digits": lambda n: "9" * n,
    "commas": lambda n: "," * n,
    "NUL": lambda n: "\0" * n,
    "labels of one sample": lambda n: "DCGM_FI_DEV_GPU_TEMP{" + 'a="b",' * (n // 6) + "} 1",
    "an open label": lambda n: 'DCGM_FI_DEV_GPU_TEMP{a="' + "\\" * n + " 1",
    "labels that stay open": lambda n: 'DCGM_FI_DEV_GPU_TEMP{a="b\n' * (n // 27),
    "samples": lambda n: "".join(f'DCGM_FI_DEV_GPU_TEMP{{gpu="0",UUID="GPU-{i}"}} 1\n' for i in range(n // 50)),
    "braces of a sample": lambda n: "DCGM_FI_DEV_GPU_TEMP" + "{}" * (n // 2) + " 1",
    "an Xid that never ends": lambda n: "NVRM: Xid (PCI:0000:05:00): 79, " + "pid='" * (n // 5),
    "many Xid marks": lambda n: "NVRM: Xid (" * (n // 11),
    "many SXid marks": lambda n: "nvidia-nvswitch3: SXid (PCI:" * (n // 28),
    "NVLink words": lambda n: "NVRM: Xid (PCI:0000:05:00): 74, link 1 (" + "0x1, " * (n // 5),
    "nearly off the bus": lambda n: "NVRM: GPU 0000:05:00.0: " * (n // 24) + "xfallen off the bus",
    "off the bus": lambda n: "NVRM: GPU 0000:05:00.0: " * (n // 24) + "fallen off the bus",
    "loading": lambda n: "NVRM: loading NVIDIA UNIX " * (n // 26),
    "loading with digits": lambda n: "NVRM: loading NVIDIA UNIX " + "1." * (n // 2),
    "to the verdict": lambda n: "NVRM: Xid (PCI:0000:05:00): 154, " + "to (" * (n // 4),
    "XML in XML": lambda n: "<nvidia_smi_log>" + "<gpu>" * (n // 5),
    "XML of entities": lambda n: (
        '<!DOCTYPE a [<!ENTITY a "aaaaaaaaaa">'
        + "".join(f'<!ENTITY {chr(98 + i)} "{f"&{chr(97 + i)};" * 10}">' for i in range(12))
        + "]><nvidia_smi_log><gpu><uuid>&m;</uuid></gpu></nvidia_smi_log>"
    ),
    "processes": lambda n: (
        "<nvidia_smi_log><gpu><uuid>G</uuid><processes>"
        + "".join(f"<process_info><pid>{i}</pid></process_info>" for i in range(n // 45))
        + "</processes></gpu></nvidia_smi_log>"
    ),
    "columns": lambda n: "index, uuid" + ", a" * (n // 3) + "\n0, G" + ", 1" * (n // 3),
    "cells of digits": lambda n: "index, uuid, power.draw [W]\n0, G, " + "9" * n,
    "series": lambda n: MATRIX + (SERIES * (n // len(SERIES)))[:-1] + "]}}",
    "one series": lambda n: MATRIX + '{"metric":{},"values":[' + ('[1,"2"],' * (n // 8))[:-1] + "]}]}}",
    "values that stay open": lambda n: MATRIX + '{"metric":{},"values":[[' * (n // 24),
    "dotted keys": lambda n: "a" + ".a" * min(n // 2, 200) + " = 1",
    "nested tables": lambda n: "a = " + "[" * (n // 2) + "]" * (n // 2),
    "inline tables": lambda n: "a = " + "{a = " * (n // 5),
    "tables": lambda n: "".join(f"[t{i}]\n" for i in range(n // 8)),
    "an open string": lambda n: 'a = """' + "\\\n" * (n // 2),
    "rules without end": lambda n: "[[rules]]\n" * (n // 10),
    "deep hook": lambda n: '{"kind":"stats","v":1,"devices":' + "[" * n,
    "hook of long numbers": lambda n: '{"kind":"stats","v":1,"steps":' + "9" * 4_000 + "}",
    "ranges of hosts": lambda n: "n[" + ("1-99999," * (n // 8))[:-1] + "]",
    "wide numbers of hosts": lambda n: "n[" + "0" * 4_000 + "1-99999]",
    "host lists": lambda n: "n[1-9]," * (n // 7),
    "brackets of hosts": lambda n: "n" + "[0-9]" * (n // 5),
    "fields of a node": lambda n: "NodeName=n1 State=IDLE " + "Reason=x Comment=y " * (n // 19),
    "gres of a node": lambda n: "NodeName=n1 State=IDLE Gres=" + "gpu:h100:8(S:0-1)," * (n // 18),
    "open gres": lambda n: "NodeName=n1 State=IDLE Gres=" + "gpu:(" * (n // 5),
    "indices of a job": lambda n: "JobId=1 NodeList=n1 Nodes=n1 CPU_IDs=0 Mem=0 GRES=" + "gpu:8(IDX:0-7)," * (n // 15),
    "ranges of indices": lambda n: "gpu:8(IDX:" + ("0-99999," * (n // 8))[:-1] + ")",
    "marks in a comment": lambda n: f"tocsin/drain/{'0' * 16}/1 " * (n // 32),
    "nodes": lambda n: "NodeName=n1 State=IDLE\n" * (n // 23),
    "chips": lambda n: (
        "| 0     910B4               | OK            | 131.1       48                0    / 0     |\n" * (n // 96)
    ),
    "bars of a table": lambda n: "|" * n,
    "keys of a chip": lambda n: "\tHBM Single Bit Error Count     : 4\n" * (n // 36),
    "a key without end": lambda n: "\tkey" + " " * n + ":",
    "codes of a chip": lambda n: "Error Code : " + "80E01801 " * (n // 9),
    "faults of a plugin": lambda n: json.dumps(
        {
            "DeviceInfo": {
                "DeviceList": {"huawei.com/Ascend910-Fault": json.dumps([{"npu_name": "Ascend910-0"}] * (n // 30))}
            }
        }
    ),
    "members of a controller": lambda n: json.dumps(
        {"@odata.id": "/a", "Chassis": {"@odata.id": "/a"}, "Members": [{"@odata.id": "/a"}] * (n // 20)}
    ),
    "digits of a quantity": lambda n: "9" * n + "Ei",
    "a long exponent": lambda n: "1e" + "9" * n,
    "quantities": lambda n: "1e99," * (n // 5),
    "devices": lambda n: json.dumps({"kind": "stats", "v": 1, "devices": [{"uuid": "GPU-1"}] * (n // 16)}),
}


def said(parser: str, text: str) -> str:
    """Why the text is refused; empty where it is not."""
    try:
        PARSERS[parser](text)
    except REFUSED as error:
        return str(error)
    return ""


@pytest.mark.parametrize("text", TEXTS)
@pytest.mark.parametrize("parser", PARSERS)
def test_work_is_bounded_and_what_is_none_is_said(parser: str, text: str) -> None:
    written = TEXTS[text](SIZE)
    begun = time.process_time()
    assert len(said(parser, written)) < 2_000
    assert time.process_time() - begun < MOST_SECONDS


@pytest.mark.parametrize("parser", PARSERS)
@pytest.mark.parametrize("depth", [900, 5_000, 100_000])
def test_depth_is_refused(parser: str, depth: int) -> None:
    for one in ("[" * depth, '{"a":' * depth, "a = " + "[" * depth, MATRIX + "[" * depth):
        said(parser, one)


def test_every_parser_is_tried_with_its_own_text() -> None:
    """The texts reach behind the first look of each parser."""
    assert read_page(TEXTS["samples"](1_000), Heads(NodeIdentity("h"))).rows
    assert parse_xml(TEXTS["processes"](1_000))
    assert parse_csv(TEXTS["columns"](100))
    assert parse_matrix(TEXTS["series"](1_000).encode()).lines
    assert nodes_of_text(TEXTS["nodes"](100))
    assert expand(TEXTS["host lists"](70))
    assert parse_info(npu_table([(0, "OK", "0000:D8:00.0", "131.1", 48)]))
    assert parse_keys(TEXTS["keys of a chip"](100))
    assert parse_plugin_faults(TEXTS["faults of a plugin"](100)) == []
    assert quantity("1e99") == 1e99
    assert partial(parse_line, TEXTS["NVLink words"](100))() is not None
