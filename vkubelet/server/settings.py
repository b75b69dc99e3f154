"""Settings of the kubelet server.

Invariant: conflicting values are rejected when they are read, by their YAML names.
"""

import ipaddress
from typing import Literal

from attrs import field, frozen

from vkubelet.api.names import is_ip
from vkubelet.errors import SettingsError

SECTION = "server"


@frozen(kw_only=True)
class DebugSettings:
    """Debug handlers of a kubelet that are served."""

    handlers: bool = True
    """Exec, attach, run, port-forward, container logs, node logs, `/runningpods/`, `/debug/pprof/`; off: all of them respond with 405."""
    node_logs: bool = True
    """`/logs/`: the log files of a node, for providers that have any."""
    profiling: bool = False
    """`/debug/pprof/goroutine`: the tasks of this process, and where each of them waits."""


@frozen(kw_only=True)
class LimitSettings:
    """Resources that a caller may use before its first request is allowed."""

    unauthenticated_connections: int = 256
    """Connections on which no request was allowed yet, at most a sixteenth of the open files (64 below 2,048); when all are taken, the
    oldest one is closed once it is a second old, and new ones wait."""
    handshake_timeout: float = 10.0
    """Seconds in which a client must complete the TLS handshake."""
    head_timeout: float = 10.0
    """Seconds in which a client must send the first request line and headers, and those of each later request after its first byte."""
    header_bytes: int = 131072
    """Maximum bytes of a request line and its headers; longer ones are answered with 431. A single line has at most 65536."""

    def __attrs_post_init__(self) -> None:
        for name, least in (("unauthenticated_connections", 1), ("header_bytes", 1024)):
            if getattr(self, name) < least:
                raise SettingsError(f"{SECTION}.limits.{name}", f"must be at least {least}")
        for name in ("handshake_timeout", "head_timeout"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{SECTION}.limits.{name}", "must be more than 0 seconds")


@frozen(kw_only=True)
class ServerSettings:
    """The kubelet server of all virtual nodes of a process."""

    listening: Literal["per-node", "shared"] = "per-node"
    """One port for each node, or the main port for all: then `nodes/proxy` on one node opens the pods of all of them."""
    bind_address: str = "0.0.0.0"
    """IP address to listen on; `0.0.0.0`: all IPv4 addresses; `::`: all addresses, IPv6 and IPv4."""
    node_address: str = ""
    """IP address the nodes publish as InternalIP, or one of each family with a comma between, the one that the API server is to use
    first; empty: the bind address, or else the one from which the API server is reached."""
    port_first: int = 15000
    """First port for nodes; each node has its own port. A Node that publishes a port outside the range gets another."""
    port_last: int = 29999
    """Last port for nodes; above it are NodePorts and the ports of outgoing connections."""
    main_port: int | bool = 10250
    """Port that serves the pods of all nodes, and the port of a node that is the only one of the process; 0: any free one; off: none."""
    certificate: Literal["csr", "files", "self-signed"] = "csr"
    """Source of the serving certificate: signed by the cluster on request, files, or self-signed (then no client can verify it)."""
    certificate_file: str = ""
    """PEM certificate chain, for `certificate: files`; read again when it changes."""
    key_file: str = ""
    """PEM private key for `certificate_file`."""
    certificate_directory: str = ""
    """Directory in which a certificate signed on request survives a restart, created with mode 0700; empty: it is kept in memory only."""
    approve_own_csr: bool = False
    """Approve our own certificate requests; needs the rights `update certificatesigningrequests/approval` and `approve signers`."""
    self_signed_until_issued: bool = False
    """Serve with a self-signed certificate until the requested one is issued; otherwise connections fail until then."""
    client_ca_file: str = ""
    """PEM bundle that verifies client certificates; empty: the one that the cluster publishes in kube-system."""
    token_review: bool = True
    """Accept bearer tokens that the cluster's TokenReview accepts."""
    anonymous: bool = False
    """Treat callers without credentials as `system:anonymous`, who may do what the cluster allows them, instead of answering 401."""
    exec_needs_create: bool = False
    """Require `create nodes/proxy` also where a WebSocket client executes, attaches or forwards by GET; a kubelet accepts `get`."""
    stream_idle_timeout: float = 14400.0
    """Seconds without a byte in either direction after which exec, attach and port-forward are closed."""
    stream_creation_timeout: float = 30.0
    """Seconds in which a client must open the streams it requested."""
    limits: LimitSettings = field(factory=LimitSettings)
    debug: DebugSettings = field(factory=DebugSettings)

    def __attrs_post_init__(self) -> None:
        if not is_ip(self.bind_address):
            raise SettingsError(f"{SECTION}.bind_address", "must be an IP address, 0.0.0.0 for all of IPv4, or :: for all")
        versions = [ipaddress.ip_address(ip).version if is_ip(ip) else 0 for ip in self.node_addresses]
        if 0 in versions or len(set(versions)) < len(versions):
            raise SettingsError(f"{SECTION}.node_address", "must be an IP address, or one of IPv4 and one of IPv6 with a comma between")
        if not 1 <= self.port_first <= self.port_last <= 65535:
            raise SettingsError(f"{SECTION}.port_first", "must be at least 1 and at most port_last, which is at most 65535")
        if self.main_port is True or not 0 <= self.main_port <= 65535:
            raise SettingsError(f"{SECTION}.main_port", "must be a port, 0 for any free one, or off")
        if self.listening == "shared" and self.main_port is False:
            raise SettingsError(f"{SECTION}.main_port", "must be a port with listening: shared, as it is the only one then")
        for name in ("stream_idle_timeout", "stream_creation_timeout"):
            if not getattr(self, name) > 0:
                raise SettingsError(f"{SECTION}.{name}", "must be more than 0 seconds")
        if self.certificate == "files" and not (self.certificate_file and self.key_file):
            raise SettingsError(f"{SECTION}.certificate_file", "and key_file must both be given with certificate: files")

    @property
    def node_addresses(self) -> tuple[str, ...]:
        """The addresses that are set."""
        return tuple(part.strip() for part in self.node_address.split(",")) if self.node_address else ()
