"""Whatever a peer sends, nobody fails: neither the agent nor the training process."""

from __future__ import annotations

import json
import socket
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from tocsin.collector.training_hook.companion import HookCompanion
from tocsin.collector.training_hook.protocol import FIGURES, parse
from tocsin.collector.training_hook.server import HookServer
from tocsin.domain.batch import Batch
from tocsin.domain.clock import ManualClock
from tocsin.domain.reading import Gpu, Reading, sanitise
from tocsin.hook.watch import Orders
from tocsin.hook.wire import MAX_MESSAGE, REQUESTS
from tocsin.telemetry.metrics import OwnMetrics
from tocsin_testing.builders import T0

GPU = Gpu("GPU-5f2a4c30-1111-2222-3333-444455556666", "node-1")

anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner, max_size=4),
    max_leaves=12,
)
numbers = st.integers(0, 2**60) | st.floats(0, 1e18) | anything
devices = st.fixed_dictionaries(
    {},
    optional={"uuid": st.just(GPU.uuid) | st.text(max_size=40), "framework": st.just("torch") | anything}
    | dict.fromkeys(sorted(FIGURES), numbers),
)
messages = st.fixed_dictionaries(
    {"kind": st.sampled_from(["hello", "stats", "oom", "ack", "bye", "request"]) | anything},
    optional={
        "v": st.just(1) | anything,
        "devices": st.lists(devices | anything, max_size=3) | anything,
        "steps": numbers,
        "step_s": numbers,
        "every_s": numbers,
        "process": st.text() | anything,
        "requested": numbers,
        "free": numbers,
        "uuid": st.just(GPU.uuid) | anything,
        "id": st.text(max_size=5) | anything,
        "outcome": st.just("done") | anything,
        "seconds": numbers,
    },
)
packets = st.binary(max_size=400) | messages.map(lambda message: json.dumps(message).encode()) | st.just(b"[" * 5000)


@given(packets)
def test_a_packet_is_a_message_or_a_value_error(packet: bytes) -> None:
    try:
        found = parse(packet)
    except ValueError:
        return
    assert type(found).__module__ == parse.__module__


@settings(max_examples=60)
@given(st.lists(packets, max_size=12))
def test_the_agent_survives_any_peer_and_its_readings_stay_usable(sent: list[bytes]) -> None:
    clock, own = ManualClock(T0), OwnMetrics()
    with TemporaryDirectory() as folder, socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as client:
        server = HookServer(Path(folder, "s"), clock, own)
        companion = HookCompanion(server, own)
        try:
            client.connect(str(server.path))
            server.turn(0)
            for packet in sent:
                try:
                    client.send(packet[:MAX_MESSAGE])
                except OSError:
                    break
                server.turn(0)
                (reading,) = companion.enrich(Batch([Reading(GPU, T0, {"gpu_power_watts": 1.0})]), T0).readings
                assert sanitise(reading)[1] == []
                assert reading.values["gpu_power_watts"] == 1.0
        finally:
            companion.close()


@given(
    st.lists(
        st.fixed_dictionaries(
            {},
            optional={
                "id": st.text(max_size=3) | anything,
                "do": st.sampled_from(sorted(REQUESTS)) | anything,
                "expires_s": st.floats() | anything,
            },
        ),
        max_size=20,
    )
)
def test_a_process_survives_any_request_and_answers_each_once(requests: list[dict[str, Any]]) -> None:
    answers: list[dict[str, Any]] = []
    orders = Orders(lambda: 0.0, lambda: 0, answers.append)
    for request in requests:
        orders.take(request)
    orders.carry_out()
    asked = {request["id"] for request in requests if isinstance(request.get("id"), str) and request["id"]}
    assert {answer["id"] for answer in answers} == asked
    assert not orders.waiting
