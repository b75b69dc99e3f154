"""Writes the roles in `deploy/samples` from `kubeocean/rbac/permissions.py`, each right with its reason.

Invariant: a unit test compares the files with this output, so a missing run fails.
"""

from __future__ import annotations

import sys
from pathlib import Path

from kubeocean.rbac import permissions
from vkubelet.commands.manifests import commented

SAMPLES = Path(__file__).parents[2] / "deploy" / "samples"

_HUB = "What `kubeocean run` needs in the computing cluster: apply it there."
_READER = "Which client certificates are the API server's: published by every API server in a ConfigMap that this role may read."
_WORKER = """\
What kubeocean needs in a worker cluster: apply it there, or let `kubeocean bind` do so. The pods of the computing cluster live in
this one namespace, which refuses host paths, privileges and the host's network."""
_TOKEN = "A long-lived token for the kubeconfig that goes to the computing cluster; delete this Secret to lock kubeocean out at once."
_WIDE = """\
Cluster-wide: what is free on which node, and what is leased. RBAC cannot limit `patch` to single fields: worker-guards.yaml does, apply it
too. To see on the nodes which policy leases them (label kubeocean.io/policy-applied), add the verb `patch` on nodes."""
_GUARDS = """\
Limits the identity of worker-rbac.yaml to what its rights are for, because RBAC grants verbs on whole objects: of policies only the
finalizer and the status may change, of the mount namespace only its owner, and PersistentVolumes and PriorityClasses are those of leased
pods. Apply it in the worker cluster (Kubernetes 1.30 or newer); without it the hub can raise its own lease."""
_METRICS = """\
Optional, in a worker cluster: lets `kubectl top`, autoscalers and Prometheus of the computing cluster see what its pods use here.
Only the figures of the mount namespace are passed on; everything else works without it.

Know what it opens: an API server asks for `get` on `nodes/proxy` before it forwards anything to a kubelet, and can not ask for less.
Whoever has this token could read the logs of every pod on these nodes, and over a WebSocket run commands in them. Where other
tenants share the worker, name the leased nodes in `resourceNames`, or do without."""


def samples() -> dict[str, str]:
    """Returns content by file name."""
    worker = permissions.keys.WORKER_NAMESPACE
    hub = permissions.hub_objects()
    return {
        "hub-rbac.yaml": commented(hub, permissions.hub_rules(), notes={0: _HUB, len(hub) - 1: _READER}),
        "worker-rbac.yaml": commented(
            permissions.worker_objects(), permissions.worker_rules(worker), notes={0: _WORKER, 2: _TOKEN, 3: _WIDE}
        ),
        "worker-guards.yaml": commented(permissions.worker_guards(policy_label=True), (), notes={0: _GUARDS}),
        "worker-metrics-rbac.yaml": commented(permissions.metrics_objects(), (), notes={0: _METRICS}),
    }


if __name__ == "__main__":
    for name, content in samples().items():
        if not (SAMPLES / name).exists() or (SAMPLES / name).read_text() != content:
            (SAMPLES / name).write_text(content)
            print(f"{name}: written", file=sys.stderr)
