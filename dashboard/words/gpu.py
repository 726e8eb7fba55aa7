"""Words of the page of one GPU: key, then English, then Chinese."""

from __future__ import annotations

STRINGS: dict[str, tuple[str, str]] = {
    "gpu.choose": ("GPU", "GPU"),
    "gpu.unknown": ("No GPU {uuid} has been read; choose one.", "没有 GPU {uuid} 的读数；请选择其他 GPU。"),
    "gpu.span": ("Time span", "时间范围"),
    "gpu.metrics": ("Metrics", "指标"),
    "gpu.state": ("State", "状态"),
    "gpu.temperature": ("Temperature", "温度"),
    "gpu.utilization": ("Utilization", "利用率"),
    "gpu.memory": ("Memory", "显存"),
    "gpu.power": ("Power", "功率"),
    "gpu.findings": ("Findings", "异常发现"),
    "gpu.findings.none": ("No active finding.", "无活动的异常发现。"),
    "gpu.predictions": ("Predictions", "预测"),
    "gpu.predictions.none": ("No prediction yet.", "尚无预测。"),
    "gpu.events": ("Events", "事件"),
    "gpu.events.none": ("No event on record.", "无事件记录。"),
    "gpu.decisions": ("Decisions", "决策"),
    "gpu.decisions.none": ("No decision about this GPU.", "没有关于此 GPU 的决策。"),
    "gpu.values": ("Newest values: {n}", "全部 {n} 项最新数值"),
    "gpu.missing": ("Metrics without a value: {n}", "{n} 项指标没有数值"),
    "gpu.no_series": ("No value of these metrics in this time span.", "此时间范围内这些指标没有数值。"),
    "chart.forecast": ("forecast", "预测"),
    "chart.interval": ("{p} interval", "{p} 区间"),
    "chart.threshold": ("threshold", "阈值"),
    "column.metric": ("Metric", "指标"),
    "column.value": ("Value", "数值"),
    "column.unit": ("Unit", "单位"),
    "column.reason": ("Reason", "原因"),
}
