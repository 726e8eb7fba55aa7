"""Channels: each tells people, or what tells people, by one protocol.

One file holds a channel; `registry` finds them. docs/notifications.md describes each.
"""
