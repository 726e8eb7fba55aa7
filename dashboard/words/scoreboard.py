"""Words of the scoreboard: key, then English, then Chinese."""

from __future__ import annotations

STRINGS: dict[str, tuple[str, str]] = {
    "score.intro": (
        "What the rules would have done since {since}, whether or not they were allowed to, and what came of it.",
        "自 {since} 以来各规则本应采取的行动（无论是否获准），及其结果。",
    ),
    "score.decisions": ("Decisions", "决策"),
    "score.acted": ("Would have acted", "本应执行"),
    "score.acted.note": ("{n} carried out", "实际执行 {n} 个"),
    "score.held": ("Held now", "当前暂缓"),
    "score.confirmed": ("Confirmed", "已证实"),
    "score.confirmed.note": ("by a later event", "随后发生了事件"),
    "score.rate": ("Predictions right", "预测命中率"),
    "score.rate.note": ("{hits} of {settled}, {pending} open", "{settled} 个中 {hits} 个命中，{pending} 个待定"),
    "score.lead": ("Median lead time", "提前量中位数"),
    "score.lead.note": ("before the crossing", "越限前"),
    "score.by_rule": ("Decisions by rule, and what followed", "按规则的决策及其后果"),
    "score.by_guard": ("Held, by guard", "按守卫：暂缓"),
    "score.leads": ("Lead times of hits", "命中预测的提前量"),
    "score.leads.axis": ("hours", "小时"),
    "score.unconfirmed": ("Not confirmed", "未证实"),
    "score.pending": ("Still open", "待定"),
    "score.none": ("Nothing has been decided yet.", "尚无任何决策。"),
    "score.nothing_held": ("No guard has held anything.", "没有守卫暂缓过决策。"),
    "score.no_hits": ("No prediction has come true yet.", "尚无预测命中。"),
    "score.interval": (
        "{n} of {hits} crossings fell inside the stated interval.",
        "{hits} 次越限中有 {n} 次落在所述区间内。",
    ),
    "score.predictions": ("Predictions", "预测"),
    "score.made": ("Made", "已作出"),
    "score.hits": ("Came true in time", "如期命中"),
    "score.misses": ("Did not come true", "未命中"),
    "score.silent": ("Not enough data to say", "数据不足"),
    "score.table": ("By rule", "按规则"),
    "column.rule": ("Rule", "规则"),
    "column.action": ("Action", "动作"),
    "column.held_by": ("Held by", "暂缓者"),
}
