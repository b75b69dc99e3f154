"""Address of an API server and credentials for it: from a kubeconfig, or from the service account files of a pod.

Invariant: an existing Connection is complete and checked; everything that is renewed later (tokens, certificates) is inside it.
"""

import ipaddress
import os
import ssl
from collections.abc import Mapping
from datetime import datetime
from pathlib import Path
from urllib.parse import urlsplit

from attrs import field, frozen

from vkubelet.api.objects import JsonView
from vkubelet.client import kubeconfig as kubeconfig_files
from vkubelet.client.credentials import Credentials, Fixed, TokenFile
from vkubelet.client.tls import Pem, Tls, TlsSource
from vkubelet.clock import Clock
from vkubelet.errors import SettingsError, Unauthorized

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")


@frozen
class Timeouts:
    """Timeouts in seconds: of a read, of a write, to connect, and how long a watch may be silent (bookmarks come every 60)."""

    read: float = 30.0
    write: float = 5.0
    connect: float = 10.0
    silence: float = 70.0

    @property
    def reach(self) -> float:
        """Seconds for a connection to the server, also through a proxy; `connect` covers the first hop alone."""
        return self.connect + self.read


@frozen
class Security:
    """Security of one request: the header, the TLS context."""

    authorization: str = field(repr=False)
    context: ssl.SSLContext | None = None


@frozen
class Connection:
    """An API server and an identity; `namespace` is the one of the context, or of our own pod.

    `server_name` is the name its certificate is checked against (and SNI) when that is not the URL's host; `proxy` an HTTP proxy's URL.
    """

    url: str
    tls: Tls | None = field(default=None, repr=False)
    credentials: Credentials = field(factory=Fixed, repr=False)
    proxy: str = field(default="", repr=False)
    server_name: str = ""
    namespace: str = "default"
    timeouts: Timeouts = Timeouts()

    @property
    def insecure(self) -> bool:
        """Whether the server's certificate is not checked, or TLS is not used at all."""
        return self.tls is None or self.tls.source.insecure

    @property
    def expires(self) -> datetime | None:
        """When the static credentials expire: the expiry of a client certificate or a token, whichever comes first."""
        own = self.tls.source.certificate if self.tls is not None else None
        ends = (own.expires() if own is not None else None, self.credentials.expires())
        return min((end for end in ends if end is not None), default=None)

    async def security(self, clock: Clock) -> Security:
        """Returns the header and TLS context. Raises Unauthorized when credentials are not available, or a plugin returned an invalid
        certificate."""
        header = await self.credentials.authorization(clock)
        try:
            context = self.tls.context(clock, self.credentials.certificate()) if self.tls else None
        except SettingsError as error:
            raise Unauthorized("authenticate", str(error)) from error
        return Security(header, context)


async def load_connection(*, kubeconfig: Path | None = None, context: str = "") -> Connection:
    """Loads a connection from `kubeconfig`, else the files of $KUBECONFIG, else ~/.kube/config, else the service account of our own pod.

    Raises SettingsError with the remedy.
    """
    paths = [kubeconfig] if kubeconfig else _default_files(os.environ)
    if paths:
        return _connection(kubeconfig_files.read_files(paths, context))
    if os.environ.get("KUBERNETES_SERVICE_HOST"):
        return in_cluster(os.environ, SERVICE_ACCOUNT)
    raise SettingsError("kubeconfig", "none found: pass its path, set $KUBECONFIG, create ~/.kube/config, or run inside a cluster")


def known_contexts(kubeconfig: Path | None = None) -> kubeconfig_files.Contexts:
    """Returns the contexts of the files that `load_connection` reads; none where there is no file. Raises SettingsError."""
    return kubeconfig_files.Contexts.of([kubeconfig] if kubeconfig else _default_files(os.environ))


def connection_from_kubeconfig(data: bytes | JsonView, *, base: Path | None = None) -> Connection:
    """Builds a connection from the text of a kubeconfig, or from one already parsed.

    Without `base`, the folder of its relative paths, it may neither name files nor run programs: a kubeconfig from another client could
    otherwise send the token of our service account to another server. Raises SettingsError naming the invalid field, never its content.
    """
    return _connection(kubeconfig_files.pick([kubeconfig_files.parse(data, "kubeconfig", base)]))


def in_cluster(environ: Mapping[str, str], directory: Path) -> Connection:
    """Builds a connection from what every pod has: KUBERNETES_SERVICE_HOST and _PORT, and the token, CA and namespace in `directory`."""
    host, port = environ["KUBERNETES_SERVICE_HOST"], environ.get("KUBERNETES_SERVICE_PORT", "443")
    url = f"https://[{host}]:{port}" if ":" in host else f"https://{host}:{port}"
    if not (directory / "token").exists():
        raise SettingsError(str(directory / "token"), "is missing: set automountServiceAccountToken, or name a kubeconfig")
    try:
        namespace = (directory / "namespace").read_text().strip()
    except OSError:
        namespace = ""
    return Connection(
        url,
        tls=Tls(TlsSource(Pem(str(directory / "ca.crt"), path=directory / "ca.crt"))),
        credentials=TokenFile(directory / "token"),
        proxy=environment_proxy(url, environ),
        namespace=namespace or "default",
    )


def environment_proxy(url: str, environ: Mapping[str, str]) -> str:
    """Returns the proxy that HTTPS_PROXY, HTTP_PROXY and NO_PROXY choose for `url`, "" for none.

    NO_PROXY as in Go: host names and their subdomains, addresses, CIDRs, "*"; loopback is never reached through a proxy.
    """
    parts = urlsplit(url)
    host, variable = parts.hostname or "", f"{parts.scheme}_proxy"
    proxy = environ.get(variable.upper()) or environ.get(variable) or ""
    if not proxy or host == "localhost":
        return ""
    address = _address(host)
    if address is not None and address.is_loopback:
        return ""
    for entry in (environ.get("NO_PROXY") or environ.get("no_proxy") or "").split(","):
        if _bypasses(entry.strip().lower(), host, address):
            return ""
    return proxy if "://" in proxy else f"http://{proxy}"


def _bypasses(entry: str, host: str, address: ipaddress.IPv4Address | ipaddress.IPv6Address | None) -> bool:
    if not entry:
        return False
    if entry == "*":
        return True
    if address is not None:
        try:
            return address in ipaddress.ip_network(entry, strict=False)
        except ValueError:
            pass
    entry = entry.removeprefix("*")
    if entry.rpartition(":")[2].isdigit():
        entry = entry.rpartition(":")[0].strip("[]")
    return host == entry or (not entry.startswith(".") and host.endswith(f".{entry}")) or (entry.startswith(".") and host.endswith(entry))


def _address(host: str) -> ipaddress.IPv4Address | ipaddress.IPv6Address | None:
    try:
        return ipaddress.ip_address(host)
    except ValueError:
        return None


def _default_files(environ: Mapping[str, str]) -> list[Path]:
    named = [Path(part).expanduser() for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    if named:
        present = [path for path in named if path.exists()]
        if not present:
            raise SettingsError("$KUBECONFIG", "names no file that exists; correct or unset it")
        return present
    standard = Path("~/.kube/config").expanduser()
    return [standard] if standard.exists() else []


def _connection(access: kubeconfig_files.Access) -> Connection:
    url = access.server
    return Connection(
        url,
        tls=Tls(access.tls()) if url.startswith("https://") else None,
        credentials=access.credentials(),
        proxy=access.proxy or environment_proxy(url, os.environ),
        server_name=access.cluster.text("tls-server-name"),
        namespace=access.namespace,
    )
