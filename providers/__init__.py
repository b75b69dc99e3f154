"""Providers that come with the runtime; each uses `vkubelet` alone.

Invariant: none of them imports another, so that each can be read, and copied, by itself.
"""
