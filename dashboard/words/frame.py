"""Words of the frame around every page: key, then English, then Chinese."""

from __future__ import annotations

STRINGS: dict[str, tuple[str, str]] = {
    "page.overview": ("Now", "现在"),
    "page.gpu": ("GPU", "GPU 详情"),
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
    "role.viewer": ("viewer", "只读"),
    "role.operator": ("operator", "运维"),
    "role.admin": ("admin", "管理员"),
    "role.agent": ("agent", "代理"),
    "role.or": (" or ", "或"),
    "role.lacks": ("Your role is {role}; this needs {needed}.", "您的角色是{role}；此操作需要{needed}。"),
    "keys": ("Keys: 1 to 8 open the pages, Tab moves on.", "键盘：1 到 8 切换页面，Tab 依次移动。"),
    "login.title": ("Log in", "登录"),
    "login.user": ("Name", "用户名"),
    "login.password": ("Password", "密码"),
    "login.submit": ("Log in with password", "用密码登录"),
    "login.provider": ("Log in at your provider", "通过身份提供方登录"),
    "login.device": (
        "Open the provider's page, check that the code is the one below, and confirm.",
        "打开身份提供方的页面，核对下面的代码，然后确认。",
    ),
    "login.open": ("Open the provider's page", "打开身份提供方页面"),
    "login.code": ("Code", "代码"),
    "login.waiting": ("Waiting for your confirmation.", "正在等待您的确认。"),
    "login.late": ("The log-in was not confirmed; try again.", "登录未被确认，请重试。"),
    "login.refused": ("The log-in failed.", "登录失败。"),
    "login.ended": ("Your log-in has ended; log in again.", "登录已过期，请重新登录。"),
    "login.without": ("Go on without", "不登录，继续"),
    "logout": ("Log out", "退出登录"),
    "problem.down": ("The brain's API does not answer", "无法连接服务 API"),
    "problem.denied": ("The API refuses this dashboard's token", "API 拒绝了仪表板的令牌"),
    "problem.other": ("The API's answer cannot be used", "API 的回答无法使用"),
    "remedy.down": (
        "Start the brain with `tocsin brain`, or set TOCSIN_DASHBOARD__API_URL to its address. "
        "This page tries again by itself.",
        "请用 `tocsin brain` 启动服务，或将 TOCSIN_DASHBOARD__API_URL 设为其地址。本页会自动重试。",
    ),
    "remedy.denied": (
        "Set TOCSIN_DASHBOARD__API_TOKEN to a token of the setting `api.tokens` with role viewer or operator, "
        "or set up a log-in for people: `api.oidc` or `api.ldap`.",
        "请将 TOCSIN_DASHBOARD__API_TOKEN 设为配置项 `api.tokens` 中角色为 viewer 或 operator 的令牌，"
        "或配置人员登录：`api.oidc` 或 `api.ldap`。",
    ),
    "remedy.other": (
        "Check that dashboard and brain have the same version.",
        "请检查仪表板与服务的版本是否一致。",
    ),
}
