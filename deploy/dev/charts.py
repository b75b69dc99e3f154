"""Writes the generated parts of the charts: CRDs, roles and versions; and the plain manifests, which helm renders from the charts.

Invariant: its output is never edited manually; tests compare every file with it.
"""

from __future__ import annotations

import asyncio
import re
import sys
import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

from fleet.agent.agent_settings import AgentSettings
from fleet.agent.rights import agent_objects, agent_rules
from fleet.api import keys
from fleet.api.resources import CLUSTERCLAIMS, DEFINED
from fleet.core import rights
from fleet.ocm import acceptance
from kubeocean.rbac import permissions, tenants
from vkubelet.api.objects import Json
from vkubelet.api.rbac import RBAC, Rule
from vkubelet.clock import SystemClock
from vkubelet.commands.manifests import commented
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.cluster.processes import ClusterError, run

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "deploy" / "charts"
MANIFESTS = ROOT / "deploy" / "manifests"
CRDS = ROOT / "kubeocean" / "manifests"
FLEET = ROOT / "fleet" / "manifests"
HUB, WORKER = CHARTS / "kubeocean", CHARTS / "kubeocean-worker"
FLEET_HUB, FLEET_AGENT = CHARTS / keys.HUB, CHARTS / keys.AGENT
ALL = (HUB, WORKER, FLEET_HUB, FLEET_AGENT)
SPACE = "NAMESPACE"
MADE = "Made by `make manifests` from kubeocean/rbac/permissions.py and guards.py; change the rights there."
_OF_A_FLEET = "Made by `make manifests` from the rights in fleet/; change them there."
_LABELS: Json = {"LABELS": "LABELS"}
_ACCOUNTS = {HUB.name: "manager.serviceAccount", WORKER.name: "serviceAccount", keys.HUB: "serviceAccount", keys.AGENT: "serviceAccount"}
"""Values with the annotations of the ServiceAccount."""
_NODES = "NODES"
_PRIORITY = "PRIORITY"
_SECRETS = "secrets-of-the-agent"
_REQUIRED = {HUB.name: ("--set=image.repository=kubeocean",)}
"""Values without a default, for the plain manifests."""


def files() -> dict[Path, str]:
    """Returns the generated files of the charts."""
    return {
        HUB / "files/crds/clusterbindings.yaml": (CRDS / "clusterbindings.yaml").read_text(),
        WORKER / "files/crds/resourceleasingpolicies.yaml": (CRDS / "resourceleasingpolicies.yaml").read_text(),
        **{chart / "Chart.yaml": chart_file(chart) for chart in ALL},
        HUB / "templates/rbac.yaml": hub_roles(),
        WORKER / "templates/rbac.yaml": worker_roles(),
        WORKER / "templates/admissionpolicies.yaml": worker_guards(),
        WORKER / "templates/tenants.yaml": worker_tenants(),
        FLEET_HUB / "templates/rbac.yaml": fleet_hub_roles(),
        FLEET_AGENT / "templates/rbac.yaml": fleet_agent_roles(),
        **fleet_manifests(),
    }


def project_version() -> str:
    """Returns the version of the project, from its one place."""
    found: str = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["version"]
    return found


def chart_file(chart: Path) -> str:
    """Returns a Chart.yaml with the version of the project; everything else in it is edited manually."""
    text = (chart / "Chart.yaml").read_text()
    return re.sub(r"^(version|appVersion): .*$", rf"\1: {project_version()}", text, flags=re.MULTILINE)


def hub_roles() -> str:
    """Renders the manager's identity; the manager creates those of the bindings."""
    objects = permissions.manager_objects(namespace=SPACE, dashboard=True)
    text = template(objects, permissions.manager_rules(namespace=SPACE, dashboard=True), chart="kubeocean")
    text = optional(text, "events", "list", switch="dashboard.enabled")
    text = optional(text, "poddisruptionbudgets", "list", group="policy", switch="dashboard.enabled")
    kinds = extra_kinds("kubeocean", 'dig "provider" "extra_kinds" list .Values.syncer.settings', verbs="get, list, watch")
    end = f"---\napiVersion: {RBAC}/v1\nkind: ClusterRoleBinding\n"
    return f"# {MADE}\n{text.replace(end, kinds + end, 1)}"


def worker_roles() -> str:
    """Renders the identity in the mount namespace, which `kubeocean-worker.clusterRole` names for the cluster."""
    objects = permissions.worker_objects(SPACE, policy_label=True)
    objects = [body for body in objects if body["kind"] not in ("Namespace", "Secret")]
    text = template(objects, permissions.worker_rules(SPACE, policy_label=True), chart="kubeocean-worker")
    text = optional(text, "nodes", "patch", switch="policyLabel.enabled")
    usage = template(permissions.metrics_objects(SPACE, nodes=[_NODES]), (), chart="kubeocean-worker")
    usage = usage.replace(f"    resourceNames: [{_NODES}]\n", limited("usage.nodes"))
    return f"# {MADE}\n{text}{{{{- if .Values.usage.enabled }}}}\n---\n{usage}{{{{- end }}}}\n"


