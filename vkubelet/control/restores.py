"""Recognizes an API server whose etcd was restored from a backup, by the resourceVersions that it returns.

Invariant: a server counts as restored only when a consistent read returned an earlier resourceVersion than it had returned before; then
every watch of the same connection lists again.

One watch alone may miss it: what it saw last may be only a little later than the backup, and the restored server gives out these
resourceVersions again before the watch asks. Another watch has seen later ones. resourceVersions of different resources are not compared,
as they may be in different etcds.
"""

import logging
from typing import Protocol, TypeVar
from weakref import WeakKeyDictionary, WeakSet

from vkubelet.api.objects import KubeObject, Resource
from vkubelet.client.responses import METADATA_ONLY, Requested, to_list
from vkubelet.client.rest import Client, Selection
from vkubelet.client.transport import Transport
from vkubelet.logformat import bind

log = logging.getLogger(__name__)

T = TypeVar("T", bound=KubeObject)


class Relisted(Protocol):
    """A watch with a cache."""

    def list_again(self) -> None:
        """Lists everything, where equal resourceVersions do not mean equal objects; a stream that is open is abandoned."""
        ...


_relisted: WeakKeyDictionary[Transport, WeakSet[Relisted]] = WeakKeyDictionary()


def register(client: Client, watch: Relisted) -> None:
    """Registers a watch for `report` as long as it exists."""
    _relisted.setdefault(client.transport, WeakSet()).add(watch)


def report(client: Client, resource: Resource[T]) -> None:
    """Reports that the server returned an earlier resourceVersion: every registered watch of this connection lists again."""
    with bind(resource=str(resource)):
        log.warning("the API server has returned with an earlier state; listing again")
    for watch in list(_relisted.get(client.transport, ())):
        watch.list_again()


async def newest(client: Client, resource: Resource[T], where: Selection) -> str:
    """Returns the current resourceVersion, by a small list that is read from etcd, and so shows too that the server responds."""
    path, params = resource.path(where.namespace), [*where.params(), ("limit", "1")]
    answer = await client.request("GET", path, params=params, accept=where.accept(f"{METADATA_ONLY}List"))
    requested = Requested(client.connection.url, f"list {resource}", where.namespace)
    return to_list(resource, answer, requested).resource_version


def is_earlier(this: str, that: str) -> bool:
    """Compares resourceVersions; those that are no numbers are never earlier."""
    return _are_numbers(this, that) and is_later(that, this)


def is_later(this: str, that: str) -> bool:
    """Compares resourceVersions (KEP-5504: those of one resource are numbers of any size that increase); a stub's "" is never later."""
    if not _are_numbers(this, that):
        return this != that
    one, other = this.lstrip("0"), that.lstrip("0")
    return (len(one), one) > (len(other), other)


def _are_numbers(one: str, other: str) -> bool:
    return one.isascii() and one.isdigit() and other.isascii() and other.isdigit()
