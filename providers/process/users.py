"""User and groups of a container's process. Pure.

Invariant: no field that a pod sets for its user is ignored silently: it is applied, or the container is refused with the field's name.
"""

from collections.abc import Callable, Collection, Iterator, Sequence
from typing import Final

from attrs import frozen

from vkubelet.api.objects import JsonView
from vkubelet.provider import Unavailable

NOBODY: Final = 65534


@frozen
class Identity:
    """Ids to change to; None: those of vkubelet itself, which cannot change them."""

    uid: int | None = None
    gid: int | None = None
    groups: Sequence[int] | None = None


@frozen
class Own:
    """User and groups of vkubelet itself."""

    uid: int
    gid: int
    groups: Sequence[int] = ()


GroupOf = Callable[[int], int | None]
"""Primary group of a user on the host."""
Foreign = Callable[[int, Collection[int]], Collection[int]]
"""Groups of the host, out of some, to which a user does not belong."""


@frozen
class Users:
    """Users and groups of the host."""

    group_of: GroupOf = lambda uid: None
    foreign: Foreign = lambda uid, groups: ()


def identity(pod: JsonView, container: JsonView, *, own: Own, default: int | None, allow_root: bool, users: Users = Users()) -> Identity:
    """Returns the identity from the specs of pod and container. Raises Unavailable (CreateContainerConfigError)."""
    outer, inner = pod.get("securityContext") or {}, container.get("securityContext") or {}
    asked = inner.get("runAsUser", outer.get("runAsUser"))
    group = inner.get("runAsGroup", outer.get("runAsGroup"))
    groups = [*outer.get("supplementalGroups", ()), *([outer["fsGroup"]] if "fsGroup" in outer else [])]
    uid = asked if asked is not None else _default(own, default, allow_root=allow_root)
    if inner.get("runAsNonRoot", outer.get("runAsNonRoot")) and uid == 0:
        raise _refused("securityContext.runAsNonRoot is set, but the process would run as root: set runAsUser")
    if own.uid == 0:
        if uid == 0 and not allow_root:
            raise _refused("securityContext.runAsUser is 0, which this node does not allow: choose another user")
        gid = group if group is not None else _group(uid, users.group_of(uid), allow_root=allow_root)
        if not allow_root and 0 in (gid, *groups):
            raise _refused(
                "securityContext.runAsGroup, fsGroup or supplementalGroups is 0, which this node does not allow: choose another group"
            )
        if not allow_root and (foreign := sorted(users.foreign(uid, {*groups, gid}))):
            raise _refused(
                f"securityContext gives user {uid} the groups {foreign} of this host, to which it does not belong: choose another "
                "runAsGroup, fsGroup or supplementalGroups, or add them to the node's setting provider.groups"
            )
        return Identity(uid, gid, sorted({*groups, gid}))
    for field, wanted, have in (("runAsUser", asked, own.uid), ("runAsGroup", group, own.gid)):
        if wanted is not None and wanted != have:
            raise _refused(f"securityContext.{field} is {wanted}, but this node runs processes as {have} only: leave it out")
    if missing := sorted(set(groups) - {own.gid, *own.groups}):
        raise _refused(
            f"securityContext.fsGroup or supplementalGroups ask for {missing}, which this node does not belong to: leave them out"
        )
    return Identity()


def _group(uid: int, known: int | None, *, allow_root: bool) -> int:
    """Returns the group of the host's user, as in images. A number without a user gets none of the host's groups, and so not root's."""
    return uid if known is None or (known == 0 and not allow_root) else known


def _default(own: Own, default: int | None, *, allow_root: bool) -> int:
    if own.uid != 0:
        return own.uid
    if default is not None:
        return default
    return 0 if allow_root else NOBODY


def asks_for_escalation(container: JsonView) -> bool:
    """Checks whether it sets the permission to gain privileges by set-user-ID programs; Kubernetes' default for an unset field is not
    enough."""
    security = container.get("securityContext") or {}
    return security.get("allowPrivilegeEscalation") is True or security.get("privileged") is True


def not_kept(pod: JsonView, container: JsonView, *, uid: int | None = None, privilege_escalation: bool = False) -> Iterator[str]:
    """Yields fields that require an isolation, or permissions, which a process of the host does not have. `uid` None: ours, which is not
    root's."""
    outer, inner = pod.get("securityContext") or {}, container.get("securityContext") or {}
    for name in ("readOnlyRootFilesystem", "procMount"):
        if inner.get(name):
            yield f"securityContext.{name}"
    capabilities = inner.get("capabilities") or {}
    if capabilities.get("add") or (capabilities.get("drop") and uid == 0):
        yield "securityContext.capabilities"
    if inner.get("allowPrivilegeEscalation") and uid != 0 and not privilege_escalation:
        yield "securityContext.allowPrivilegeEscalation"
    if inner.get("privileged") and uid != 0:
        yield "securityContext.privileged"
    for name in ("seccompProfile", "appArmorProfile", "seLinuxOptions"):
        profile = inner.get(name, outer.get(name))
        if profile and profile.get("type") != "Unconfined":
            yield f"securityContext.{name}"
    if outer.get("sysctls"):
        yield "securityContext.sysctls"
    if pod.get("shareProcessNamespace"):
        yield "shareProcessNamespace"
    if pod.get("hostUsers") is False:
        yield "hostUsers"
    for mount in container.get("volumeMounts") or ():
        if mount.get("mountPropagation") == "Bidirectional":
            yield f"volumeMounts[{mount['name']}].mountPropagation"
        if mount.get("recursiveReadOnly") == "Enabled":
            yield f"volumeMounts[{mount['name']}].recursiveReadOnly"
    if container.get("volumeDevices"):
        yield "volumeDevices"


def _refused(text: str) -> Unavailable:
    return Unavailable(text, event="Failed", waiting="CreateContainerConfigError")
