"""What a vLLM server says at ``/metrics``."""

from __future__ import annotations

import math
from collections.abc import Mapping

from prometheus_client.parser import text_string_to_metric_families

NAMES: Mapping[str, str] = {
    "vllm:kv_cache_usage_perc": "vllm_kv_cache_usage_ratio",
    "vllm:gpu_cache_usage_perc": "vllm_kv_cache_usage_ratio",
    "vllm:num_requests_running": "vllm_requests_running",
    "vllm:num_requests_waiting": "vllm_requests_waiting",
    "vllm:num_requests_swapped": "vllm_requests_swapped",
    "vllm:num_preemptions_total": "vllm_preemptions_total",
    "vllm:num_preemptions": "vllm_preemptions_total",
    "vllm:prompt_tokens_total": "vllm_prompt_tokens_total",
    "vllm:generation_tokens_total": "vllm_generation_tokens_total",
    "vllm:e2e_request_latency_seconds_sum": "vllm_request_latency_seconds_total",
    "vllm:e2e_request_latency_seconds_count": "vllm_requests_finished_total",
    "vllm:time_to_first_token_seconds_sum": "vllm_first_token_seconds_total",
}
"""Sample name to metric. ``gpu_cache_usage_perc`` is the older name of ``kv_cache_usage_perc``; despite their names
both are shares from 0 to 1."""

FULLEST = frozenset({"vllm_kv_cache_usage_ratio"})
"""Metrics of which the engine with the largest value counts; of the others all engines and models together."""


def read_page(text: str) -> dict[str, float]:
    """Metric to value, of the metrics that the page has. Raises ValueError where it is no such page."""
    found: dict[str, float] = {}
    try:
        for family in text_string_to_metric_families(text):
            for sample in family.samples:
                metric = NAMES.get(sample.name)
                if metric is None or not math.isfinite(sample.value):
                    continue
                known = found.get(metric, 0.0)
                found[metric] = max(known, sample.value) if metric in FULLEST else known + sample.value
    except (ValueError, KeyError, IndexError, AttributeError, TypeError) as error:
        # The parser of prometheus-client answers malformed lines with whatever it stumbles over.
        raise ValueError(f"the page cannot be read ({error})") from None
    if not found:
        raise ValueError("the page has no metric of vLLM")
    return found
