"""Host name and DNS configuration of a pod: hostname, `/etc/hosts`, `/etc/resolv.conf`. Pure.

Invariant: the texts are those that a kubelet writes, byte by byte, for the same pod on the same host.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Self

from attrs import field, frozen

from vkubelet.api.objects import JsonView

_LONGEST_LABEL: Final = 63
_LONGEST_NAME: Final = 64
"""Maximum length of a host name in the kernel."""

# Limits of core/v1 validation (MaxDNSNameservers, MaxDNSSearchPaths, MaxDNSSearchListChars).
_MOST_SERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_LONGEST_SEARCHES: Final = 2048
_LONGEST_DOMAIN: Final = 253

_LOCAL: Final = (
    "127.0.0.1\tlocalhost\n"
    "::1\tlocalhost ip6-localhost ip6-loopback\n"
    "fe00::0\tip6-localnet\n"
    "fe00::0\tip6-mcastprefix\n"
    "fe00::1\tip6-allnodes\n"
    "fe00::2\tip6-allrouters\n"
)


@frozen(kw_only=True)
class Names:
    """DNS settings of a kubelet: its cluster's DNS, and two files of its host."""

    cluster_dns: Sequence[str] = ()
    cluster_domain: str = "cluster.local"
    hosts: str = ""
    resolv_conf: str = ""


def label(name: str, spec: JsonView) -> str:
    """Returns the pod's name within its domain, cut to the length of a DNS label."""
    return str(spec.get("hostname") or name)[:_LONGEST_LABEL].rstrip("-.")


def domain(namespace: str, spec: JsonView, *, cluster_domain: str) -> str:
    """Returns the domain of a pod with a `subdomain`; empty without one."""
    return f"{spec['subdomain']}.{namespace}.svc.{cluster_domain}" if spec.get("subdomain") else ""


def hostname(name: str, namespace: str, *, spec: JsonView, cluster_domain: str) -> str:
    """Returns the output of `uname -n` in the pod; empty on the host's network, where it is the host's.

    Raises ValueError when the kernel would not accept it.
    """
    if spec.get("hostNetwork"):
        return ""
    own, parent = label(name, spec), domain(namespace, spec, cluster_domain=cluster_domain)
    if not parent or not spec.get("setHostnameAsFQDN"):
        return own
    whole = f"{own}.{parent}"
    if len(whole) > _LONGEST_NAME:
        raise ValueError(
            f"failed to construct FQDN from pod hostname and cluster domain, FQDN {whole} is too long "
            f"({_LONGEST_NAME} characters is the max, {len(whole)} characters requested)"
        )
    return whole


def hosts(name: str, namespace: str, *, spec: JsonView, ips: Sequence[str], names: Names) -> str:
    """Renders `/etc/hosts`; on the host's network that of the host with the pod's aliases."""
    aliases = _aliases(spec.get("hostAliases") or ())
    if spec.get("hostNetwork"):
        return f"# Kubernetes-managed hosts file (host network).\n{names.hosts}{aliases}"
    own, parent = label(name, spec), domain(namespace, spec, cluster_domain=names.cluster_domain)
    entry = f"{own}.{parent}\t{own}" if parent else own
    entries = "".join(f"{ip}\t{entry}\n" for ip in ips)
    return f"# Kubernetes-managed hosts file.\n{_LOCAL}{entries}{aliases}"


def _aliases(aliases: Sequence[JsonView]) -> str:
    lines = ["\t".join([alias["ip"], *(alias.get("hostnames") or ())]) for alias in aliases]
    return "".join(f"{line}\n" for line in ("", "# Entries added by HostAliases.", *lines)) if lines else ""


@frozen
class Dns:
    """The three parts of a resolv.conf; options by name, with their values."""

    servers: Sequence[str] = ()
    searches: Sequence[str] = ()
    options: Mapping[str, str] = field(factory=dict)

    @classmethod
    def parse(cls, text: str) -> Self:
        """Parses a resolv.conf: servers and options add up; the last line of searches counts."""
        servers: list[str] = []
        searches: list[str] = []
        options: dict[str, str] = {}
        for line in text.splitlines():
            key, *values = line.split() or [""]
            if key == "nameserver":
                servers += values[:1]
            elif key == "search":
                searches = [value.removesuffix(".") for value in values if value != "."]
            elif key == "options":
                options |= _options(values)
        return cls(servers, searches, options)

    def __str__(self) -> str:
        options = [f"{name}:{value}" if value else name for name, value in self.options.items()]
        lines = [("search", " ".join(self.searches)), *(("nameserver", ip) for ip in self.servers), ("options", " ".join(options))]
        return "".join(f"{key} {values}\n" for key, values in lines if values)


def resolv_conf(namespace: str, spec: JsonView, *, names: Names) -> str:
    """Renders `/etc/resolv.conf` by `dnsPolicy` and `dnsConfig`. Without a cluster DNS its policies mean the host's."""
    base, policy = Dns.parse(names.resolv_conf), spec.get("dnsPolicy") or "ClusterFirst"
    of_the_cluster = policy == "ClusterFirstWithHostNet" or (policy == "ClusterFirst" and not spec.get("hostNetwork"))
    if policy == "None":
        base = Dns()
    elif of_the_cluster and names.cluster_dns:
        own = names.cluster_domain
        searches = [f"{namespace}.svc.{own}", f"svc.{own}", own] if own else []
        base = Dns(names.cluster_dns, _distinct([*searches, *base.searches]), {"ndots": "5"})
    config: JsonView = spec.get("dnsConfig") or {}
    servers = _distinct([*base.servers, *(config.get("nameservers") or ())])
    searches = _distinct([*base.searches, *(config.get("searches") or ())])
    options = {**base.options, **{each["name"]: each.get("value") or "" for each in config.get("options") or ()}}
    return str(Dns(servers[:_MOST_SERVERS], _fitting(searches), options))


def _options(values: Iterable[str]) -> dict[str, str]:
    return {name: value for name, _, value in (each.partition(":") for each in values)}


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _fitting(searches: Sequence[str]) -> list[str]:
    """Returns as many search domains as Kubernetes accepts, from the first."""
    # A longer one crashes programs that use glibc 2.28.
    fitting = [each for each in searches[:_MOST_SEARCHES] if len(each) <= _LONGEST_DOMAIN]
    while len(" ".join(fitting)) > _LONGEST_SEARCHES:
        fitting.pop()
    return fitting
