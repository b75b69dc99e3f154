"""Providers that come with the runtime; each builds on `vkubelet` alone.

Invariant: none of them knows another, so that each can be read, and copied, by itself.
"""
