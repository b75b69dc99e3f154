"""Keeps what a pod promises for providers that only start and stop single containers: order, restarts, probes, hooks, deadlines."""
