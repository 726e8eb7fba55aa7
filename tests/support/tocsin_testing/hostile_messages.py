"""Notifications in which every text is hostile."""

from __future__ import annotations

from dataclasses import replace

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st

from tocsin.actions.notifications.channel import Phase, message_of
from tocsin.domain.decision import Decision, parameters_of
from tocsin.domain.finding import ActionKind, Subject, SubjectKind
from tocsin_testing.notify_world import DECISION

_BAD = [
    "<!everyone> <!here> <@U123> <https://evil.example|click>",
    "@all @everyone @channel @here @13800000000",
    '<at user_id="all">everyone</at> <at id=all></at>',
    "![x](https://evil.example/pixel.png) [a](javascript:alert(1)) **b** `c` ```d```",
    "\r\nBcc: crowd@example.com\r\n\r\nbody",
    "\x00\x07\x1b[31m\u202e\u200b\ufeff\ud800",
    '"}],"at":{"isAtAll":true},"x":[{"',
    "{{ .Labels }} {% raw %} ${jndi:ldap://x}",
    "\u2028\u2029\x85",
    "${secret} ${basic} $${title} ${",
    "{code}[~admin]!http://evil.example/x.png! [code]<script>[/code]",
]
TEXTS = st.one_of(
    st.text(st.characters(), max_size=60),
    st.sampled_from(_BAD),
    st.sampled_from([word * 10_000 for word in ("a", "@", "\u4e2d", "\U0001f600", "<at ", '"', "\n", "\\")]),
    st.lists(st.sampled_from(_BAD), max_size=4).map("".join),
)


NAMES = st.sampled_from(["pool", "forecast_zh", "intended", "proposes"])


@st.composite
def decisions(draw: st.DrawFn) -> Decision:
    """A notification in which every text is hostile."""
    kind = draw(st.sampled_from(SubjectKind))
    return replace(
        DECISION,
        rule=draw(TEXTS),
        subject=Subject(kind, draw(TEXTS), draw(TEXTS), draw(TEXTS), draw(TEXTS)),
        sentence=draw(TEXTS),
        # The journal takes no half of a surrogate pair, and a decision is there first.
        key=draw(st.text(max_size=600)),
        parameters=parameters_of(ActionKind.NOTIFY, draw(st.dictionaries(NAMES, TEXTS))),
    )


MESSAGES = st.builds(
    lambda found, phase, at_ms: message_of(found, phase, at_ms),
    st.lists(decisions(), min_size=1, max_size=3),
    st.sampled_from(Phase),
    st.just(DECISION.at_ms),
)
FEW = settings(max_examples=40, suppress_health_check=[HealthCheck.too_slow])
