"""What `kubeocean bind` is about to do, as objects and as text (pure).

Invariant: what is shown is what is applied, except for the kubeconfig, which a sentence replaces, and for expressions of admission
policies, of which their messages are shown.
"""

import textwrap
from collections.abc import Sequence
from typing import Final, Self

import yaml
from attrs import frozen

from kubeocean.commands.identity import LABELS, Identity
from kubeocean.model import keys
from kubeocean.model.crds import CLUSTERBINDINGS, POLICIES, ClusterBinding, definition
from kubeocean.model.kinds import ExtraKind
from kubeocean.rbac import permissions
from kubeocean.worker.connect import KUBECONFIG
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.names import NAME_LIMIT, is_dns_subdomain
from vkubelet.api.objects import ADMISSIONPOLICIES, ADMISSIONPOLICYBINDINGS, Json, Key, Unknown
from vkubelet.commands.manifests import commented
from vkubelet.errors import SettingsError

HIDDEN: Final = "<kubeconfig of the ServiceAccount above; `kubeocean bind` writes it and never shows it>"
SHARED: Final = f"""\
# PriorityClass {keys.DEFAULT_PRIORITY_CLASS} ({keys.DEFAULT_PRIORITY}) is created with the first pod, unless it exists.
# All bindings share it, and it is deleted with the identity of the last one.
"""
_LIMITED: Final = """\
Admission policies are created as well, and limit the use of these rights (`kubeocean bind {name} --print worker` prints them in full):

"""
_SUFFIX: Final = "-kubeconfig"
_FLAGS: Final = {"spec.clusterID": "--cluster-id", "spec.mountNamespace": "--mount-namespace"}


@frozen(kw_only=True)
class BindFlags:
    """The flags; an empty one defaults to the value of the existing binding, else to the usual default."""

    name: str
    cluster_id: str = ""
    mount_namespace: str = ""
    namespace: str = keys.NAMESPACE
    metrics: bool = False
    policy_label: bool = False
    tenants: Sequence[str] = ()
    """Hub namespaces for which a worker namespace is prepared; any selects PerNamespace."""
    create_namespaces: bool = False
    kinds: Sequence[ExtraKind] = ()
    """Those of the setting `provider.extra_kinds`, for which rights are granted."""


