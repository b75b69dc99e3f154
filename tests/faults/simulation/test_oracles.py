"""Each oracle finds the violation that it is for, and accepts the history of a healthy run."""

from __future__ import annotations

from typing import Any

from attrs import evolve

from tests.faults.simulation import oracles
from tests.faults.simulation.history import Entry, History, Workload
from tests.faults.simulation.network import Sent
from tests.faults.simulation.schedule import Fault, Kind, Schedule

Body = dict[str, Any]
US = "vkubelet-1"
CALM = Schedule("mock", "pods", 1)


def entry(seconds: float, user: str, verb: str, target: str, old: Body | None, new: Body | None, **more: Any) -> Entry:
    resource, _, name = target.partition("/")
    known = {"cluster": "hub", "path": f"/{resource}", "object": f"{resource}/default/{name}", "resource": resource, "creator": "person"}
    return Entry(seconds=seconds, user=user, verb=verb, old=old, new=new, **{**known, **more})


def history(*entries: Entry, **more: Any) -> History:
    return History(entries=list(entries), ours={US, "vkubelet-2"}, judged_from=100.0, ended=200.0, **more)


def pod(phase: str = "Running", *, deleted: bool = False, restarts: int = 0, uid: str = "u1", **meta: Any) -> Body:
    metadata = {"name": "web-0", "uid": uid, **({"deletionTimestamp": "2026-01-05T08:00:00Z"} if deleted else {}), **meta}
    return {"metadata": metadata, "spec": {}, "status": {"phase": phase, "containerStatuses": [{"name": "main", "restartCount": restarts}]}}


def node(ready: str, **condition: Any) -> Body:
    return {"metadata": {"name": "n", "uid": "n1"}, "status": {"conditions": [{"type": "Ready", "status": ready, **condition}]}}


def start(seconds: float, ident: str, uid: str = "u1", name: str = "default/web-0") -> Workload:
    return Workload(seconds, "start", ident, name, uid)


def end(seconds: float, ident: str, uid: str = "u1", *, by_itself: bool = False) -> Workload:
    return Workload(seconds, "end", ident, "default/web-0", uid, by_itself=by_itself)


def found(oracle: oracles.Oracle, made: History, schedule: Schedule = CALM) -> list[str]:
    return list(oracle(made, schedule))


def test_a_write_after_everything_is_settled_is_found() -> None:
    late = entry(150.0, US, "patch", "pods/web-0", pod("Pending"), pod())
    early = entry(50.0, US, "patch", "pods/web-0", pod("Pending"), pod())
    assert len(found(oracles.stable, history(late))) == 1
    assert not found(oracles.stable, history(early))


def test_renewals_are_no_writes_to_a_settled_cluster() -> None:
    lease = entry(150.0, US, "update", "leases/n", {"spec": {"renewTime": "1"}}, {"spec": {"renewTime": "2"}})
    heartbeat = entry(150.0, US, "patch", "nodes/n", node("True", lastHeartbeatTime="1"), node("True", lastHeartbeatTime="2"))
    assert not found(oracles.stable, history(lease, heartbeat))
    changed = entry(150.0, US, "patch", "nodes/n", node("True", reason="a"), node("True", reason="b"))
    assert len(found(oracles.stable, history(changed))) == 1


def test_a_node_status_that_is_renewed_all_the_time_is_found() -> None:
    beats = [
        entry(s, US, "patch", "nodes/n", node("True", lastHeartbeatTime=str(s)), node("True", lastHeartbeatTime=str(s + 10)))
        for s in (150, 160)
    ]
    assert not found(oracles.stable, history(beats[0]))
    assert len(found(oracles.stable, history(*beats))) == 1
    lost = Sent(1, 150.0, US, "hub patch nodes/status", "/api/v1/nodes/n/status", "lost")
    assert not found(oracles.stable, history(*beats, sent=[lost]))
    for other in (evolve(lost, outcome=""), evolve(lost, time=90.0), evolve(lost, target="/api/v1/nodes/m/status")):
        assert len(found(oracles.stable, history(*beats, sent=[other]))) == 1


def test_a_node_removed_by_us_is_found() -> None:
    removed = entry(50.0, US, "delete", "nodes/n", node("True"), None)
    assert len(found(oracles.nodes_ready, history(removed))) == 1
    assert not found(oracles.nodes_ready, history(removed, may_be_unready={"n"}))


