"""Creates a separate bridge for a run with a non-loopback host address, and addresses for its nodes and pods.

Invariant: a network number belongs to one run at a time, because creating the bridge of that name succeeds only once.
"""

import ipaddress
import json
import os
import random
import socket
from collections.abc import Iterable
from typing import TypedDict, cast

from attrs import frozen

from vkubelet.testing.cluster.ledger import Entry, Kind, Ledger
from vkubelet.testing.cluster.processes import ClusterError, CommandFailed, run

NUMBERS = 64
FIRST_NODE, LAST_NODE = 2, 254
# Below 32768, where Linux takes source ports from: a client that redials a stopped server on these can connect to itself.
PORTS = range(30000, 32768)


class _Route(TypedDict):
    dst: str


@frozen
class Network:
    """Network `number`: nodes in 10.77.<number>.0/24, pods of node k in 10.<128+number>.<k>.0/24.

    `number` is None without root rights: then there is no bridge, no node can be created, and the machine's own address is used.
    """

    number: int | None
    host_address: str

    @property
    def bridge(self) -> str:
        return f"vkb{self.number}"

    def node_address(self, node: int) -> str:
        return f"10.77.{self.number}.{node}"

    def pod_cidr(self, node: int) -> str:
        return f"10.{128 + (self.number or 0)}.{node}.0/24"

    def pod_routes(self, node: int) -> str:
        """Returns routes for `ip -batch` from this node to the pods of every other one, existing or not: the host need not forward."""
        others = (other for other in range(FIRST_NODE, LAST_NODE + 1) if other != node)
        return "".join(f"route add {self.pod_cidr(other)} via {self.node_address(other)}\n" for other in others)

    def host_link(self, node: int) -> str:
        """Returns the host side of the node's veth pair; 15 characters is the kernel's limit (IFNAMSIZ)."""
        return f"vk{self.number}n{node}"


def ranges(number: int) -> list[ipaddress.IPv4Network]:
    """Returns every address range that a network of this number uses."""
    return [ipaddress.IPv4Network(f"10.77.{number}.0/24"), ipaddress.IPv4Network(f"10.{128 + number}.0.0/16")]


def is_free(number: int, destinations: Iterable[str]) -> bool:
    """Checks that no route of the machine, the default route apart, overlaps the ranges of that number."""
    taken = [ipaddress.ip_network(text, strict=False) for text in destinations if text != "default"]
    return not any(mine.overlaps(other) for mine in ranges(number) for other in taken if other.version == 4)


async def claim(ledger: Ledger) -> Network:
    """Creates the bridge of the first free number, recorded in the ledger. Raises ClusterError when none is free."""
    if os.geteuid() != 0:
        return Network(number=None, host_address=primary_address())
    routes = cast("list[_Route]", json.loads(await run("ip", "-json", "-4", "route", "show")))
    for number in range(NUMBERS):
        if is_free(number, (route["dst"] for route in routes)) and await _make_bridge(number):
            network = Network(number=number, host_address=f"10.77.{number}.1")
            ledger.add(Entry(kind=Kind.LINK, name=network.bridge))
            await run("ip", "address", "add", f"{network.host_address}/24", "dev", network.bridge)
            await run("ip", "link", "set", network.bridge, "up")
            return network
    raise ClusterError("every network number is taken; `ip link` shows bridges vkb<number> of other runs")


def recall(ledger: Ledger) -> Network:
    """Returns the network of a run that another process has started."""
    for entry in ledger.entries(Kind.LINK, ""):
        number = int(entry.name.removeprefix("vkb"))
        return Network(number=number, host_address=f"10.77.{number}.1")
    return Network(number=None, host_address=primary_address())


async def _make_bridge(number: int) -> bool:
    try:
        await run("ip", "link", "add", f"vkb{number}", "type", "bridge")
    except CommandFailed as error:
        if "exists" in error.stderr:
            return False
        raise
    return True


def primary_address() -> str:
    """Returns the address that the machine would use for outgoing packets; nothing is sent. Raises ClusterError without any network."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as probe:
        try:
            probe.connect(("192.0.2.1", 9))
        except OSError as error:
            raise ClusterError("the machine has no address but loopback, which kubelet servers cannot use; add an address") from error
        return str(probe.getsockname()[0])


def free_port(taken: set[int]) -> int:
    """Returns an unused port; it is added to `taken`. Raises ClusterError when none is left."""
    candidates = [port for port in PORTS if port not in taken]
    random.shuffle(candidates)
    for port in candidates:
        with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                probe.bind(("0.0.0.0", port))
            except OSError:
                continue
        taken.add(port)
        return port
    raise ClusterError(f"no free port between {PORTS.start} and {PORTS.stop - 1}")
