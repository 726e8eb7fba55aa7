"""Words of the page of decisions: key, then English, then Chinese."""

from __future__ import annotations

STRINGS: dict[str, tuple[str, str]] = {
    "decisions.waiting": ("Waiting for a person", "等待人工处理"),
    "decisions.waiting.none": ("No decision waits for a person.", "没有等待人工处理的决策。"),
    "decisions.held": ("Held by guards", "被守卫暂缓"),
    "decisions.held.none": ("No other decision is held.", "没有其他被暂缓的决策。"),
    "decisions.other": ("Settled and running", "已处理与执行中"),
    "decisions.other.none": ("No decision has been settled yet.", "尚无已处理的决策。"),
    "decisions.none": ("No decision has been made yet.", "尚无决策。"),
    "decision.guards": (
        "What every guard said: {allow} allow, {hold} hold, {deny} deny",
        "各守卫的意见：{allow} 放行，{hold} 暂缓，{deny} 拒绝",
    ),
    "decision.approve": ("Approve", "批准"),
    "decision.reject": ("Reject", "拒绝"),
    "decision.reason": ("Reason for a rejection", "拒绝理由"),
    "decision.approved": ("Approved: {sentence}", "已批准：{sentence}"),
    "decision.rejected": ("Rejected: {sentence}", "已拒绝：{sentence}"),
    "decision.approved_by": ("approved by {who}", "由 {who} 批准"),
    "decision.rejected_by": ("rejected by {who}", "由 {who} 拒绝"),
    "decision.role": (
        "Needs a token of role operator; this one is {role}.",
        "需要 operator 角色的令牌；当前为 {role}。",
    ),
    "decision.made": ("{age} ago", "{age}前"),
    "decision.expires": ("expires in {time}", "{time}后过期"),
    "decision.until": ("until {time}", "至 {time}"),
    "decision.show_gpu": ("Show GPU", "查看 GPU"),
    "column.guard": ("Guard", "守卫"),
    "column.says": ("Says", "意见"),
    "column.why": ("Why", "原因"),
    "column.until": ("Until", "截止"),
    "column.when": ("When", "时间"),
    "column.decision": ("Decision", "决策"),
    "column.state": ("State", "状态"),
    "column.by": ("By", "经手人"),
}
