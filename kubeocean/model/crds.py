"""The two custom resources: their paths in the API server, their definitions, and their objects as values with every validation rule.

Invariant: parsing never fails. An object that an older definition admitted, with a wrong type or an invalid time, parses to a value whose
`validate()` returns the problems and their remedies; callers validate a value before they act on it. The YAML in
`kubeocean/manifests` is the only copy of the definitions; charts and manifests are made from it.
"""

import base64
import binascii
import re
from collections.abc import Mapping, Sequence
from datetime import timedelta
from functools import cached_property
from importlib.resources import files
from typing import Final, Self

from attrs import field, frozen

from kubeocean.model import keys
from kubeocean.model.overrides import Overrides
from kubeocean.model.shares import NamespaceShare, problems_of
from kubeocean.model.windows import TimeWindow, zone_of
from vkubelet.api.fields import Fields, Problem
from vkubelet.api.names import is_dns_label, is_dns_subdomain, is_ip
from vkubelet.api.objects import JsonView, Resource, Unknown
from vkubelet.api.quantity import ZERO, Quantity

GROUP: Final = "cloud.tencent.com"
VERSION: Final = "v1beta1"

CLUSTERBINDINGS: Final = Resource(GROUP, VERSION, "clusterbindings", "ClusterBinding", False, Unknown)
"""Stored in the hub."""

POLICIES: Final = Resource(GROUP, VERSION, "resourceleasingpolicies", "ResourceLeasingPolicy", False, Unknown)
"""Stored in the worker cluster."""


def definition(resource: Resource[Unknown]) -> str:
    """Returns the YAML of its CustomResourceDefinition, ready to be applied."""
    return files("kubeocean").joinpath("manifests", f"{resource.plural}.yaml").read_text(encoding="utf-8")


CLUSTER_ID_LIMIT: Final = 24
HOLD: Final = "Hold"
FAIL_OVER: Final = "FailOver"

_CLUSTER_ID: Final = re.compile(r"[a-z0-9]([-a-z0-9]*[a-z0-9])?")
_SHORTEST_FAIL_OVER: Final = 40
_DEFAULT_FAIL_OVER: Final = 300
LONGEST_GRACE: Final = 2**31 - 1


@frozen
class ResourceLimit:
    """One entry of `spec.resourceLimits`; of `quantity` and `percent` the smaller bound counts, None sets none."""

    resource: str
    quantity: Quantity | None = None
    percent: int | None = None

    def bound(self, available: Quantity) -> Quantity:
        """Returns the upper bound of what is leased of `available`."""
        bounds = [available]
        if self.quantity is not None:
            bounds.append(self.quantity)
        if self.percent is not None:
            bounds.append(available.percent(self.percent))
        return min(bounds)

    def __str__(self) -> str:
        """Formatted as in the annotation policy-details: `cpu=4/80%`."""
        parts = [] if self.quantity is None else [str(self.quantity)]
        if self.percent is not None:
            parts.append(f"{self.percent}%")
        return f"{self.resource}={'/'.join(parts)}"


@frozen
class SecretReference:
    """Reference to the Secret of the hub with the worker's kubeconfig."""

    name: str = ""
    namespace: str = ""


@frozen
class OnUnreachable:
    """Behaviour while the worker does not answer; `after` (seconds) counts for FailOver."""

    mode: str = HOLD
    after: float = _DEFAULT_FAIL_OVER


@frozen
class FromWorker:
    """Keys of labels and annotations that may come from the worker: `example.com/key`, `example.com/*`, or `*` for every key."""

    pod_labels: Sequence[str] = ()
    pod_annotations: Sequence[str] = ()
    node_annotations: Sequence[str] = ()


def names_key(patterns: Sequence[str], key: str) -> bool:
    """Returns whether one of the patterns of FromWorker matches the key."""
    return any(pattern in ("*", key) or pattern.endswith("/*") and key.startswith(pattern[:-1]) for pattern in patterns)


@frozen
class ApiServerAccess:
    """Address at which pods in the worker reach the hub's API server; `ca_bundle` is PEM text or empty."""

    host: str
    port: int = 443
    ca_bundle: str = ""


@frozen
class DnsAccess:
    """DNS servers of the hub, as pods in the worker reach them, and the domain they serve."""

    servers: Sequence[str]
    domain: str = "cluster.local"