def test_an_unmet_wish_is_found() -> None:
    assert found(oracles.stable, history(unmet=["web-0 is not Ready"])) == ["web-0 is not Ready"]


def test_two_live_workloads_of_one_name_are_found() -> None:
    doubled = [start(1.0, "a"), start(2.0, "b", uid="u2"), end(3.0, "a")]
    replaced = [start(1.0, "a"), end(2.0, "a"), start(2.0, "b", uid="u2")]
    assert len(found(oracles.at_most_one, history(workloads=doubled))) == 1
    assert not found(oracles.at_most_one, history(workloads=replaced))


def test_a_workload_left_by_a_forced_deletion_is_excused_only_after_a_crash() -> None:
    forced = entry(2.0, "person", "delete", "pods/web-0", pod(), None)
    made = history(forced, workloads=[start(1.0, "a"), start(3.0, "b", uid="u2")])
    crashed = CALM.with_faults([Fault(Kind.CRASH, 1, 2.0)])
    assert len(found(oracles.at_most_one, made)) == 1
    assert not found(oracles.at_most_one, made, crashed)
    assert len(found(oracles.at_most_one, made, evolve(crashed, world="kubeocean"))) == 1


def test_two_live_workloads_of_one_pod_uid_are_found() -> None:
    doubled = [start(1.0, "a"), start(2.0, "b", name="default/other")]
    assert len(found(oracles.at_most_one, history(workloads=doubled))) == 1


def test_a_pod_removed_while_its_workload_runs_is_found() -> None:
    removed = entry(5.0, US, "delete", "pods/web-0", pod(deleted=True), None)
    assert len(found(oracles.removed_while_live, history(removed, workloads=[start(1.0, "a")]))) == 1
    assert not found(oracles.removed_while_live, history(removed, workloads=[start(1.0, "a"), end(4.0, "a")]))


def test_a_healthy_pod_deleted_by_us_is_found() -> None:
    assert len(found(oracles.healthy_pods_stay, history(entry(5.0, US, "delete", "pods/web-0", pod(), pod(deleted=True))))) == 1
    asked = entry(5.0, US, "delete", "pods/web-0", pod(deleted=True), None)
    assert not found(oracles.healthy_pods_stay, history(asked))


def test_a_healthy_pod_marked_failed_is_found() -> None:
    failed = entry(5.0, US, "patch", "pods/web-0", pod(), pod("Failed"))
    assert len(found(oracles.healthy_pods_stay, history(failed))) == 1
    assert not found(oracles.healthy_pods_stay, history(failed, finite={"web-0"}))


def test_a_terminal_phase_that_changes_is_found() -> None:
    assert len(found(oracles.healthy_pods_stay, history(entry(5.0, US, "patch", "pods/web-0", pod("Failed"), pod())))) == 1


def test_a_restarted_container_is_found() -> None:
    assert len(found(oracles.healthy_pods_stay, history(entry(5.0, US, "patch", "pods/web-0", pod(), pod(restarts=1))))) == 1


def test_a_stopped_workload_of_a_pod_that_stays_is_found() -> None:
    created = entry(0.0, "person", "create", "pods/web-0", None, pod())
    assert len(found(oracles.healthy_pods_stay, history(created, workloads=[start(1.0, "a"), end(4.0, "a")]))) == 1
    deleted = entry(3.0, "person", "delete", "pods/web-0", pod(), pod(deleted=True))
    assert not found(oracles.healthy_pods_stay, history(created, deleted, workloads=[start(1.0, "a"), end(4.0, "a")]))
    assert not found(oracles.healthy_pods_stay, history(created, workloads=[start(1.0, "a"), end(4.0, "a", by_itself=True)]))


def test_a_physical_pod_deleted_for_no_reason_is_found() -> None:
    created = entry(0.0, "person", "create", "pods/web-0", None, pod())
    physical = pod(uid="p1", annotations={"of": "u1"})
    removed = entry(5.0, US, "delete", "pods/web-0-x", physical, pod(deleted=True, uid="p1"), cluster="worker")
    assert len(found(oracles.healthy_pods_stay, history(created, removed, virtual_uid_key="of"))) == 1
    asked = entry(4.0, "person", "delete", "pods/web-0", pod(), pod(deleted=True))
    assert not found(oracles.healthy_pods_stay, history(created, asked, removed, virtual_uid_key="of"))


