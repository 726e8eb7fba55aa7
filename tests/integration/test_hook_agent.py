"""From a process's packet and a vLLM page to the agent's `/metrics`, by settings alone."""

from __future__ import annotations

import os
import socket
from pathlib import Path

from prometheus_client import generate_latest
from pytest_httpserver import HTTPServer

from tocsin.config.settings import Settings
from tocsin.domain.batch import Batch
from tocsin.domain.clock import SystemClock
from tocsin.domain.reading import Gpu, Reading
from tocsin.hook.wire import pack
from tocsin.runtime.agent.process import Agent
from tocsin.store.line_protocol.decode import decode
from tocsin.store.line_protocol.encode import encode
from tocsin_testing.builders import gpu

PAGE = Path(__file__).parents[1] / "data" / "vllm" / "metrics_v1.txt"


class OneGpu:
    """A source of one idle GPU."""

    name = "one"

    def gpus(self) -> list[Gpu]:
        return [gpu(0)]

    def read(self, now_ms: int) -> Batch:
        return Batch([Reading(gpu(0), now_ms, {"gpu_power_watts": 90.0})])

    def close(self) -> None:
        """Nothing is held."""


def test_what_processes_say_is_exported_and_spooled_like_any_metric(tmp_path: Path, httpserver: HTTPServer) -> None:
    httpserver.expect_request("/metrics").respond_with_data(PAGE.read_text())
    path = tmp_path / "hook.sock"
    settings = Settings.model_validate(
        {
            "agent": {
                "hook_socket": str(path), "vllm_urls": [httpserver.url_for("/metrics")], "kernel_log": "off",
                "attribution": False, "spool": tmp_path / "spool.db",
            }
        }
    )  # fmt: skip
    clock = SystemClock()
    agent = Agent(settings, OneGpu(), clock)
    try:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as process:
            process.connect(str(path))
            device = {"uuid": gpu(0).uuid, "framework": "torch", "reserved": 40, "allocated": 30, "inactive_split": 4}
            process.send(pack({"v": 1, "kind": "stats", "steps": 12, "devices": [device]}))
            end = clock.monotonic() + 30
            wanted = {"vllm_kv_cache_usage_ratio", "gpu_allocator_processes"}
            batch = agent.read()
            while not wanted <= batch.readings[0].values.keys():
                assert clock.monotonic() < end, "nothing came in time"
                batch = agent.read()
        page = generate_latest(agent.registry).decode()
        pid = os.getpid()
        labels = f'gpu_index="0",gpu_uuid="{gpu(0).uuid}",host="node-1",model="{gpu(0).model}"'
        assert f'gpu_allocator_cache_slack_ratio{{{labels},pid="{pid}",pool="default"}} 0.25' in page
        assert f'gpu_process_steps_total{{{labels},pid="{pid}",pool="default"}} 12.0' in page
        assert f'vllm_kv_cache_usage_ratio{{{labels},pool="default"}} 0.8125' in page
        decoded = decode(encode(batch), precision="ms", now_ms=clock.now_ms())
        assert not decoded.rejected
        assert dict(decoded.batch.readings[0].values) == dict(batch.readings[0].values)
    finally:
        agent.close()
    assert not path.exists()
