"""One informer over namespaces that come and go."""

from __future__ import annotations

from kubeocean.worker.spread import SpreadInformer
from vkubelet.api.objects import NAMESPACES, SECRETS, Key, ObjectMeta, Unknown
from vkubelet.client.connection import Connection
from vkubelet.client.rest import Client, Selection
from vkubelet.control.informer import Change, Informer


def named(name: str, namespace: str = "", version: str = "1") -> Unknown:
    return Unknown(ObjectMeta(name=name, namespace=namespace, uid=f"{namespace}-{name}", resource_version=version), b"{}")


class World:
    def __init__(self) -> None:
        self.client = Client(Connection("https://192.0.2.1"))
        self.namespaces: Informer[Unknown] = Informer(self.client, NAMESPACES)
        self.parts: dict[str, Informer[Unknown]] = {}
        self.spread = SpreadInformer(self.client, SECRETS, of=self.part, namespaces=self.namespaces)
        self.seen: list[Change[Unknown]] = []
        self.spread.on_change(self.seen.append)

    def part(self, namespace: str) -> Informer[Unknown]:
        self.parts[namespace] = Informer(self.client, SECRETS, where=Selection(namespace=namespace))
        return self.parts[namespace]

    def appear(self, name: str) -> None:
        self.namespaces.ever_synced = True
        self.namespaces._put(named(name))


async def test_unknown_while_the_set_or_any_namespace_is_not_listed() -> None:
    world = World()
    assert not world.spread.ever_synced
    world.appear("mnt-a")
    assert not world.spread.ever_synced
    world.parts["mnt-a"].ever_synced = True
    assert world.spread.ever_synced
    world.appear("mnt-b")
    assert not world.spread.ever_synced


async def test_objects_of_all_namespaces_are_in_one_store_and_reported_once() -> None:
    world = World()
    for space in ("mnt-a", "mnt-b"):
        world.appear(space)
        world.parts[space]._put(named("same", space))
    assert set(world.spread.store.keys()) == {Key("mnt-a", "same"), Key("mnt-b", "same")}
    assert [change.key for change in world.seen] == [Key("mnt-a", "same"), Key("mnt-b", "same")]
    world.parts["mnt-a"]._remove(named("same", "mnt-a"))
    assert set(world.spread.store.keys()) == {Key("mnt-b", "same")} and world.seen[-1].new is None


async def test_a_namespace_that_leaves_the_set_takes_no_object_with_it() -> None:
    world = World()
    world.appear("mnt-a")
    world.parts["mnt-a"].ever_synced = True
    world.parts["mnt-a"]._put(named("kept", "mnt-a"))
    world.namespaces._remove(named("mnt-a"))
    assert Key("mnt-a", "kept") in world.spread.store and world.spread.last_error is None


async def test_adopted_objects_reach_their_namespace() -> None:
    world = World()
    world.appear("mnt-a")
    world.spread.adopt(named("new", "mnt-a", "7"))
    world.spread.adopt(named("new", "elsewhere", "7"))
    assert set(world.spread.store.keys()) == {Key("mnt-a", "new")}