@frozen(kw_only=True)
class ClusterBinding:
    """One worker cluster; names are those of Kubeocean (Go).

    `cluster_id` and `mount_namespace` are those under which it is served, whatever its spec requests since: all objects are found by them.
    """

    name: str
    uid: str
    generation: int
    deleting: bool
    annotations: Mapping[str, str]
    finalizers: Sequence[str]
    cluster_id: str
    secret: SecretReference
    node_selector: JsonView | None
    mount_namespace: str
    mapping: str
    """How hub namespaces are mapped to worker namespaces: `keys.SINGLE` or `keys.PER_NAMESPACE`."""
    asked: keys.Identity
    """Identity that the spec requests now."""
    service_namespaces: Sequence[str]
    disable_default_taint: bool
    priority_class: str
    run_daemonsets: bool
    direct_scheduling: bool
    allow_insecure_worker: bool
    time_zone: str
    on_unreachable: OnUnreachable
    force_unbind_after: float | None
    """Seconds after its deletion from which objects in the worker that cannot be cleaned up are given up; None: never."""
    deleted_at: str
    """When its deletion was requested (RFC 3339), "" when it was not."""
    api_server: ApiServerAccess | None
    dns: DnsAccess | None
    from_worker: FromWorker
    overrides: Overrides
    status: JsonView
    misread: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        """Parses any stored object."""
        body, meta = obj.body, obj.metadata
        problems: list[Problem] = []
        spec = Fields(body.get("spec"), "spec", problems)
        secret = spec.inner("secretRef")
        mapping = spec.text("namespaceMapping") or keys.SINGLE
        asked = keys.Identity(spec.text("clusterID"), spec.text("mountNamespace"), mapping)
        served = keys.Identity.accepted(meta) or asked
        return cls(
            name=meta.name,
            uid=meta.uid,
            generation=meta.generation,
            deleting=meta.deletion_timestamp is not None,
            annotations=meta.annotations,
            finalizers=meta.finalizers,
            cluster_id=served.cluster_id,
            secret=SecretReference(secret.text("name"), secret.text("namespace")),
            node_selector=spec.selector("nodeSelector"),
            mount_namespace=served.mount_namespace or asked.mount_namespace,
            mapping=served.mapping,
            asked=asked,
            service_namespaces=spec.texts("serviceNamespaces"),
            disable_default_taint=spec.flag("disableNodeDefaultTaint"),
            priority_class=spec.text("podPriorityClassName"),
            run_daemonsets=spec.flag("runningDaemonsetByDefault"),
            direct_scheduling=spec.flag("directScheduling"),
            allow_insecure_worker=spec.flag("allowInsecureWorker"),
            time_zone=spec.text("timeZone"),
            on_unreachable=_on_unreachable(spec.inner("onUnreachable")),
            force_unbind_after=_force_unbind_after(spec, problems),
            deleted_at=meta.deletion_timestamp or "",
            api_server=_api_server(spec),
            dns=_dns(spec),
            from_worker=_from_worker(spec.inner("metadataFromWorker")),
            overrides=Overrides.parse(spec.value),
            status=body.get("status") or {},
            misread=tuple(problems),
        )

    @property
    def identity(self) -> keys.Identity:
        """Identity under which it is served."""
        return keys.Identity(self.cluster_id, self.mount_namespace, self.mapping)

    @property
    def requested_mapping(self) -> str:
        """The mapping of namespaces that the spec requests; it is served once nothing is in the worker."""
        return self.asked.mapping

    def validate(self) -> list[Problem]:
        """Returns everything that prevents it from working, without a request to any cluster; empty when it is valid."""
        problems = [*self.misread, *_identity_problems(self.asked), *_secret_problems(self.secret), *self.overrides.problems()]
        for at, namespace in enumerate(self.service_namespaces):
            if not namespace:
                problems.append(Problem(f"spec.serviceNamespaces[{at}]", "is empty; name a namespace or leave it out"))
        if self.on_unreachable.mode not in (HOLD, FAIL_OVER):
            problems.append(Problem("spec.onUnreachable.mode", f"must be {HOLD} or {FAIL_OVER}"))
        if self.on_unreachable.after < _SHORTEST_FAIL_OVER:
            problems.append(Problem("spec.onUnreachable.afterSeconds", f"must be at least {_SHORTEST_FAIL_OVER}"))
        if self.force_unbind_after is not None and self.force_unbind_after < 0:
            problems.append(Problem("spec.forceUnbindAfter", "is negative; write 0 or more seconds, or leave it out"))
        return problems + _zone_problems(self.time_zone) + _access_problems(self)


