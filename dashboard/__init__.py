"""The Streamlit dashboard: a client of the HTTP API and nothing else.

`app` is the script that Streamlit runs, `page_*` are its pages, `launch` the command that starts it.
"""
