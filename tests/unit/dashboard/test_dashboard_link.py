"""The view in the URL."""

from __future__ import annotations

from streamlit.testing.v1 import AppTest


def script() -> None:
    import streamlit as st

    from tocsin.dashboard import link

    colour = link.pick("colour", "Colour", ["state", "heat"], "state")
    pools = link.pick_many("pool", "Pools", ["a", "b", "c"])
    st.session_state["lang"] = "zh"
    st.text(f"{colour} {','.join(pools)}")
    st.json(link.target(gpu="GPU-1", host=""))


def opened(**query: str) -> AppTest:
    app = AppTest.from_function(script)
    app.query_params.update(query)
    app.run()
    assert not app.exception
    return app


def test_defaults_leave_no_trace_in_the_url() -> None:
    app = opened()
    assert app.text[0].value == "state"
    assert dict(app.query_params) == {}


def test_the_url_decides_what_is_chosen() -> None:
    app = opened(colour="heat", pool="c,a")
    assert app.text[0].value == "heat c,a"


def test_what_is_unknown_is_the_default_and_leaves_the_url() -> None:
    app = opened(colour="sound", pool="x,b")
    assert app.text[0].value == "state b"
    assert "colour" not in app.query_params


def test_a_choice_goes_into_the_url_and_out_again() -> None:
    app = opened()
    app.segmented_control(key="colour").set_value("heat").run()
    app.multiselect(key="pool").set_value(["b", "c"]).run()
    assert (app.query_params["colour"], app.query_params["pool"]) == ("heat", "b,c")
    app.segmented_control(key="colour").set_value("state").run()
    app.multiselect(key="pool").set_value([]).run()
    assert dict(app.query_params) == {}


def test_what_was_chosen_is_remembered_where_a_page_comes_without_parameters() -> None:
    app = opened(colour="heat")
    app.segmented_control(key="colour").set_value("heat").run()
    app.query_params.clear()
    app.run()
    assert app.text[0].value.startswith("heat")
    assert app.query_params["colour"] == "heat"


def test_a_target_carries_the_language_and_nothing_empty() -> None:
    assert '"lang": "zh"' in opened().json[0].value.replace('":"', '": "')
    assert "host" not in opened().json[0].value


def test_what_one_page_lacks_another_still_remembers() -> None:
    app = opened(pool="c")
    assert app.text[0].value == "state c"
    app.session_state["link.colour"] = "sound"
    app.query_params.clear()
    app.run()
    assert app.text[0].value == "state c"
    assert app.session_state["link.colour"] == "sound"
