"""Names that the pages and what serves them share."""

from __future__ import annotations

TICKET_HEADER = "x-tocsin-ticket"
"""A header of our own: a page of another origin cannot send it without asking first, and is told no."""
SESSION_PATH = "/session"
"""Where a browser fetches the cookie of its log-in."""
