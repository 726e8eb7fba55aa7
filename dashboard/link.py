"""The view in the URL: whoever opens the link sees the same page, GPU, range, colour, filters and language.

Every choice of a page goes through here: `pick` and `pick_many` draw a row of choices that is kept in the URL, `read`
and `write` do the same for any other widget, and `target` gives the parameters for a link to another page (it carries
the language). A parameter has one meaning on all pages; a value that equals its default is left out of the URL. What a
person chose last is remembered while the browser's tab is open, so that it is still chosen when they come back to the
page. Never put a secret through here.

    colour = link.pick("colour", text("fleet.colour"), ["state", "heat"], "state", lambda name: text(f"colour.{name}"))
    st.page_link(GPU_PAGE, label="...", query_params=link.target(gpu=uuid))
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import streamlit as st

GPU_PAGE, DECISIONS_PAGE = "page_gpu.py", "page_decisions.py"
"""Pages that others lead to."""
_SEPARATOR = ","


def _memory(name: str) -> str:
    return f"link.{name}"


def read(name: str, default: str = "", options: Collection[str] | None = None) -> str:
    """The value of `name`: from the URL, else as chosen last, else `default`; what `options` lacks is `default`."""
    if (asked := st.query_params.get(name)) is None:
        asked = str(st.session_state.get(_memory(name), default))
    if options is not None and asked not in options:
        # Another page may offer it: it is not forgotten.
        st.query_params.pop(name, None)
        return default
    write(name, asked, default)
    return asked


def write(name: str, value: str, default: str = "") -> None:
    """Put `value` into the URL, or take `name` out of it where it is the default."""
    if value != default:
        st.session_state[_memory(name)] = value
        if st.query_params.get(name) != value:
            st.query_params[name] = value
    else:
        st.session_state.pop(_memory(name), None)
        if name in st.query_params:
            del st.query_params[name]


def read_many(name: str, default: Sequence[str] = (), options: Collection[str] | None = None) -> list[str]:
    """Values of `name`, which the URL holds with commas between them; those that `options` lacks are left out."""
    found = [value for value in read(name, _SEPARATOR.join(default)).split(_SEPARATOR) if value]
    return [value for value in found if options is None or value in options]


def target(**values: str) -> dict[str, str]:
    """Parameters of a link to another page: the language, and what of `values` is not empty."""
    return {"lang": str(st.session_state.get("lang", "en")), **{name: value for name, value in values.items() if value}}


def pick(
    name: str,
    label: str,
    options: Sequence[str],
    default: str,
    words: Callable[[Any], str] = str,
    *,
    show_label: bool = False,
) -> str:
    """A row of choices that is kept in the URL under `name`, which is also the widget's key."""
    st.session_state[name] = read(name, default, options)
    choice = st.segmented_control(
        label,
        list(options),
        key=name,
        format_func=words,
        required=True,
        on_change=lambda: write(name, st.session_state[name], default),
        label_visibility="visible" if show_label else "collapsed",
    )
    return choice or default


def pick_one(name: str, label: str, options: Sequence[str], default: str, words: Callable[[Any], str] = str) -> str:
    """As `pick`, for many choices: a list that opens."""
    st.session_state[name] = read(name, default, options)
    choice: str = st.selectbox(
        label,
        list(options),
        key=name,
        format_func=words,
        on_change=lambda: write(name, st.session_state[name], default),
    )
    return choice


def pick_many(
    name: str, label: str, options: Sequence[str], words: Callable[[Any], str] = str, default: Sequence[str] = ()
) -> list[str]:
    """A list of filters that is kept in the URL under `name`, which is also the widget's key; none means all."""
    st.session_state[name] = read_many(name, default, options)
    return st.multiselect(
        label,
        list(options),
        key=name,
        format_func=words,
        on_change=lambda: write(name, _SEPARATOR.join(st.session_state[name]), _SEPARATOR.join(default)),
        placeholder=label,
        label_visibility="collapsed",
    )
