"""Words of the frame around every page: key, then English, then Chinese."""

from __future__ import annotations

STRINGS: dict[str, tuple[str, str]] = {
    "page.overview": ("Overview", "总览"),
    "page.gpu": ("GPU detail", "GPU 详情"),
    "page.decisions": ("Decisions", "决策"),
    "page.scoreboard": ("Scoreboard", "记分板"),
    "language": ("Language", "语言"),
    "simulated": ("Simulated", "模拟"),
    "simulated.banner": (
        "GPUs, faults and readings are made up",
        "其中的 GPU、故障和读数均为虚构",
    ),
    "mode": ("Mode: {mode}", "模式：{mode}"),
    "paused": ("Paused by {who}", "已被 {who} 暂停"),
    "breaker.tripped": ("Breaker tripped, root causes: {n}", "熔断器已跳闸：{n} 个根因"),
    "reading.age": ("Newest reading {age} ago", "最新读数：{age}前"),
    "reading.none": ("No reading yet", "尚无读数"),
    "problem.down": ("The brain's API does not answer", "无法连接服务 API"),
    "problem.denied": ("The API refuses this dashboard's token", "API 拒绝了仪表板的令牌"),
    "problem.other": ("The API's answer cannot be used", "API 的回答无法使用"),
    "remedy.down": (
        "Start the brain with `tocsin brain`, or set TOCSIN_DASHBOARD__API_URL to its address. "
        "This page tries again by itself.",
        "请用 `tocsin brain` 启动服务，或将 TOCSIN_DASHBOARD__API_URL 设为其地址。本页会自动重试。",
    ),
    "remedy.denied": (
        "Set TOCSIN_DASHBOARD__API_TOKEN to a token of the setting `api.tokens` with role viewer or operator.",
        "请将 TOCSIN_DASHBOARD__API_TOKEN 设为配置项 `api.tokens` 中角色为 viewer 或 operator 的令牌。",
    ),
    "remedy.other": (
        "Check that dashboard and brain have the same version.",
        "请检查仪表板与服务的版本是否一致。",
    ),
}