@frozen(kw_only=True)
class ResourceLeasingPolicy:
    """The lease of one policy; names are those of Kubeocean (Go). `created` is RFC 3339 text in UTC, so it sorts."""

    name: str
    uid: str = ""
    generation: int = 0
    created: str = ""
    deleting: bool = False
    finalizers: Sequence[str] = ()
    cluster: str
    node_selector: JsonView | None = None
    windows: Sequence[TimeWindow] = ()
    limits: Sequence[ResourceLimit] = ()
    force_reclaim: bool = False
    allow_out_of_window_pods: bool = False
    """Whether pods that tolerate the taint of closed nodes may start and stay while no window is open."""
    grace: timedelta = timedelta()
    priority: int = 0
    shares: Sequence[NamespaceShare] = ()
    time_zone: str = ""
    status: JsonView = field(factory=dict)
    misread: Sequence[Problem] = ()

    @classmethod
    def parse(cls, obj: Unknown) -> Self:
        """Parses any stored object."""
        body, meta = obj.body, obj.metadata
        problems: list[Problem] = []
        spec = Fields(body.get("spec"), "spec", problems)
        return cls(
            name=meta.name,
            uid=meta.uid,
            generation=meta.generation,
            created=meta.creation_timestamp,
            deleting=meta.deletion_timestamp is not None,
            finalizers=meta.finalizers,
            cluster=spec.text("cluster"),
            node_selector=spec.selector("nodeSelector"),
            windows=tuple(_window(each) for each in spec.items("timeWindows")),
            limits=tuple(_limit(each) for each in spec.items("resourceLimits")),
            force_reclaim=spec.flag("forceReclaim"),
            allow_out_of_window_pods=spec.flag("allowOutOfWindowPods"),
            grace=timedelta(seconds=max(-1, min(spec.number("gracefulReclaimPeriodSeconds"), LONGEST_GRACE))),
            priority=spec.number("priority"),
            shares=tuple(NamespaceShare.parse(each) for each in spec.items("namespaceShares")),
            time_zone=spec.text("timeZone"),
            status=body.get("status") or {},
            misread=tuple(problems),
        )

    @cached_property
    def is_valid(self) -> bool:
        """Whether nothing prevents it from leasing; evaluated for each node that it matches."""
        return not self.validate()

    def validate(self) -> list[Problem]:
        """Returns everything that prevents it from leasing; empty when it is valid. A policy with a problem leases nothing."""
        problems = list(self.misread)
        if not self.cluster:
            problems.append(Problem("spec.cluster", "is empty; name a ClusterBinding of the computing cluster"))
        for at, window in enumerate(self.windows):
            problems.extend(Problem(f"spec.timeWindows[{at}]", sentence) for sentence in window.problems())
        for at, limit in enumerate(self.limits):
            problems.extend(_limit_problems(limit, f"spec.resourceLimits[{at}]"))
        if self.grace < timedelta():
            problems.append(Problem("spec.gracefulReclaimPeriodSeconds", "is negative; write 0 or more"))
        return problems + problems_of(self.shares) + _zone_problems(self.time_zone)


def _identity_problems(asked: keys.Identity) -> list[Problem]:
    problems = []
    if not asked.cluster_id:
        problems.append(Problem("spec.clusterID", "is empty; choose a short name for the worker cluster"))
    elif len(asked.cluster_id) > CLUSTER_ID_LIMIT or not _CLUSTER_ID.fullmatch(asked.cluster_id):
        rule = f"at most {CLUSTER_ID_LIMIT} lower case letters, digits and '-', beginning and ending with a letter or digit"
        problems.append(Problem("spec.clusterID", f"must be {rule}"))
    if not asked.mount_namespace:
        problems.append(Problem("spec.mountNamespace", "is empty; name the namespace of the worker cluster in which pods run"))
    elif not is_dns_label(asked.mount_namespace):
        problems.append(Problem("spec.mountNamespace", "is not a namespace name; write lower case letters, digits and '-'"))
    if asked.mapping not in (keys.SINGLE, keys.PER_NAMESPACE):
        problems.append(Problem("spec.namespaceMapping", f"must be {keys.SINGLE} or {keys.PER_NAMESPACE}"))
    elif asked.mapping == keys.PER_NAMESPACE and len(asked.mount_namespace) > keys.PREFIX_LIMIT:
        text = f"has more than {keys.PREFIX_LIMIT} characters, which begin the name of every namespace under {keys.PER_NAMESPACE}"
        problems.append(Problem("spec.mountNamespace", f"{text}; choose a shorter one"))
    return problems


