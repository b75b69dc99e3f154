"""Implements pod semantics for providers that only start and stop single containers: order, restarts, probes, hooks, deadlines."""
