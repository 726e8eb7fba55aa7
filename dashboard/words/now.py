"""Words of the page of what is now: key, then English, then Chinese."""

from __future__ import annotations

STRINGS: dict[str, tuple[str, str]] = {
    "kpi.gpus": ("GPUs", "GPU 数"),
    "kpi.gpus.note": ("hosts: {hosts}, pools: {pools}", "{hosts} 台主机，{pools} 个池"),
    "kpi.critical": ("Critical or lost", "严重或失联"),
    "kpi.critical.note": ("{critical} critical, {lost} lost", "{critical} 个严重，{lost} 个失联"),
    "kpi.warning": ("Warning", "警告"),
    "kpi.warning.note": ("{stale} without fresh data", "{stale} 个无新数据"),
    "kpi.predictions": ("Predicted crossings", "预计越限"),
    "kpi.predictions.note": ("of a threshold, ahead", "预测范围内"),
    "kpi.decisions": ("Waiting for you", "待您处理"),
    "kpi.decisions.note": ("decisions held: {held}", "共 {held} 个决策被暂缓"),
    "kpi.load": ("Load", "负载"),
    "kpi.load.note": ("memory {memory}, {power}", "显存 {memory}，{power}"),
    "fleet": ("Fleet", "集群"),
    "fleet.hint": (
        "One column a host, one row a GPU. Click a cell for its detail.",
        "每列一台主机，每行一块 GPU。点击单元格查看详情。",
    ),
    "colour.state": ("State", "状态"),
    "colour.temperature": ("Temperature", "温度"),
    "colour.utilization": ("Utilization", "利用率"),
    "colour.memory": ("Memory", "显存"),
    "attention": ("Needs attention now", "需要立即关注"),
    "attention.none": (
        "Nothing needs attention: no finding, no predicted crossing.",
        "一切正常：无异常发现，也无预计越限。",
    ),
    "attention.decisions": ("Decisions waiting for a person: {n}", "{n} 个决策等待人工处理"),
    "attention.more": ("and {n} more", "另有 {n} 项"),
    "finding.ended": ("ended {age} ago", "{age}前结束"),
    "finding.since": ("for {age}", "已持续 {age}"),
    "eta": ("in {time}", "{time}后"),
    "eta.range": ("between {low} and {high}", "{low}至{high}之间"),
    "eta.open": ("not before {low}", "不早于{low}"),
    "no_gpus": ("No GPU has reported yet.", "尚无 GPU 上报数据。"),
    "no_gpus.remedy": ("Start an agent on a node: tocsin agent.", "请在节点上启动代理：tocsin agent。"),
}
