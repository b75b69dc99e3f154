"""Addresses of the hub's API server and DNS for pods in the worker: those of the binding, or of Kubeocean's two LoadBalancer Services.

Invariant: neither is needed for a pod to start; a missing address is reported once on the binding. When a Service is created, moved or
deleted, this affects the pods created from then on.
"""

from __future__ import annotations

import asyncio
import logging

from attrs import frozen

from kubeocean.binding.reconciler import BindingReconciler
from kubeocean.model.crds import ApiServerAccess, ClusterBinding, DnsAccess
from vkubelet.api.objects import Key, Unknown
from vkubelet.client.resources import SERVICES
from vkubelet.client.rest import Selection
from vkubelet.control.informer import Informer
from vkubelet.errors import Forbidden, Unavailable
from vkubelet.provider import Host

log = logging.getLogger(__name__)

API_SERVER = Key("default", "kubernetes-intranet")
DNS = Key("kube-system", "kube-dns-intranet")

_FIRST_LIST = 5.0


@frozen
class Access:
    """Addresses that were found, each None when there is none."""

    api_server: ApiServerAccess | None = None
    dns: DnsAccess | None = None


class HomeAccess:
    """Watches the two Services."""

    def __init__(self, host: Host, binding: BindingReconciler, *, domain: str) -> None:
        self._binding = binding
        self._domain = domain
        self._services = {key: _one_service(host, key) for key in (API_SERVER, DNS)}
        self._told = False

    async def run(self) -> None:
        """Watches them until cancelled."""
        async with asyncio.TaskGroup() as group:
            for informer in self._services.values():
                group.create_task(informer.run())

    @property
    def known(self) -> Access:
        """Addresses that the Services have now."""
        api_server, dns = (informer.store.get(key) for key, informer in self._services.items())
        servers = DnsAccess((_address(dns),), self._domain) if dns is not None and _address(dns) else None
        return Access(_access(api_server), servers)

    async def find(self, binding: ClusterBinding) -> Access:
        """Returns the addresses that the binding does not specify itself. Raises Unavailable while the Services were never listed."""
        if binding.api_server is not None and binding.dns is not None:
            return Access()
        for informer in self._services.values():
            await listed(informer)
        found = self.known
        is_missing = binding.api_server is None and found.api_server is None
        if is_missing and not self._told:
            text = f"pods in the worker do not reach this cluster's API server: set spec.apiServerAccess, or create Service {API_SERVER}"
            self._binding.event("NoApiServerAccess", text)
        self._told = is_missing
        return found


def _one_service(host: Host, key: Key) -> Informer[Unknown]:
    where = Selection(namespace=key.namespace, fields=f"metadata.name={key.name}")
    return Informer(host.client, SERVICES, where=where, clock=host.clock)


async def listed(informer: Informer[Unknown]) -> None:
    """Waits at most five seconds for the first list; Services that may not be read count as none. Raises Unavailable on timeout."""
    if informer.ever_synced or isinstance(informer.last_error, Forbidden):
        return
    try:
        async with asyncio.timeout(_FIRST_LIST):
            await informer.wait_synced()
    except TimeoutError:
        if not isinstance(informer.last_error, Forbidden):
            text = "the Services by which pods reach this cluster have not been listed yet"
            raise Unavailable(text, retry_after=1.0) from None


def _access(service: Unknown | None) -> ApiServerAccess | None:
    if service is None or not _address(service):
        return None
    ports = (service.body.get("spec") or {}).get("ports") or ()
    return ApiServerAccess(_address(service), ports[0]["port"]) if ports else None


def _address(service: Unknown) -> str:
    ingress = ((service.body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    return next((each["ip"] for each in ingress if each.get("ip")), "")
