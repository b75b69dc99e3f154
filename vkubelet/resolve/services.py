"""Environment variables by which a container finds Services without DNS. Pure.

Invariant: the Service `kubernetes` of the namespace `default` is always included; headless ones never.

Names and values are documented at "Discovering services: environment variables"; the second half of them are those of Docker links.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from vkubelet.api.shapes import JsonView

MASTER_NAMESPACE, MASTER = "default", "kubernetes"


def service_variables(services: Iterable[JsonView], *, namespace: str, links: bool) -> dict[str, str]:
    """Returns the variables by name; with `links` of all `services` of the pod's namespace, one of them named `kubernetes` before the
    API server's."""
    chosen: dict[str, JsonView] = {}
    for service in services:
        meta, name = service["metadata"], service["metadata"]["name"]
        if service.get("spec", {}).get("clusterIP", "") in ("", "None"):
            continue
        own = meta["namespace"] == namespace and links
        if (meta["namespace"], name) == (MASTER_NAMESPACE, MASTER):
            chosen.setdefault(name, service)
        elif own:
            chosen[name] = service
    return {name: value for service in chosen.values() for name, value in _variables(service)}


def _variables(service: JsonView) -> Iterator[tuple[str, str]]:
    prefix, address = _upper(service["metadata"]["name"]), service["spec"]["clusterIP"]
    ports = service["spec"].get("ports") or ()
    yield f"{prefix}_SERVICE_HOST", address
    for number, port in enumerate(ports):
        protocol = port.get("protocol") or "TCP"
        url = f"{protocol.lower()}://{_bracketed(address)}:{port['port']}"
        if number == 0:
            yield f"{prefix}_SERVICE_PORT", str(port["port"])
            yield f"{prefix}_PORT", url
        if port.get("name"):
            yield f"{prefix}_SERVICE_PORT_{_upper(port['name'])}", str(port["port"])
        link = f"{prefix}_PORT_{port['port']}_{protocol.upper()}"
        yield link, url
        yield f"{link}_PROTO", protocol.lower()
        yield f"{link}_PORT", str(port["port"])
        yield f"{link}_ADDR", address


def _upper(name: str) -> str:
    return name.replace("-", "_").upper()


def _bracketed(address: str) -> str:
    return f"[{address}]" if ":" in address else address