def worker_guards() -> str:
    """Renders what limits the identity in the mount namespace; the guard of nodes is included where it may label them."""
    guards = permissions.worker_guards(SPACE, policy_label=True, max_priority=_PRIORITY)
    nodes = [body for body in guards if body["metadata"]["name"].endswith("-nodes")]
    volumes = [body for body in guards if _is_policy_of_volumes(body)]
    always = [body for body in guards if body not in nodes + volumes]
    spread = [body for body in permissions.worker_guards(SPACE, tenants=True) if _is_policy_of_volumes(body)]
    text, label, single, each = (template(bodies, (), chart="kubeocean-worker") for bodies in (always, nodes, volumes, spread))
    text = f"{text}{{{{- if .Values.tenants.enabled }}}}\n---\n{each}{{{{- else }}}}\n---\n{single}{{{{- end }}}}\n"
    text = f"{text}{{{{- if .Values.policyLabel.enabled }}}}\n---\n{label}{{{{- end }}}}\n"
    text = text.replace(_PRIORITY, "{{ .Values.admissionPolicy.maxPriority | int }}")
    return f"# {MADE}\n{{{{- if .Values.admissionPolicy.enabled }}}}\n---\n{text}{{{{- end }}}}\n"


def _is_policy_of_volumes(body: Json) -> bool:
    return body["kind"] == "ValidatingAdmissionPolicy" and str(body["metadata"]["name"]).endswith("-volumes")


def worker_tenants() -> str:
    """Renders the rights of `namespaceMapping: PerNamespace`; those to create namespaces only together with what limits them."""
    parts = []
    for creates in (True, False):
        rules = (*tenants.tenant_rules(SPACE), *tenants.wide_rules(SPACE, creates=creates))
        parts.append(template(tenants.wide_objects(SPACE, creates=creates), rules, chart="kubeocean-worker"))
    written = "get, list, watch, create, update, delete"
    kinds = extra_kinds("kubeocean-worker", ".Values.extraKinds", verbs=written, where='ne (toString .namespaced) "false"')
    policies = f"    resources: [networkpolicies]\n    verbs: [{written}]\n"
    parts = [part.replace(policies, policies + kinds) for part in parts]
    always, limits = (template(bodies, (), chart="kubeocean-worker") for bodies in _guards_of_tenants())
    may = "and .Values.tenants.create .Values.admissionPolicy.enabled"
    text = f"{{{{- if {may} }}}}\n---\n{parts[0]}---\n{limits}{{{{- else }}}}\n---\n{parts[1]}{{{{- end }}}}\n"
    text += f"{{{{- if .Values.admissionPolicy.enabled }}}}\n---\n{always}{{{{- end }}}}\n"
    return f"# {MADE}\n{{{{- if .Values.tenants.enabled }}}}\n{text}{{{{- end }}}}\n"


def _guards_of_tenants() -> tuple[list[Json], list[Json]]:
    """Returns the guards of every namespace of a tenant, and those of the right to create them."""
    always = tenants.tenant_guards(SPACE, creates=False)
    return always, [body for body in tenants.tenant_guards(SPACE) if body not in always]


def fleet_manifests() -> dict[Path, str]:
    """Returns the definitions and admission policies of a fleet, as the package has them."""
    made = {FLEET_HUB / "files" / "admissionpolicies.yaml": (FLEET / "admissionpolicies.yaml").read_text()}
    for each in DEFINED:
        chart = FLEET_AGENT if each == CLUSTERCLAIMS else FLEET_HUB
        made[chart / "files" / "crds" / f"{each.plural}.yaml"] = (FLEET / f"{each.plural}.yaml").read_text()
    return made


def fleet_hub_roles() -> str:
    """Renders the identity of `fleet hub`, the roles that all clusters share, and the identity that asks to join."""
    shared = [body for body in acceptance.hub_objects(SPACE) if body["kind"] != "Namespace"]
    rules = rights.hub_rules(namespace=SPACE)
    given = (acceptance.registration_rules(), acceptance.work_rules(), acceptance.gateway_rules(SPACE), acceptance.bootstrap_rules())
    text = template(rights.hub_objects(namespace=SPACE), rules, chart=keys.HUB)
    for module in (rights.INVENTORY, rights.KUBEFLEET):
        without = rights.hub_rules(tuple({rights.INVENTORY, rights.KUBEFLEET} - {module}), namespace=SPACE)
        text = conditional(text, [rule for rule in rules if rule not in without], condition=f'has "{module}" .Values.modules')
    granted = template(shared, [rule for each in given for rule in each], chart=keys.HUB, account="")
    return f"# {_OF_A_FLEET}\n{text}---\n{granted}"


