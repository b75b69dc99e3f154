"""Checks that a response of an API server is what was requested: objects of the kind, the namespace and the name of the request.

Invariant: what is something else is a ServerError that names the server and the difference, and never an object, an empty list or an event.
"""

from typing import TypeVar

from attrs import frozen

from vkubelet.api.codec import EventType, ObjectList, WatchEvent, decode_event, decode_list, decode_object, kind_of, kind_of_event
from vkubelet.api.objects import Key, KubeObject, ObjectMeta, Resource
from vkubelet.errors import ServerError

T = TypeVar("T", bound=KubeObject)

METADATA_ONLY = "PartialObjectMetadata"
"""Kind of objects of which only the metadata was requested."""
_BY_NAME = "metadata.name="
_STATUS, _BUILT_IN = "Status", ".k8s.io"


@frozen
class Requested:
    """A request as its response is checked; `namespace` and `name` are empty where the request leaves them open."""

    server: str
    attempt: str
    namespace: str = ""
    name: str = ""

    def wrong(self, sentence: str) -> ServerError:
        """Returns the error of a response that is something else."""
        return ServerError(self.attempt, f"{self.server} responded with {sentence}")

    def check(self, resource: Resource[T], meta: ObjectMeta) -> None:
        """Checks namespace and name of an object. Raises ServerError."""
        namespace, name = meta.namespace, meta.name
        if not name:
            raise self.wrong(f"a {resource.kind} without a name")
        if bool(namespace) is not resource.namespaced:
            raise self.wrong(f"{resource.kind} {name} {'in namespace ' + namespace if namespace else 'without a namespace'}")
        if self.name not in ("", name) or self.namespace not in ("", namespace):
            wanted = str(Key(self.namespace, self.name)) if self.name else f"one of namespace {self.namespace}"
            raise self.wrong(f"{resource.kind} {meta.key} instead of {wanted}")

    def check_kind(self, found: str, *wanted: str) -> None:
        """Checks a kind, which the items of a list do not have. Raises ServerError."""
        if found not in ("", *wanted):
            raise self.wrong(f"a {found} instead of a {wanted[0]}")


def by_name(fields: str) -> str:
    """Returns the name that a field selector requires, "" for none."""
    return next((each.removeprefix(_BY_NAME) for each in fields.split(",") if each.startswith(_BY_NAME)), "")


def to_object(resource: Resource[T], data: bytes, requested: Requested) -> T:
    """Decodes the response to a read or write of one object. Raises ServerError."""
    requested.check_kind(kind_of(data), resource.kind)
    obj = decode_object(resource.head, data, attempt=requested.attempt, server=requested.server)
    requested.check(resource, obj.metadata)
    return obj


def to_list(resource: Resource[T], data: bytes, requested: Requested) -> ObjectList[T]:
    """Decodes the response to a LIST. Raises ServerError."""
    try:
        page = decode_list(resource.head, data, attempt=requested.attempt, server=requested.server)
    except ServerError:
        _check_list(resource, kind_of(data), requested)
        raise
    _check_list(resource, page.kind, requested)
    for obj in page.items:
        requested.check(resource, obj.metadata)
    return page


def _check_list(resource: Resource[T], kind: str, requested: Requested) -> None:
    # The list of a custom resource may have any kind but this.
    if kind == _STATUS or "." not in resource.group or resource.group.endswith(_BUILT_IN):
        requested.check_kind(kind, f"{resource.kind}List", f"{METADATA_ONLY}List")


def to_event(resource: Resource[T], line: bytes, requested: Requested) -> WatchEvent[T]:
    """Decodes one line of a watch. Raises Expired or another ApiError for an ERROR event, and ServerError."""
    event = decode_event(resource.head, line, attempt=requested.attempt, server=requested.server)
    requested.check_kind(kind_of_event(line), resource.kind, METADATA_ONLY)
    if event.type is not EventType.BOOKMARK:
        requested.check(resource, event.object.metadata)
    return event
