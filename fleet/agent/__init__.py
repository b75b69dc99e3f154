"""The agent: joins the worker in which it runs to a hub, keeps it joined, and reports its state.

Invariant: all connections are opened by the agent, and its keys and tokens stay in the worker.
"""
