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

from kubeocean.rbac import permissions, tenants
from vkubelet.api.objects import Json
from vkubelet.api.rbac import Rule
from vkubelet.clock import SystemClock
from vkubelet.commands.manifests import commented
from vkubelet.testing.cluster.binaries import Binaries
from vkubelet.testing.cluster.processes import ClusterError, run

ROOT = Path(__file__).parents[2]
CHARTS = ROOT / "deploy" / "charts"
MANIFESTS = ROOT / "deploy" / "manifests"
CRDS = ROOT / "kubeocean" / "manifests"
HUB, WORKER = CHARTS / "kubeocean", CHARTS / "kubeocean-worker"
SPACE = "NAMESPACE"
MADE = "Made by `make manifests` from kubeocean/rbac/permissions.py and guards.py; change the rights there."
_LABELS: Json = {"LABELS": "LABELS"}
_ACCOUNTS = {HUB.name: "manager.serviceAccount", WORKER.name: "serviceAccount"}
"""Values with the annotations of the ServiceAccount."""
_NODES = "NODES"
_PRIORITY = "PRIORITY"
_REQUIRED = {HUB.name: ("--set=image.repository=kubeocean",)}
"""Values without a default, for the plain manifests."""


def files() -> dict[Path, str]:
    """Returns the generated files of the charts."""
    return {
        HUB / "files/crds/clusterbindings.yaml": (CRDS / "clusterbindings.yaml").read_text(),
        WORKER / "files/crds/resourceleasingpolicies.yaml": (CRDS / "resourceleasingpolicies.yaml").read_text(),
        **{chart / "Chart.yaml": chart_file(chart) for chart in (HUB, WORKER)},
        HUB / "templates/rbac.yaml": hub_roles(),
        WORKER / "templates/rbac.yaml": worker_roles(),
        WORKER / "templates/admissionpolicies.yaml": worker_guards(),
        WORKER / "templates/tenants.yaml": worker_tenants(),
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
    return f"# {MADE}\n{text}"


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
    always, limits = (template(bodies, (), chart="kubeocean-worker") for bodies in _guards_of_tenants())
    may = "and .Values.tenants.create .Values.admissionPolicy.enabled"
    text = f"{{{{- if {may} }}}}\n---\n{parts[0]}---\n{limits}{{{{- else }}}}\n---\n{parts[1]}{{{{- end }}}}\n"
    text += f"{{{{- if .Values.admissionPolicy.enabled }}}}\n---\n{always}{{{{- end }}}}\n"
    return f"# {MADE}\n{{{{- if .Values.tenants.enabled }}}}\n{text}{{{{- end }}}}\n"


def _guards_of_tenants() -> tuple[list[Json], list[Json]]:
    """Returns the guards of every namespace of a tenant, and those of the right to create them."""
    always = tenants.tenant_guards(SPACE, creates=False)
    return always, [body for body in tenants.tenant_guards(SPACE) if body not in always]


def template(objects: Sequence[Json], rules: Sequence[Rule], *, chart: str) -> str:
    """Renders objects as a chart's template: the namespace and the labels are the chart's."""
    labelled = [{**body, "metadata": {**body["metadata"], "labels": _LABELS}} for body in objects]
    text = commented(labelled, rules)
    text = text.replace("    LABELS: LABELS\n", f'    {{{{- include "{chart}.labels" . | nindent 4 }}}}\n')
    account = "kind: ServiceAccount\nmetadata:\n(?:  .*\n)+"
    annotations = (
        f"{{{{- with .Values.{_ACCOUNTS[chart]}.annotations }}}}\n  annotations:\n    {{{{- toYaml . | nindent 4 }}}}\n  {{{{- end }}}}"
    )
    text = re.sub(f"^{account}", rf"\g<0>  {annotations}\n", text, flags=re.MULTILINE)
    text = text.replace(f"{permissions.SYNCER}-{SPACE}", f'{{{{ include "{chart}.clusterRole" . }}}}')
    return text.replace(SPACE, "{{ .Values.namespace.name }}")


def optional(text: str, resource: str, verb: str, *, group: str = '""', switch: str) -> str:
    """Makes the one rule that grants exactly this conditional on a value."""
    rule = rf"(  # [^\n]*\n  - apiGroups: \[{group}\]\n    resources: \[{resource}\]\n    verbs: \[{verb}\]\n)"
    found, count = re.subn(rule, rf"  {{{{- if .Values.{switch} }}}}\n\1  {{{{- end }}}}\n", text)
    assert count == 1, f"{resource} {verb} is granted {count} times"
    return found


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
