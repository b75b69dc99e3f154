"""What can be set of the kubelet server.

Invariant: values that can not work together are refused when they are read, by the name they have in YAML.
"""

from __future__ import annotations

from typing import Literal

from attrs import frozen

from vkubelet.errors import SettingsError

SECTION = "server"


@frozen(kw_only=True)
class ServerSettings:
    """The kubelet server of all virtual nodes of a process."""

    bind_address: str = "0.0.0.0"
    """IP address to listen on."""
    node_address: str = ""
    """IP address the nodes publish as InternalIP; empty: the one listened on, or else the one from which the API server is reached."""
    port_first: int = 15000
    """First port for nodes; each node has one of its own."""
    port_last: int = 29999
    """Last port for nodes; above lie NodePorts and the ports of outgoing connections."""
    main_port: int | bool = 10250
    """Port that serves the pods of all nodes; 0: any free one; off: none."""
    certificate: Literal["csr", "files", "self-signed"] = "csr"
    """Where the serving certificate comes from: signed by the cluster on request, files, or made here (then nobody can verify it)."""
    certificate_file: str = ""
    """PEM certificate chain, for `certificate: files`; read again when it changes."""
    key_file: str = ""
    """PEM private key of it."""
    certificate_directory: str = ""
    """Directory in which a certificate signed on request survives a restart; empty: it is kept in memory only."""
    approve_own_csr: bool = False
    """Approve our own certificate requests; needs the rights `update certificatesigningrequests/approval` and `approve signers`."""
    self_signed_until_issued: bool = False
    """Serve with a self-signed certificate until the requested one is issued; otherwise connections fail until then."""
    client_ca_file: str = ""
    """PEM bundle that client certificates are verified by; empty: the one the cluster publishes in kube-system."""
    token_review: bool = True
    """Accept bearer tokens that the cluster's TokenReview accepts."""
    anonymous: bool = False
    """Treat callers without credentials as `system:anonymous`, who may do what the cluster allows them, instead of answering 401."""

    def __attrs_post_init__(self) -> None:
        if not 1 <= self.port_first <= self.port_last <= 65535:
            raise SettingsError(f"{SECTION}.port_first", "must be at least 1 and at most port_last, which is at most 65535")
        if self.main_port is True or not 0 <= self.main_port <= 65535:
            raise SettingsError(f"{SECTION}.main_port", "must be a port, 0 for any free one, or off")
        if self.certificate == "files" and not (self.certificate_file and self.key_file):
            raise SettingsError(f"{SECTION}.certificate_file", "and key_file must both be given with certificate: files")
