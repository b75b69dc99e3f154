"""Checks of pods on virtual nodes: DaemonSets that stall, pods that the worker refuses, and containers that do not start.

Invariant: pods with the same cause are one finding, which names a few of them.
"""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final

from attrs import frozen

from kubeocean.doctor.bindings import Commands
from kubeocean.doctor.findings import Finding, error, few, warning
from kubeocean.model.crds import ClusterBinding
from kubeocean.model.identity import daemonset_allowed, leaves_home, why_pending
from vkubelet.api.objects import JsonView, Key, Pod
from vkubelet.api.podspec import CONTAINER_STATUSES

_OFF: Final = (
    '{"spec":{"template":{"spec":{"affinity":{"nodeAffinity":{"requiredDuringSchedulingIgnoredDuringExecution":{"nodeSelectorTerms":'
    '[{"matchExpressions":[{"key":"type","operator":"NotIn","values":["virtual-kubelet"]}]}]}}}}}}}'
)
_LASTING: Final = frozenset({"CrashLoopBackOff", "CreateContainerConfigError", "ErrImageNeverPull", "ErrImagePull", "ImagePullBackOff"})
"""Reasons of a kubelet that do not pass by themselves; those of the process of the binding are explained by its events."""


def daemonsets(pods: Iterable[Pod], binding: ClusterBinding, *, kubectl: str) -> Iterator[Finding]:
    """Checks for pods of DaemonSets that virtual nodes never start, which stop the next rollout on real nodes."""
    stalled: dict[Key, list[Pod]] = defaultdict(list)
    for pod in pods:
        owner = next((each.name for each in pod.metadata.owner_references if each.kind == "DaemonSet"), "")
        starts = leaves_home(pod.metadata) and daemonset_allowed(pod.metadata, binding)
        if owner and not starts and pod.phase in ("", "Pending") and not pod.terminating:
            stalled[Key(pod.metadata.namespace, owner)].append(pod)
    for key, waiting in stalled.items():
        why = why_pending(waiting[0].metadata, binding)
        text = f"DaemonSet {key}: {len(waiting)} pods stay Pending on virtual nodes, so its next rollout stops on real nodes too: {why}"
        yield error(text, f"{kubectl} -n {key.namespace} patch daemonset {key.name} --type=merge -p '{_OFF}'")


# --- Refused pods -------------------------------------------------------------------------------------------------------------------------


@frozen
class Refusal:
    """A kind of refusal: text of the worker's message, and the remedy with its command."""

    text: str
    remedy: str
    command: str


_REFUSALS: Final = (
    Refusal("exceeded quota", "raise the ResourceQuota of the mount namespace, or lower the requests", "-n {mount} describe resourcequota"),
    Refusal("violates PodSecurity", "change the pod, or the level of the mount namespace", "get namespace {mount} --show-labels"),
    Refusal("forbidden", "let the admission of the worker accept the pod, or change the pod", "-n {mount} get events"),
    Refusal("denied the request", "let the webhook of the worker accept the pod, or change the pod", "get validatingwebhookconfigurations"),
)
_OTHER: Final = Refusal("", "see the events of the pod", "-n {mount} get pods")


def refused(events: Iterable[JsonView], pods: Mapping[str, Pod], binding: ClusterBinding, *, commands: Commands) -> Iterator[Finding]:
    """Checks the warnings about pods that wait on virtual nodes; `pods` are those that wait, by UID."""
    latest: dict[str, JsonView] = {}
    for event in events:
        uid = (event.get("involvedObject") or {}).get("uid", "")
        if uid in pods and event.get("type") == "Warning" and str(event.get("reason", "")).startswith("Failed"):
            latest[uid] = max(latest.get(uid, event), event, key=_time)
    causes: dict[str, list[str]] = defaultdict(list)
    for uid, event in latest.items():
        causes[str(event.get("message") or event.get("reason"))].append(uid)
    for message, uids in causes.items():
        kind = next((each for each in _REFUSALS if each.text in message), _OTHER)
        first = pods[uids[0]].key
        text = f"pods {few(str(pods[uid].key) for uid in uids)} wait: {message}; {kind.remedy}"
        worker = f"{commands.worker} {kind.command.format(mount=binding.mount_namespace)}"
        yield error(text, worker, f"kubeocean explain pod {first}")


def _time(event: JsonView) -> str:
    return str(event.get("lastTimestamp") or event.get("eventTime") or (event.get("metadata") or {}).get("creationTimestamp") or "")


def images(pods: Iterable[Pod]) -> Iterator[Finding]:
    """Checks for containers that wait for a reason that does not pass by itself, such as ImagePullBackOff."""
    causes: dict[str, list[Pod]] = defaultdict(list)
    for pod in pods:
        for reason in waiting(pod.status):
            causes[reason].append(pod)
    for reason, found in causes.items():
        names = few(str(pod.key) for pod in found)
        yield warning(f"pods {names} do not start: {reason}", f"kubeocean explain pod {found[0].key}")


def waiting(status: JsonView) -> Iterator[str]:
    """Yields why containers wait: `ErrImagePull: image a:1 not found`."""
    for kind in CONTAINER_STATUSES:
        listed: Sequence[JsonView] = status.get(kind) or ()
        for each in listed:
            found: JsonView = (each.get("state") or {}).get("waiting") or {}
            if found.get("reason") in _LASTING:
                message = f": {found['message']}" if found.get("message") else ""
                yield f"image {each.get('image') or 'unknown'}: {found['reason']}{message}"
