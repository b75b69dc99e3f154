"""What `kubeocean bind` is about to do, as objects and as text (pure).

Invariant: what is shown is what is applied, except for the kubeconfig, which a sentence replaces.
"""

from __future__ import annotations

import textwrap
from typing import Final

import yaml
from attrs import frozen

from kubeocean.commands.identity import LABELS, Identity
from kubeocean.commands.manifests import commented
from kubeocean.model import keys
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.resources import CLUSTERBINDINGS, POLICIES, definition
from kubeocean.rbac import permissions
from kubeocean.worker.connect import KUBECONFIG
from vkubelet.api.codec import decode_object, encode_json
from vkubelet.api.objects import Key, Unknown
from vkubelet.api.shapes import Json
from vkubelet.errors import SettingsError

HIDDEN: Final = "<the kubeconfig of the ServiceAccount above; `kubeocean bind` puts it here and never shows it>"
SHARED: Final = f"""\
# With the first pod PriorityClass {keys.DEFAULT_PRIORITY_CLASS} ({keys.DEFAULT_PRIORITY}) is made, where there is none.
# All bindings share it: it stays when one ends, and goes with the identity of the last.
"""
_FLAGS: Final = {"spec.clusterID": "--cluster-id", "spec.mountNamespace": "--mount-namespace"}


@frozen(kw_only=True)
class Wish:
    """The flags; an empty one defaults to the value of the existing binding, else to the usual default."""

    name: str
    cluster_id: str = ""
    mount_namespace: str = ""
    namespace: str = keys.NAMESPACE
    metrics: bool = False
    policy_label: bool = False


@frozen(kw_only=True)
class Plan:
    """The desired state."""

    name: str
    cluster_id: str
    secret: Key
    namespace: str
    identity: Identity

    @classmethod
    def of(cls, wish: Wish, existing: Unknown | None = None) -> Plan:
        """Merges the flags and the existing binding. Raises SettingsError for an immutable field, naming the flag."""
        binding = ClusterBinding.parse(existing) if existing else None
        cluster_id, mount, secret = "", "", Key("", "")
        if binding:
            cluster_id, mount = binding.cluster_id, binding.mount_namespace
            secret = Key(binding.secret.namespace, binding.secret.name)
            _keep("--cluster-id", wish.cluster_id, cluster_id)
            _keep("--mount-namespace", wish.mount_namespace, mount)
        mount = mount or wish.mount_namespace or keys.WORKER_NAMESPACE
        return cls(
            name=wish.name,
            cluster_id=cluster_id or wish.cluster_id or wish.name,
            secret=secret if secret.name else Key(wish.namespace, f"{wish.name}-kubeconfig"),
            namespace=secret.namespace or wish.namespace,
            identity=Identity(mount_namespace=mount, metrics=wish.metrics, policy_label=wish.policy_label),
        )

    def check(self) -> None:
        """Validates the plan. Raises SettingsError for invalid fields, naming the flag."""
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
        for rule in permissions.hub_rules(binding=self.name, namespace=self.namespace):
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
        raise SettingsError(flag, f"is {present} for this binding and can not be changed; leave the flag out, or choose another name")