def fleet_agent_roles() -> str:
    """Renders the identity of `fleet agent`."""
    settings = AgentSettings(cluster="cluster", namespace=SPACE, bootstrap_secrets=(_SECRETS,), cluster_properties=True)
    objects, rules = [body for body in agent_objects(settings) if body["kind"] != "Namespace"], agent_rules(settings)
    text = template(objects, rules, chart=keys.AGENT)
    certificate = [rule for rule in rules if rule.resources == ("secrets",) and _SECRETS not in rule.names]
    text = conditional(text, certificate, condition='ne .Values.door "kubefleet"')
    properties = [rule for rule in rules if "clusterproperties" in rule.resources]
    text = conditional(text, properties, condition=".Values.clusterProperties")
    namespaces = [rule for rule in rules if "namespaces" in rule.resources and not rule.names]
    text = conditional(text, namespaces, condition='and .Values.managedNamespaces (ne .Values.door "kubefleet")')
    text = text.replace(f"[{_SECRETS}]", f'{{{{ include "{keys.AGENT}.secrets" . }}}}')
    return f"# {_OF_A_FLEET}\n{text}"


def conditional(text: str, rules: Sequence[Rule], *, condition: str) -> str:
    """Makes these rules conditional; those that follow one another have one condition."""
    begin, end = f"  {{{{- if {condition} }}}}\n", f"  END OF {condition}\n"
    for rule in rules:
        role: Json = {"kind": "Role", "metadata": {"namespace": rule.namespace}, "rules": [rule.body]}
        found = commented([role], [rule]).partition("rules:\n")[2].replace(SPACE, "{{ .Values.namespace.name }}")
        assert text.count(found) == 1, f"{rule} is granted {text.count(found)} times"
        text = text.replace(found, begin + found + end)
    return text.replace(end + begin, "").replace(end, "  {{- end }}\n")


def template(objects: Sequence[Json], rules: Sequence[Rule], *, chart: str, account: str | None = None) -> str:
    """Renders objects as a chart's template: the namespace and the labels are the chart's.

    `account` is the value with the annotations of ServiceAccounts, by default that of the chart; "" for none.
    """
    labelled = [{**body, "metadata": {**body["metadata"], "labels": _LABELS}} for body in objects]
    text = commented(labelled, rules)
    text = text.replace("    LABELS: LABELS\n", f'    {{{{- include "{chart}.labels" . | nindent 4 }}}}\n')
    value = _ACCOUNTS[chart] if account is None else account
    if value:
        annotations = f"{{{{- with .Values.{value}.annotations }}}}\n  annotations:\n    {{{{- toYaml . | nindent 4 }}}}\n  {{{{- end }}}}"
        text = re.sub("^kind: ServiceAccount\nmetadata:\n(?:  .*\n)+", rf"\g<0>  {annotations}\n", text, flags=re.MULTILINE)
    text = text.replace(f"{permissions.SYNCER}-{SPACE}", f'{{{{ include "{chart}.clusterRole" . }}}}')
    text = text.replace(f"{keys.AGENT}-{SPACE}", f'{{{{ include "{chart}.clusterRole" . }}}}')
    return text.replace(SPACE, "{{ .Values.namespace.name }}")


def optional(text: str, resource: str, verb: str, *, group: str = '""', switch: str) -> str:
    """Makes the one rule that grants exactly this conditional on a value."""
    rule = rf"(  # [^\n]*\n  - apiGroups: \[{group}\]\n    resources: \[{resource}\]\n    verbs: \[{verb}\]\n)"
    found, count = re.subn(rule, rf"  {{{{- if .Values.{switch} }}}}\n\1  {{{{- end }}}}\n", text)
    assert count == 1, f"{resource} {verb} is granted {count} times"
    return found


def extra_kinds(chart: str, value: str, *, verbs: str, where: str = "") -> str:
    """Renders the rules for the kinds of a value; `where` is a condition on each."""
    before, after = (f"{{{{- if {where} }}}}\n  ", "  {{- end }}\n") if where else ("", "")
    group = f'{{{{ include "{chart}.group" . }}}}'
    rule = f"- apiGroups: [{group}]\n    resources: [{{{{ .resource }}}}]\n    verbs: [{verbs}]\n"
    return f"  {{{{- range {value} }}}}\n  {before}{rule}{after}  {{{{- end }}}}\n"


def limited(value: str) -> str:
    return f"    {{{{- with .Values.{value} }}}}\n    resourceNames: {{{{ toJson . }}}}\n    {{{{- end }}}}\n"


async def manifests() -> dict[Path, str]:
    """Renders the charts with their default values, as one file each."""
    helm = (await Binaries(say=print, clock=SystemClock()).ensure(["helm"]))["helm"]
    made = {}
    for chart in (HUB, WORKER):
        text = await run(str(helm), "template", chart.name, str(chart), *_REQUIRED.get(chart.name, ()))
        made[MANIFESTS / f"{chart.name}.yaml"] = (
            f"# Made by `make manifests` from deploy/charts/{chart.name}; nothing here is edited by hand.\n{text}"
        )
    return made


def write(wanted: Mapping[Path, str]) -> None:
    """Writes the files that differ."""
    for path, text in wanted.items():
        if not path.exists() or path.read_text() != text:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            print(f"{path.relative_to(ROOT)}: written")


if __name__ == "__main__":
    write(files())
    try:
        write(asyncio.run(manifests()))
    except ClusterError as error:
        sys.exit(f"error: {error}")
