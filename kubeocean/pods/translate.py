"""Translates a virtual pod into the body of its physical pod (pure).

Invariant: the user cannot choose any object of the worker: every object the physical pod refers to is the copy of one in the user's own
namespace, it has no identity in the worker, and its node is the one the hub's scheduler chose.
"""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from kubeocean.model import keys
from kubeocean.model import references as refs
from kubeocean.model.crds import ApiServerAccess, DnsAccess
from kubeocean.model.identity import Target, marks, propagated
from kubeocean.model.overrides import images_of, remembered
from vkubelet.api.names import is_ip
from vkubelet.api.objects import Json, JsonView, Pod
from vkubelet.api.podspec import PLANNED_CONTAINERS, SECRET_VOLUMES, ephemeral_claim
from vkubelet.errors import PodRejected

# The hub's scheduler has used them; the worker would reject them, or apply them a second time to other pods and nodes.
_DROPPED: Final = (
    "nodeName",
    "nodeSelector",
    "affinity",
    "topologySpreadConstraints",
    "schedulerName",
    "schedulingGates",
    "workloadRef",
    "priority",
    "priorityClassName",
    "preemptionPolicy",
    "overhead",
    "serviceAccountName",
    "serviceAccount",
    # Evaluated in the hub, where the clients that set these conditions find the pod (pods/virtual_status.py).
    "readinessGates",
    # Only the API server adds them, by a separate request.
    "ephemeralContainers",
)
# Limits of core/v1 validation (MaxDNSNameservers, MaxDNSSearchPaths, MaxDNSSearchListChars).
_MOST_SERVERS: Final = 3
_MOST_SEARCHES: Final = 32
_LONGEST_SEARCHES: Final = 2048

_FOLLOWS_CLUSTER: Final = frozenset({"ClusterFirst", "ClusterFirstWithHostNet"})
_HOSTNAME_LIMIT: Final = 63
_OVERRIDE_LIMIT: Final = 64
_VIRTUAL_FIELDS: Final[Mapping[str, str]] = {
    "metadata.namespace": keys.VIRTUAL_POD_NAMESPACE,
    "metadata.name": keys.VIRTUAL_POD_NAME,
    "metadata.uid": keys.VIRTUAL_POD_UID,
    "spec.nodeName": keys.VIRTUAL_NODE_NAME,
    "spec.serviceAccountName": keys.SERVICE_ACCOUNT,
}


def physical_pod(pod: Pod, target: Target) -> Json:
    """Returns the body to POST. Raises PodRejected for a pod that can never run in the worker."""
    # Checks the spec, unless it was checked just before.
    refs.references(pod)
    spec = pod.spec
    metadata = _metadata(pod, spec, target)
    for name in _DROPPED:
        spec.pop(name, None)
    spec["automountServiceAccountToken"] = False
    # Services of the mount namespace are not those of the pod's namespace, whose variables are set here.
    spec["enableServiceLinks"] = False
    spec["priorityClassName"] = target.priority_class
    _set_hostname(spec, pod, domain=target.domain)
    spec |= _placement(target)
    set_dns(spec, target.dns, namespace=pod.metadata.namespace)
    if target.dns is None and target.services_zone:
        _search_mirrors(spec, f"{pod.metadata.namespace}.{target.services_zone}", domain=target.domain)
    if aliases := host_aliases(spec.get("hostAliases") or (), target.api_server, domain=target.domain):
        spec["hostAliases"] = aliases
    _rename_volumes(spec, pod)
    if secrets := spec.get("imagePullSecrets"):
        spec["imagePullSecrets"] = [
            {"name": keys.physical_name(pod.metadata.namespace, each["name"])} for each in secrets if each.get("name")
        ]
    for kind in PLANNED_CONTAINERS:
        if kind in spec:
            spec[kind] = physical_containers(spec[kind], pod, target)
    body = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
    return target.overrides.finish(body)