def _secret_problems(secret: SecretReference) -> list[Problem]:
    problems = []
    if not secret.name:
        problems.append(Problem("spec.secretRef.name", "is empty; name the Secret with the worker's kubeconfig"))
    if not secret.namespace:
        problems.append(Problem("spec.secretRef.namespace", "is empty; name the namespace of that Secret"))
    return problems


def _access_problems(binding: ClusterBinding) -> list[Problem]:
    problems = []
    access, dns = binding.api_server, binding.dns
    if access is not None and not (is_ip(access.host) or is_dns_subdomain(access.host)):
        problems.append(Problem("spec.apiServerAccess.host", "must be an IP address or a DNS name, without scheme and port"))
    if access is not None and not 0 < access.port < 65536:
        problems.append(Problem("spec.apiServerAccess.port", "must be from 1 to 65535"))
    if dns is not None and not (dns.servers and all(map(is_ip, dns.servers))):
        problems.append(Problem("spec.dns.servers", "must list at least one IP address"))
    if dns is not None and not is_dns_subdomain(dns.domain):
        problems.append(Problem("spec.dns.domain", "is not a DNS domain; write one such as cluster.local"))
    return problems


def _zone_problems(name: str) -> list[Problem]:
    try:
        zone_of(name)
    except ValueError as error:
        return [Problem("spec.timeZone", str(error))]
    return []


def _on_unreachable(fields: Fields) -> OnUnreachable:
    return OnUnreachable(fields.text("mode") or HOLD, float(fields.number("afterSeconds", _DEFAULT_FAIL_OVER)))


def _from_worker(fields: Fields) -> FromWorker:
    return FromWorker(fields.texts("podLabels"), fields.texts("podAnnotations"), fields.texts("nodeAnnotations"))


def _force_unbind_after(spec: Fields, problems: Sequence[Problem]) -> float | None:
    """Parses spec.forceUnbindAfter; a value that cannot be read as a time must not count as zero seconds."""
    known = len(problems)
    seconds = spec.number("forceUnbindAfter") if spec.has("forceUnbindAfter") else None
    return None if seconds is None or len(problems) > known else float(seconds)


def _api_server(spec: Fields) -> ApiServerAccess | None:
    if not spec.has("apiServerAccess"):
        return None
    fields = spec.inner("apiServerAccess")
    bundle = ""
    try:
        bundle = base64.b64decode(fields.text("caBundle"), validate=True).decode()
    except (binascii.Error, UnicodeDecodeError):
        fields.problem("caBundle", "is not base64 of PEM certificates; encode the certificates of the authority")
    return ApiServerAccess(fields.text("host"), fields.number("port", 443), bundle)


def _dns(spec: Fields) -> DnsAccess | None:
    if not spec.has("dns"):
        return None
    fields = spec.inner("dns")
    return DnsAccess(fields.texts("servers"), fields.text("domain") or "cluster.local")


def _window(fields: Fields) -> TimeWindow:
    return TimeWindow(fields.text("start"), fields.text("end"), fields.texts("days"))


def _limit(fields: Fields) -> ResourceLimit:
    percent = fields.number("percent") if fields.has("percent") else None
    return ResourceLimit(fields.text("resource"), fields.quantity("quantity"), percent)


def _limit_problems(limit: ResourceLimit, path: str) -> list[Problem]:
    problems = []
    if not limit.resource:
        problems.append(Problem(f"{path}.resource", "is empty; name a resource such as cpu"))
    if limit.quantity is None and limit.percent is None:
        problems.append(Problem(path, "limits nothing; give quantity, percent, or both"))
    if limit.quantity is not None and limit.quantity < ZERO:
        problems.append(Problem(f"{path}.quantity", "is negative; write 0 or more"))
    if limit.percent is not None and not 0 <= limit.percent <= 100:
        problems.append(Problem(f"{path}.percent", f"is {limit.percent}; write 0 to 100"))
    return problems
