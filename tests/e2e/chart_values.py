"""Values of the hub's chart that pods and objects of an installation show.

Invariant: the values of the processes are the same for the manager and for the process of each binding.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from functools import partial

from tests.support.bound import SYSTEM, Body, get
from tests.support.program import LONG, eventually
from vkubelet.testing.cluster import CommandFailed, ControlPlane

WORD, USER = "spoken", 10001
_PROCESS: Body = {
    "podLabels": {"team": "platform"},
    "podAnnotations": {"example.com/note": WORD},
    "podSecurityContext": dict.fromkeys(("runAsUser", "runAsGroup", "fsGroup"), USER),
    "extraEnv": [{"name": "NOTE", "value": WORD}],
    "extraVolumes": [{"name": "extra", "configMap": {"name": "extra"}}],
    "extraVolumeMounts": [{"name": "extra", "mountPath": "/extra", "readOnly": True}],
    "affinity": {
        "nodeAffinity": {
            "preferredDuringSchedulingIgnoredDuringExecution": [
                {"weight": 7, "preference": {"matchExpressions": [{"key": "disk", "operator": "Exists"}]}}
            ]
        }
    },
    "topologySpreadConstraints": [{"maxSkew": 1, "topologyKey": "kubernetes.io/hostname", "whenUnsatisfiable": "ScheduleAnyway"}],
    "serviceAccount": {"annotations": {"example.com/role": "reader"}},
}
VALUES: Body = {
    "manager": _PROCESS,
    "syncer": _PROCESS,
    "commonLabels": {"cost-center": "7"},
    "dashboard": {"enabled": True},
}
"""Values of the hub's chart, with which it is upgraded."""


async def values_are_in_force(hub: ControlPlane, *, pods: Callable[[str], Awaitable[list[Body] | None]]) -> None:
    """What the chart sets on the pods, seen from inside of each, and the dashboard, which asks for credentials."""
    script = "import os; print(os.environ['NOTE'], open('/extra/word').read(), os.getuid(), os.getgid())"
    for name in ("kubeocean-manager", "kubeocean-syncer"):
        found = await eventually(partial(pods, name), f"both of {name} run", seconds=LONG, every=0.5)
        for each in found:
            meta, spec = each["metadata"], each["spec"]
            assert (meta["labels"]["team"], meta["annotations"]["example.com/note"]) == ("platform", WORD)
            (preferred,) = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
            assert preferred["weight"] == 7 and "requiredDuringSchedulingIgnoredDuringExecution" in spec["affinity"]["nodeAffinity"]
            (spread,) = spec["topologySpreadConstraints"]
            assert spread["whenUnsatisfiable"] == "ScheduleAnyway" and spread["labelSelector"]["matchLabels"]
            inside = await hub.kubectl("exec", meta["name"], "-n", SYSTEM, "--", "/opt/kubeocean/bin/python", "-c", script)
            assert inside.split() == [WORD, WORD, str(USER), str(USER)]
        accounts = {each["spec"]["serviceAccountName"] for each in found}
        for account in accounts:
            made = await get(hub, "serviceaccount", account, "-n", SYSTEM)
            assert made["metadata"]["annotations"]["example.com/role"] == "reader", account
    deployment = await get(hub, "deployment", "kubeocean-manager", "-n", SYSTEM)
    assert deployment["metadata"]["labels"]["cost-center"] == "7"
    proxied = f"/api/v1/namespaces/{SYSTEM}/services/https:kubeocean-dashboard:8443/proxy/"

    async def asks() -> bool:
        try:
            await hub.kubectl("get", "--raw", proxied)
        except CommandFailed as error:
            return "must be logged in" in error.stderr
        return False

    await eventually(asks, "the dashboard asks for credentials", seconds=LONG, every=0.5)