def physical_containers(containers: Sequence[Json], pod: Pod, target: Target) -> list[Json]:
    """Translates the environment and image of containers of any kind, in place, and returns them."""
    namespace = pod.metadata.namespace
    ours = {**target.services, "HOSTNAME": pod.spec.get("hostname") or pod.metadata.name, **api_server_environment(target.api_server)}
    for container in containers:
        users = container.get("env") or ()
        named = {variable["name"] for variable in users}
        for variable in users:
            _rename_variable(variable, namespace)
        for source in container.get("envFrom") or ():
            for kind in refs.ENV_FROM_SOURCES & source.keys():
                _rename(source[kind], "name", namespace)
        # Ours come first, so that the user's may refer to them by $(NAME).
        container["env"] = [*({"name": name, "value": value} for name, value in ours.items() if name not in named), *users]
        if image := container.get("image"):
            container["image"] = target.overrides.image(image)
    return list(containers)


def _metadata(pod: Pod, spec: JsonView, target: Target) -> Json:
    desired, ours = propagated(pod), marks(pod, target)
    annotations = {**desired.annotations, **ours.annotations, keys.EXPECTED_METADATA: desired.encode()}
    if spec.get("ephemeralContainers"):
        # They are added afterwards; until then this generation is not reflected.
        annotations.pop(keys.VIRTUAL_GENERATION, None)
    images = images_of(spec, *PLANNED_CONTAINERS)
    if note := remembered(images, {name: target.overrides.image(image) for name, image in images.items()}):
        annotations[keys.VIRTUAL_IMAGES] = note
    return {
        "name": keys.physical_name(pod.metadata.namespace, pod.metadata.name),
        "namespace": target.namespace,
        "labels": {**desired.labels, **ours.labels},
        "annotations": annotations,
    }


