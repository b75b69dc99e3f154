"""Environment variables of the Services in the pod's hub namespace (FOO_SERVICE_HOST …), for pods in the worker.

Invariant: names and values are those that a kubelet of the hub sets when `enableServiceLinks` is on. The API server's own are omitted:
`spec.apiServerAccess` defines how pods in the worker reach it.
"""

from __future__ import annotations

from collections.abc import Mapping

from kubeocean.pods.hub_access import listed
from vkubelet.api.codec import encode_json
from vkubelet.api.objects import Pod, Unknown
from vkubelet.client.resources import SERVICES
from vkubelet.control.informer import Informer
from vkubelet.control.store import Store
from vkubelet.provider import Host
from vkubelet.resolve.services import MASTER, MASTER_NAMESPACE, service_variables

_BY_NAMESPACE = "namespace"


class ServiceLinks:
    """Watches the Services of the hub."""

    def __init__(self, host: Host) -> None:
        store: Store[Unknown] = Store(indexes={_BY_NAMESPACE: lambda service: [service.metadata.namespace]}, keep=addresses_of)
        self.informer: Informer[Unknown] = Informer(host.client, SERVICES, store=store, clock=host.clock, metrics=host.metrics)

    async def find(self, pod: Pod) -> Mapping[str, str]:
        """Returns the variables for a pod that is about to be created. Raises Unavailable while the Services were never listed."""
        await listed(self.informer)
        return self.known(pod)

    def known(self, pod: Pod) -> Mapping[str, str]:
        """Returns the variables of the Services in the pod's namespace as they are in the cache."""
        namespace = pod.metadata.namespace
        if pod.spec.get("enableServiceLinks") is False:
            return {}
        services = self.informer.store.by_index(_BY_NAMESPACE, namespace)
        others = [service.body for service in services if service.key != (MASTER_NAMESPACE, MASTER)]
        return service_variables(others, namespace=namespace, links=True)


def addresses_of(service: Unknown) -> Unknown:
    """Returns the Service with only its name, address and ports."""
    meta, spec = service.metadata, service.body.get("spec") or {}
    head = {"name": meta.name, "namespace": meta.namespace, "uid": meta.uid, "resourceVersion": meta.resource_version}
    kept = {name: spec[name] for name in ("clusterIP", "ports") if spec.get(name)}
    return Unknown.decode(encode_json({"metadata": head, "spec": kept}))