def test_a_workload_killed_before_its_grace_period_is_over_is_found() -> None:
    deleted = pod(deleted=True, deletionGracePeriodSeconds=30)
    asked = entry(3.0, "person", "delete", "pods/web-0", pod(), deleted)
    killed = Workload(8.0, "end", "a", "default/web-0", "u1", killed=True)
    late = Workload(32.0, "end", "a", "default/web-0", "u1", killed=True)
    assert len(found(oracles.grace_is_kept, history(asked, workloads=[start(1.0, "a"), killed]))) == 1
    assert not found(oracles.grace_is_kept, history(asked, workloads=[start(1.0, "a"), late]))
    forced = entry(4.0, "person", "delete", "pods/web-0", deleted, None)
    assert not found(oracles.grace_is_kept, history(asked, forced, workloads=[start(1.0, "a"), killed]))


def test_a_grace_period_that_is_shortened_counts_from_the_first_deletion() -> None:
    deleted = pod(deleted=True, deletionGracePeriodSeconds=30)
    asked = entry(3.0, "person", "delete", "pods/web-0", pod(), deleted)
    shortened = entry(7.0, "person", "delete", "pods/web-0", deleted, pod(deleted=True, deletionGracePeriodSeconds=10))
    killed = [evolve(end(second, "a"), killed=True) for second in (8.0, 13.0)]
    assert len(found(oracles.grace_is_kept, history(asked, shortened, workloads=[start(1.0, "a"), killed[0]]))) == 1
    assert not found(oracles.grace_is_kept, history(asked, shortened, workloads=[start(1.0, "a"), killed[1]]))


def test_a_repeated_deletion_that_ends_a_pod_earlier_is_found() -> None:
    def until(minute: int) -> Body:
        return pod(deletionTimestamp=f"2026-01-05T08:{minute:02}:00Z", annotations={"virtual-uid": "u1"})

    asked = entry(1.0, "person", "delete", "pods/web-0", pod(), until(5))
    first = entry(2.0, US, "delete", "pods/leased", pod(annotations={"virtual-uid": "u1"}), until(5), cluster="worker")
    again = entry(20.0, US, "delete", "pods/leased", until(5), until(4), cluster="worker")
    key = {"virtual_uid_key": "virtual-uid"}
    assert not found(oracles.grace_is_passed_on, history(asked, first, **key))
    assert len(found(oracles.grace_is_passed_on, history(asked, first, again, **key))) == 1
    assert not found(oracles.grace_is_passed_on, history(asked, first, again, **key), CALM.with_faults([Fault(Kind.CLOCK, 9, 3600)]))
    shortened = entry(10.0, "person", "delete", "pods/web-0", until(5), until(4))
    assert not found(oracles.grace_is_passed_on, history(asked, first, shortened, again, **key))


def test_an_object_of_an_owner_that_does_not_exist_is_found() -> None:
    owned = {"metadata": {"name": "n", "uid": "l1", "ownerReferences": [{"uid": "n1"}]}}
    lease = entry(2.0, US, "create", "leases/n", None, owned)
    removed = entry(3.0, "person", "delete", "nodes/n", node("True"), None)
    renewed = entry(13.0, US, "update", "leases/n", owned, owned)
    assert not found(oracles.owners_exist, history(lease))
    assert not found(oracles.owners_exist, history(lease, removed)), "the garbage collector deletes it"
    assert len(found(oracles.owners_exist, history(lease, removed, renewed))) == 1


def test_a_changed_field_of_another_writer_is_found() -> None:
    theirs = entry(1.0, "person", "patch", "nodes/n", node("True"), {**node("True"), "metadata": {"name": "n", "labels": {"a": "1"}}})
    ours = entry(2.0, US, "patch", "nodes/n", theirs.new, {**node("True"), "metadata": {"name": "n", "labels": {"a": "2"}}})
    beside = entry(2.0, US, "patch", "nodes/n", theirs.new, {**node("True"), "metadata": {"name": "n", "labels": {"a": "1", "b": "2"}}})
    assert [text for text in found(oracles.foreign_fields_stay, history(theirs, ours)) if "/metadata/labels/a" in text]
    assert not found(oracles.foreign_fields_stay, history(theirs, beside))


