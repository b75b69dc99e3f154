"""Mirrors in the worker of the Services and EndpointSlices of the hub that leased pods call.

Invariant: an object without the owner mark of this binding is neither changed nor deleted, and nothing is written in the hub.
"""
