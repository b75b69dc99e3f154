"""What is kept of the worker."""

from kubeocean.copies.volumes import names_volume
from kubeocean.model.keys import physical_name
from kubeocean.worker.cluster import claim_of, cost_of, problem_of
from tests.unit.kubeocean.builders import pod, unknown
from vkubelet.api.scheduling import effective_requests
from vkubelet.errors import ApiError, Forbidden, ServerError, Unauthorized, Unreachable


def test_of_a_foreign_pod_only_what_it_costs_is_kept() -> None:
    secretive = {
        "containers": [
            {
                "name": "main",
                "env": [{"name": "PASSWORD", "value": "hunter2"}],
                "resources": {"requests": {"cpu": "1"}},
                "ports": [{"containerPort": 80}, {"containerPort": 81, "hostPort": 8081}],
            }
        ],
        "initContainers": [{"name": "sidecar", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}}],
        "overhead": {"memory": "1Mi"},
    }
    foreign = pod(secretive, labels={"app": "theirs"}, annotations={"note": "theirs"})
    kept = cost_of(foreign)
    assert b"hunter2" not in kept.spec_json
    assert not kept.metadata.labels and not kept.metadata.annotations
    assert effective_requests(kept.spec) == effective_requests(foreign.spec)
    assert [port["hostPort"] for port in kept.spec["containers"][0]["ports"]] == [8081]
    assert (kept.key, kept.node, kept.metadata.uid) == (foreign.key, foreign.node, foreign.metadata.uid)


def test_of_a_claim_its_volume_is_kept() -> None:
    body = {"metadata": {"name": "c", "namespace": "mnt", "annotations": {"note": "x"}}, "spec": {"volumeName": physical_name("", "pv-1")}}
    kept = claim_of(unknown(body))
    assert names_volume(kept, "pv-1") and not kept.metadata.annotations


def test_of_a_claim_its_size_is_kept_and_not_when_it_was_looked_at() -> None:
    condition = {"type": "FileSystemResizePending", "status": "True", "lastProbeTime": "2026-01-01T00:00:00Z"}
    status = {"phase": "Bound", "capacity": {"storage": "1Gi"}, "conditions": [condition]}
    kept = claim_of(unknown({"metadata": {"name": "c", "namespace": "mnt"}, "status": status}))
    assert kept.body["status"] == {"capacity": {"storage": "1Gi"}, "conditions": ["FileSystemResizePending"]}


def test_problems_name_the_remedy_and_do_not_change_with_each_attempt() -> None:
    refused: list[ApiError] = [Unauthorized("get /readyz", text, status=401) for text in ("expired", "invalid bearer token")]
    failing: list[ApiError] = [ServerError("get /readyz", text, status=500) for text in ("etcd failed", "informer-sync failed")]
    assert len({problem_of(error) for error in refused}) == len({problem_of(error) for error in failing}) == 1
    assert "spec.secretRef" in problem_of(refused[0]) and "readyz" in problem_of(failing[0])


def test_a_missing_right_is_no_problem_of_the_connection_and_no_answer_is_one() -> None:
    assert problem_of(None) == problem_of(Forbidden("get /readyz", "no right", status=403)) == ""
    assert "network" in problem_of(Unreachable("get /readyz", "connection refused", silent=True))
    assert "kubeconfig" in problem_of(Unreachable("get /readyz", "no response within the time limit"))