def test_a_removed_object_of_another_creator_is_found() -> None:
    secret = {"metadata": {"name": "s", "uid": "s1"}, "data": {"a": "b"}}
    assert len(found(oracles.foreign_fields_stay, history(entry(2.0, US, "delete", "secrets/s", secret, None)))) == 1
    assert not found(oracles.foreign_fields_stay, history(entry(2.0, US, "delete", "secrets/s", secret, None, creator=US)))


def test_what_a_stopped_process_leaves_is_found() -> None:
    assert found(oracles.nothing_left, history(left=["vkubelet-1 left port 15000"]))


def test_a_node_that_becomes_unready_is_found_unless_an_outage_explains_it() -> None:
    up = entry(1.0, US, "patch", "nodes/n", None, node("True"))
    down = entry(50.0, "node-controller", "patch", "nodes/n", node("True"), node("Unknown"))
    again = entry(60.0, US, "patch", "nodes/n", node("Unknown"), node("True"))
    assert len(found(oracles.nodes_ready, history(up, down, again))) == 1
    cut = CALM.with_faults([Fault(Kind.CUT, 5, 60.0, "hub")])
    assert not found(oracles.nodes_ready, history(up, down, again), cut)
    assert len(found(oracles.nodes_ready, history(up, down), cut)) == 1, "it must be Ready at the end"
    other = CALM.with_faults([Fault(Kind.CUT, 5, 60.0, "worker")])
    assert len(found(oracles.nodes_ready, history(up, down, again), other)) == 1


def test_an_unexpected_exit_is_found() -> None:
    assert found(oracles.no_problems, history(problems=["vkubelet-1 exited: KeyError()"]))


def election(seconds: float, holder: str) -> Entry:
    return entry(seconds, holder, "update", "leases/leader", {"spec": {}}, {"spec": {"holderIdentity": f"{holder}_1_x"}})


def test_a_write_of_an_earlier_leader_is_found() -> None:
    def write(seconds: float, user: str) -> Entry:
        return entry(seconds, user, "patch", "pods/web-0", pod(), pod())

    handed_over = [election(0.0, US), write(1.0, US), election(20.0, "vkubelet-2"), write(21.0, "vkubelet-2")]
    assert not found(oracles.one_leader, history(*handed_over))
    assert len(found(oracles.one_leader, history(*handed_over, write(22.0, US)))) == 1
    killed = [(20.0, "killed", US)]
    assert not found(oracles.one_leader, history(*handed_over, write(22.0, US), marks=killed)), (
        "it was on its way when its sender was killed"
    )


def test_a_refused_write_of_an_earlier_leader_is_found() -> None:
    def write(seconds: float, user: str) -> Entry:
        return entry(seconds, user, "patch", "pods/web-0", pod(), pod())

    handed_over = [election(0.0, US), write(1.0, US), election(20.0, "vkubelet-2"), write(21.0, "vkubelet-2")]
    late = Sent(9, 22.0, US, "worker delete pods", "", "")
    assert len(found(oracles.one_leader, history(*handed_over, sent=[late]))) == 1
    renewal = Sent(9, 22.0, US, "hub create leases", "", "")
    assert not found(oracles.one_leader, history(*handed_over, sent=[renewal]))


def test_a_node_withdrawn_for_no_reason_is_found() -> None:
    withdrawn = {**node("True"), "spec": {"taints": [{"key": "vkubelet.io/retiring", "effect": "NoSchedule"}]}}
    taken = history(entry(5.0, US, "patch", "nodes/n", node("True"), withdrawn))
    assert len(found(oracles.nodes_stay_open, taken)) == 1
    taken.may_be_unready.add("n")
    assert not found(oracles.nodes_stay_open, taken)


def test_list_items_are_compared_by_their_key() -> None:
    old = {"spec": {"taints": [{"key": "a"}, {"key": "b"}]}}
    new = {"spec": {"taints": [{"key": "b"}, {"key": "c"}]}}
    assert entry(1.0, US, "patch", "nodes/n", old, new).changed == {"/spec/taints/a/key", "/spec/taints/c/key"}