@frozen(kw_only=True)
class Plan:
    """The desired state."""

    name: str
    cluster_id: str
    secret: Key
    namespace: str
    identity: Identity

    @classmethod
    def of(cls, flags: BindFlags, existing: Unknown | None = None) -> Self:
        """Merges the flags and the existing binding. Raises SettingsError for an immutable field, naming the flag."""
        binding = ClusterBinding.parse(existing) if existing else None
        cluster_id, mount, secret = "", "", Key("", "")
        if binding:
            cluster_id, mount = binding.cluster_id, binding.mount_namespace
            secret = Key(binding.secret.namespace, binding.secret.name)
            _keep("--cluster-id", flags.cluster_id, cluster_id)
            _keep("--mount-namespace", flags.mount_namespace, mount)
        mount = mount or flags.mount_namespace or keys.WORKER_NAMESPACE
        return cls(
            name=flags.name,
            cluster_id=cluster_id or flags.cluster_id or flags.name,
            secret=secret if secret.name else Key(flags.namespace, f"{flags.name}{_SUFFIX}"),
            namespace=secret.namespace or flags.namespace,
            identity=Identity(
                mount_namespace=mount,
                metrics=flags.metrics,
                policy_label=flags.policy_label,
                per_namespace=bool(
                    flags.tenants or flags.create_namespaces or (binding and binding.requested_mapping == keys.PER_NAMESPACE)
                ),
                tenants=tuple(flags.tenants),
                creates=flags.create_namespaces,
                kinds=flags.kinds,
            ),
        )

    def check(self) -> None:
        """Validates the plan. Raises SettingsError for invalid fields, naming the flag."""
        if not is_dns_subdomain(self.secret.name) or not is_dns_subdomain(self.name):
            rule = "the name of an object: lower case letters, digits, '-' and '.', beginning and ending with a letter or digit"
            raise SettingsError("NAME", f"must be {rule}, at most {NAME_LIMIT - len(_SUFFIX)} characters")
        for problem in ClusterBinding.parse(decode_object(Unknown, encode_json(self.binding))).validate():
            raise SettingsError(_FLAGS.get(problem.field, problem.field), problem.sentence)

    @property
    def mount_namespace(self) -> str:
        return self.identity.mount_namespace

    @property
    def hub_namespace(self) -> Json:
        return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": self.namespace}}

    @property
    def binding(self) -> Json:
        return {
            "apiVersion": CLUSTERBINDINGS.api_version,
            "kind": CLUSTERBINDINGS.kind,
            "metadata": {"name": self.name},
            "spec": {
                "clusterID": self.cluster_id,
                "secretRef": {"name": self.secret.name, "namespace": self.secret.namespace},
                "mountNamespace": self.mount_namespace,
                **({"namespaceMapping": keys.PER_NAMESPACE} if self.identity.per_namespace else {}),
            },
        }

    @property
    def secret_metadata(self) -> Json:
        labels = {**LABELS, keys.CLUSTER_BINDING: keys.label_value(self.name)}
        return {"name": self.secret.name, "namespace": self.secret.namespace, "labels": labels}

    def shown_secret(self) -> Json:
        """Returns the Secret as shown to users: without its content."""
        return {"apiVersion": "v1", "kind": "Secret", "metadata": self.secret_metadata, "stringData": {KUBECONFIG: HIDDEN}}

    # --- As text ----------------------------------------------------------------------------------------------------------------------

    def worker_yaml(self) -> str:
        return SHARED + commented([*self.identity.objects, *self.identity.guards], self.identity.rules)

    def worker_shown(self) -> str:
        """Renders the identity and its roles as YAML, and of each admission policy, which is long, what it requires."""
        kinds = (ADMISSIONPOLICIES.kind, ADMISSIONPOLICYBINDINGS.kind)
        limits = {
            each["metadata"]["name"]: each["spec"]["validations"] for each in self.identity.guards if each["kind"] == ADMISSIONPOLICIES.kind
        }
        lines = [f"{name}: {'; '.join(dict.fromkeys(each['message'] for each in rules))}" for name, rules in limits.items()]
        others = [each for each in self.identity.guards if each["kind"] not in kinds]
        shown = commented([*self.identity.objects, *others], self.identity.rules)
        return SHARED + shown + "\n" + _LIMITED.format(name=self.name) + textwrap.indent("\n".join(lines), "  ") + "\n"

    def hub_yaml(self, *, secret: bool = True) -> str:
        """Renders the hub's objects; without `secret`, a comment with the command that creates the Secret replaces the document."""
        if secret:
            return commented([self.hub_namespace, self.shown_secret(), self.binding], ())
        missing = f"""\
Create the Secret with the kubeconfig of ServiceAccount {self.mount_namespace}/{permissions.SYNCER} first:
kubectl -n {self.secret.namespace} create secret generic {self.secret.name} --from-file={KUBECONFIG}=FILE"""
        return commented([self.hub_namespace, self.binding], (), notes={1: missing})

    def manifests(self, cluster: str = "all") -> str:
        """Renders the objects in the `worker`, the `hub`, or `all`; those of one cluster can be piped to `kubectl apply`."""
        worker = ["# --- Apply the following in the worker cluster.\n" + definition(POLICIES), self.worker_yaml()]
        hub = [
            "# --- Apply the following in the computing cluster.\n" + definition(CLUSTERBINDINGS),
            self.hub_yaml(secret=cluster == "all"),
        ]
        return "---\n".join({"worker": worker, "hub": hub}.get(cluster, worker + hub))

    def syncer_rights(self) -> str:
        """Lists the rights of the binding's process in the hub, one per line."""
        lines = []
        for rule in permissions.hub_rules(binding=self.name, namespace=self.namespace, kinds=self.identity.kinds):
            where = f" in {rule.namespace}" if rule.namespace else ""
            lines.append(f"{', '.join(rule.verbs)}: {', '.join(rule.resources)}{where}. {rule.why}")
        return textwrap.indent("\n".join(lines), "  ")

    def sample_policy(self) -> str:
        """Renders a policy that leases half of the CPU and memory that local pods leave unrequested, and all of every other resource."""
        limits = [{"resource": each, "percent": 50} for each in ("cpu", "memory")]
        body = {
            "apiVersion": POLICIES.api_version,
            "kind": POLICIES.kind,
            "metadata": {"name": f"half-for-{self.name}"},
            "spec": {"cluster": self.name, "resourceLimits": limits},
        }
        return yaml.safe_dump(body, sort_keys=False)


def _keep(flag: str, wanted: str, present: str) -> None:
    if wanted and present and wanted != present:
        raise SettingsError(flag, f"is {present} for this ClusterBinding and cannot be changed; omit the flag, or choose another NAME")