def _placement(target: Target) -> Json:
    if target.direct:
        return {"nodeName": target.node}
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [target.node]}]}
    required = {"nodeSelectorTerms": [here]}
    return {"affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}}


def _set_hostname(spec: Json, pod: Pod, *, domain: str) -> None:
    """Sets the pod's hostname; its fully qualified name is that of the hub, or none.

    A kubelet derives it from `subdomain` and the namespace, which in the worker is the mount namespace: no DNS server resolves that name.
    The field `hostnameOverride` contains the full name, where the worker supports it (KEP-4762); elsewhere the API server drops it.
    """
    spec.setdefault("hostname", _hostname(pod.metadata.name))
    subdomain, is_qualified = spec.pop("subdomain", ""), spec.pop("setHostnameAsFQDN", False)
    name = f"{spec['hostname']}.{subdomain}.{pod.metadata.namespace}.svc.{domain}"
    if subdomain and is_qualified and not spec.get("hostNetwork") and len(name) <= _OVERRIDE_LIMIT:
        spec["hostnameOverride"] = name


def _hostname(name: str) -> str:
    """Returns the pod's name as one DNS label, for `spec.hostname`. Raises PodRejected when nothing is left of it."""
    hostname = re.sub(r"[.]", "-", name)[:_HOSTNAME_LIMIT].strip("-")
    if not hostname:
        raise PodRejected("InvalidHostname", f"pod name {name!r} contains nothing that a hostname may contain; set spec.hostname")
    return hostname


def _rename_volumes(spec: Json, pod: Pod) -> None:
    namespace = pod.metadata.namespace
    secret = keys.token_secret_name(namespace, pod.metadata.name, pod.metadata.uid)
    token_keys = {id(source): refs.token_key(index) for index, (_, source) in enumerate(refs.token_sources(spec))}
    for volume in spec.get("volumes") or ():
        if volume.pop("ephemeral", None) is not None:
            volume["persistentVolumeClaim"] = {"claimName": ephemeral_claim(pod.metadata.name, volume["name"])}
        _rename(volume.get("configMap"), "name", namespace)
        _rename(volume.get("secret"), "secretName", namespace)
        _rename(volume.get("persistentVolumeClaim"), "claimName", namespace)
        _rename(volume.get("azureFile"), "secretName", namespace)
        for kind, field in SECRET_VOLUMES.items():
            _rename((volume.get(kind) or {}).get(field), "name", namespace)
        _rename_fields(volume.get("downwardAPI"))
        for source in (volume.get("projected") or {}).get("sources") or ():
            _rename(source.get("configMap"), "name", namespace)
            _rename(source.get("secret"), "name", namespace)
            _rename_fields(source.get("downwardAPI"))
            if token := source.pop("serviceAccountToken", None):
                item = {"key": token_keys[id(token)], "path": token["path"]}
                source["secret"] = {"name": secret, "items": [item]}


def _rename_variable(variable: Json, namespace: str) -> None:
    source = variable.get("valueFrom") or {}
    _rename(source.get("configMapKeyRef"), "name", namespace)
    _rename(source.get("secretKeyRef"), "name", namespace)
    _rename_field(source.get("fieldRef"))


def _rename_fields(source: Json | None) -> None:
    for item in (source or {}).get("items") or ():
        _rename_field(item.get("fieldRef"))


def _rename_field(reference: Json | None) -> None:
    if reference and (annotation := _VIRTUAL_FIELDS.get(reference["fieldPath"])):
        reference["fieldPath"] = f"metadata.annotations['{annotation}']"


def _rename(source: Json | None, field: str, namespace: str) -> None:
    if source and source.get(field):
        source[field] = keys.physical_name(namespace, source[field])


# --- Access to the hub's API server and DNS ---------------------------------------------------------------------------------------------


def api_server_environment(access: ApiServerAccess | None) -> dict[str, str]:
    """Returns the variables that in-cluster clients read; the other KUBERNETES_* of a kubelet are for Docker links and not set."""
    if access is None:
        return {}
    return {"KUBERNETES_SERVICE_HOST": access.host, "KUBERNETES_SERVICE_PORT": str(access.port)}


def host_aliases(aliases: Sequence[JsonView], access: ApiServerAccess | None, *, domain: str) -> list[Json]:
    """Returns the user's aliases, and one that maps the usual names of the API server to its host, if that is an IP address."""
    kept = [dict(alias) for alias in aliases]
    if access is None or not is_ip(access.host):
        return kept
    hostnames = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", f"kubernetes.default.svc.{domain}"]
    return [*kept, {"ip": access.host, "hostnames": hostnames}]


def set_dns(spec: Json, access: DnsAccess | None, *, namespace: str) -> None:
    """Replaces the cluster DNS policies of `spec` by the hub's DNS; without access the worker's stays.

    ClusterFirst with `hostNetwork` means the node's own DNS (documented for `dnsPolicy`), so it is not changed.
    """
    if access is None or not _uses_cluster_dns(spec):
        return
    config: JsonView = spec.get("dnsConfig") or {}
    searches = [f"{namespace}.svc.{access.domain}", f"svc.{access.domain}", access.domain]
    spec["dnsPolicy"] = "None"
    spec["dnsConfig"] = {
        "nameservers": _distinct([*access.servers, *(config.get("nameservers") or ())])[:_MOST_SERVERS],
        "searches": _fitting(_distinct([*searches, *(config.get("searches") or ())])),
        "options": _options({"ndots": {"name": "ndots", "value": "5"}}, config.get("options") or ()),
    }


def _uses_cluster_dns(spec: JsonView) -> bool:
    policy = spec.get("dnsPolicy") or "ClusterFirst"
    return policy in _FOLLOWS_CLUSTER and not (policy == "ClusterFirst" and spec.get("hostNetwork"))


def _search_mirrors(spec: Json, zone: str, *, domain: str) -> None:
    """Adds the zone in which the worker's DNS finds the Services of the pod's namespace.

    The kubelet of the worker puts the zone of the mount namespace before it, in which `name.namespace` and full names are found. `ndots`
    makes resolvers search full names too, also those of single pods.
    """
    if not _uses_cluster_dns(spec):
        return
    config: JsonView = spec.get("dnsConfig") or {}
    ndots = {"name": "ndots", "value": str(f"pod.service.namespace.svc.{domain}".count(".") + 1)}
    spec["dnsConfig"] = {
        **config,
        "searches": _fitting(_distinct([*(config.get("searches") or ()), zone])),
        "options": _options({"ndots": ndots}, config.get("options") or ()),
    }


def _options(ours: Mapping[str, Json], users: Iterable[JsonView]) -> list[Json]:
    merged = {**ours, **{option.get("name", ""): dict(option) for option in users}}
    return list(merged.values())


def _distinct(values: Iterable[str]) -> list[str]:
    return list(dict.fromkeys(values))


def _fitting(searches: Sequence[str]) -> list[str]:
    """Returns the first search domains, as many as Kubernetes accepts."""
    fitting = list(searches[:_MOST_SEARCHES])
    while len(" ".join(fitting)) > _LONGEST_SEARCHES:
        fitting.pop()
    return fitting
