"""Content of a volume that the runtime writes. Pure.

Invariant: a volume is known with all of its sources or not at all, so that an update is never half visible.
"""

from collections.abc import Iterator, Mapping, Sequence
from typing import Final

from attrs import field, frozen

from vkubelet.api.objects import JsonView
from vkubelet.api.podspec import PLANNED_CONTAINERS, Kind, Reference
from vkubelet.resolve.downward import Facts, metadata_value, resource_value
from vkubelet.resolve.references import Absence, Content, Objects

WRITTEN: Final = frozenset({"configMap", "secret", "projected", "downwardAPI"})
"""Sources whose files are written here; they are read-only for containers."""

IN_MEMORY_KINDS: Final = WRITTEN - {"configMap"}
"""Sources that the kubelet keeps in a tmpfs."""

DEFAULT_MODE: Final = 0o644
_PRIVATE: Final = 0o600


@frozen
class ProjectedFile:
    """One file; `user` owns it, None: the user of the writing process."""

    data: bytes = field(repr=False)
    mode: int = DEFAULT_MODE
    user: int | None = None


Files = dict[str, ProjectedFile]
"""Files by path below the volume."""


@frozen
class TokenSource:
    """A token of the pod's service account; an empty audience is the API server's own. `expiration` in seconds."""

    audience: str = ""
    expiration: int = 3600


Tokens = Mapping[TokenSource, str]


def is_written(volume: JsonView) -> bool:
    """Checks whether the runtime writes its files."""
    return not WRITTEN.isdisjoint(volume)


def token_sources(volume: JsonView) -> Iterator[TokenSource]:
    """Yields the tokens of a projected volume."""
    for source in (volume.get("projected") or {}).get("sources") or ():
        if source.get("serviceAccountToken") is not None:
            yield _token_source(source["serviceAccountToken"])


def _token_source(source: JsonView) -> TokenSource:
    return TokenSource(source.get("audience") or "", source.get("expirationSeconds") or 3600)


def volume_files(volume: JsonView, facts: Facts, *, objects: Objects, tokens: Tokens) -> Files:
    """Returns the files of a volume. Raises ValueError with the kubelet's message for missing objects, and for an unknown source."""
    for kind in ("configMap", "secret", "downwardAPI"):
        if volume.get(kind) is not None:
            return _of_source(kind, volume[kind], facts, objects=objects, mode=_mode(volume[kind], "defaultMode", DEFAULT_MODE))
    projected = volume["projected"]
    mode = _mode(projected, "defaultMode", DEFAULT_MODE)
    files: Files = {}
    wrong: dict[str, None] = {}
    for source in projected.get("sources") or ():
        for kind, body in source.items():
            try:
                if kind == "serviceAccountToken":
                    files[body["path"]] = _token(body, facts.spec, tokens=tokens, mode=mode)
                else:
                    files |= _of_source(kind, body, facts, objects=objects, mode=mode)
            except ValueError as error:
                wrong[str(error)] = None
    if wrong:
        # All at once, as the kubelet lists them.
        text = ", ".join(wrong)
        raise ValueError(text if len(wrong) == 1 else f"[{text}]")
    return files


def _of_source(kind: str, source: JsonView, facts: Facts, *, objects: Objects, mode: int) -> Files:
    match kind:
        case "configMap":
            reference = Reference(Kind.CONFIGMAP, source.get("name") or "")
        case "secret":
            # A Secret volume uses another field than a projected one.
            reference = Reference(Kind.SECRET, source.get("secretName") or source.get("name") or "")
        case "downwardAPI":
            return _downward(source.get("items") or (), facts, mode)
        case _:
            raise ValueError(f"volumes: the source {kind} is not supported here")
    return _keys(reference, source, facts.meta.namespace, content=objects.get(reference), mode=mode)


def _keys(reference: Reference, source: JsonView, namespace: str, *, content: Content | None, mode: int) -> Files:
    optional = bool(source.get("optional"))
    if content is None:
        if not optional:
            raise ValueError(str(Absence(reference, namespace)))
        content = Content()
    items = source.get("items") or [{"key": key, "path": key} for key in content.file_names]
    files: Files = {}
    for item in items:
        data = content.file(item["key"])
        if data is not None:
            files[item["path"]] = ProjectedFile(data, _mode(item, "mode", mode))
        elif not optional:
            raise ValueError(Absence(reference, namespace, item["key"]).of_a_file)
    return files


def _downward(items: Sequence[JsonView], facts: Facts, mode: int) -> Files:
    files: Files = {}
    for item in items:
        if item.get("fieldRef"):
            text = _own_field(facts, item["fieldRef"]["fieldPath"])
        else:
            text = resource_value(facts, item["resourceFieldRef"], None)
        files[item["path"]] = ProjectedFile(text.encode(), _mode(item, "mode", mode))
    return files


def _own_field(facts: Facts, path: str) -> str:
    """Returns a field of `metadata` that a file can show; these survive the moves of the pod. Raises ValueError."""
    plain = {"metadata.name": facts.meta.name, "metadata.namespace": facts.meta.namespace, "metadata.uid": facts.meta.uid}
    return plain[path] if path in plain else metadata_value(facts.meta, path)


def _token(source: JsonView, spec: JsonView, *, tokens: Tokens, mode: int) -> ProjectedFile:
    """Returns the file of a token, private if its user is known."""
    user = common_user(spec)
    group = (spec.get("securityContext") or {}).get("fsGroup")
    private = user is not None or group is not None
    return ProjectedFile(tokens[_token_source(source)].encode(), _PRIVATE if private else mode, user)


def common_user(spec: JsonView) -> int | None:
    """Returns the `runAsUser` of all containers but ephemeral ones, which come later; None when there is none, or more than one."""
    default = (spec.get("securityContext") or {}).get("runAsUser")
    lasting = (container for kind in PLANNED_CONTAINERS for container in spec.get(kind) or ())
    users = {(container.get("securityContext") or {}).get("runAsUser", default) for container in lasting}
    return next(iter(users)) if len(users) == 1 else None


def _mode(source: JsonView, name: str, default: int) -> int:
    """Returns the mode; zero is a valid mode."""
    told = source.get(name)
    return default if told is None else int(told)
