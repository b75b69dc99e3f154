"""The rights of the agent in its worker: rules with reasons, and the objects that grant them (pure).

Invariant: the agent has the rights listed here and no others; Secrets are readable by name alone.
"""

from fleet.agent.agent_settings import KUBEFLEET, AgentSettings
from fleet.api import keys
from fleet.api.resources import CLUSTER_GROUP
from vkubelet.api.objects import Json
from vkubelet.api.rbac import Rule, granted, namespace_body


def agent_rules(settings: AgentSettings) -> tuple[Rule, ...]:
    """Returns the rights of the agent in the worker; /livez and /version are readable for every client by system:public-info-viewer."""
    own = settings.namespace
    secrets = [*settings.bootstrap_secrets, *([settings.token.secret] if settings.door == KUBEFLEET and settings.token.secret else [])]
    rules = [
        Rule("nodes", "list watch", why="Adds up the resources of the cluster; of specs only heads are retained."),
        Rule("pods", "list watch", why="Subtracts what pods have requested; of specs only requests are retained."),
        Rule("namespaces", "get", names="kube-system", why="Reads the UID that identifies the cluster."),
        Rule("clusterclaims", "list", group=CLUSTER_GROUP, why="Reports the claims of the cluster."),
        Rule("secrets", "get", names=secrets, namespace=own, why="Reads how the hub is reached, and its first identity there."),
        Rule("leases", "create", group="coordination.k8s.io", namespace=own, why="Creates the Lease of its leader election."),
        Rule("leases", "get update", group="coordination.k8s.io", names=keys.AGENT, namespace=own, why="Elects one of its replicas."),
        Rule("deployments", "get", group="apps", names=keys.AGENT, namespace=own, why="Finds the object that its Events are about."),
        Rule("events", "create patch", namespace=own, why="Records Events about its own Deployment."),
    ]
    if settings.door != KUBEFLEET:
        kept = "Stores the key and the certificate of the cluster."
        rules.append(Rule("secrets", "create", namespace=own, why=kept))
        rules.append(Rule("secrets", "get patch", names=keys.HUB_SECRET, namespace=own, why=kept))
        if settings.managed_namespaces:
            creates = "Creates and labels the namespaces that sets of the cluster prescribe; it deletes none."
            rules.append(Rule("namespaces", "list create patch", why=creates))
    if settings.cluster_properties:
        rules.append(Rule("clusterproperties", "list", group="about.k8s.io", why="Reports properties of the cluster as claims."))
    return tuple(rules)


def agent_objects(settings: AgentSettings) -> list[Json]:
    """Builds namespace, ServiceAccount, roles and their bindings."""
    account = {"name": keys.AGENT, "namespace": settings.namespace}
    wide = keys.AGENT if settings.namespace == keys.NAMESPACE else f"{keys.AGENT}-{settings.namespace}"
    roles = granted(agent_rules(settings), keys.AGENT, cluster_name=wide, subject={"kind": "ServiceAccount", **account})
    return [namespace_body(settings.namespace), {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": account}, *roles]
