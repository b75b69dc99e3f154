"""How pods in the worker reach the hub's API server and DNS: as the binding says, or by Kubeocean's two LoadBalancer Services.

Invariant: neither is needed for a pod to start; what is missing is said once on the binding.
"""

from __future__ import annotations

import logging

from attrs import frozen

from kubeocean.bottomup.binding import BindingReconciler
from kubeocean.crds import ApiServerAccess, ClusterBinding, DnsAccess
from vkubelet.api.objects import Key, Unknown
from vkubelet.client.resources import SERVICES
from vkubelet.errors import Forbidden, NotFound
from vkubelet.provider import Host

log = logging.getLogger(__name__)

API_SERVER = Key("default", "kubernetes-intranet")
DNS = Key("kube-system", "kube-dns-intranet")

_BELIEVED = 30.0


@frozen
class Access:
    """What was found; None where there is none."""

    api_server: ApiServerAccess | None = None
    dns: DnsAccess | None = None


class HomeAccess:
    """Looks the Services up, at most twice a minute."""

    def __init__(self, host: Host, binding: BindingReconciler, *, domain: str) -> None:
        self._host = host
        self._binding = binding
        self._domain = domain
        self._found = Access()
        self._until = float("-inf")
        self._told = False

    @property
    def known(self) -> Access:
        """What was found last."""
        return self._found

    async def find(self, binding: ClusterBinding) -> Access:
        """What the binding does not say itself. Raises ApiError when the hub can not be asked."""
        if binding.api_server is not None and binding.dns is not None:
            return Access()
        if self._host.clock.monotonic() >= self._until:
            try:
                self._found = await self._look()
            except Forbidden:
                # Not to be read is not to be gone: what was found before still counts.
                log.debug("the Services by which pods would reach this cluster may not be read")
            self._until = self._host.clock.monotonic() + _BELIEVED
        if binding.api_server is None and self._found.api_server is None and not self._told:
            self._told = True
            text = f"pods in the worker do not reach this cluster's API server: set spec.apiServerAccess, or create Service {API_SERVER}"
            self._binding.event("NoApiServerAccess", text)
        return self._found

    async def _look(self) -> Access:
        api_server, dns = await self._service(API_SERVER), await self._service(DNS)
        servers = DnsAccess((_address(dns),), self._domain) if dns is not None and _address(dns) else None
        return Access(_access(api_server), servers)

    async def _service(self, key: Key) -> Unknown | None:
        try:
            return await self._host.client.get(SERVICES, key)
        except NotFound:
            return None


def _access(service: Unknown | None) -> ApiServerAccess | None:
    if service is None or not _address(service):
        return None
    ports = (service.body.get("spec") or {}).get("ports") or ()
    return ApiServerAccess(_address(service), ports[0]["port"]) if ports else None


def _address(service: Unknown) -> str:
    ingress = ((service.body.get("status") or {}).get("loadBalancer") or {}).get("ingress") or ()
    return next((each["ip"] for each in ingress if each.get("ip")), "")
