"""Tests of kubeocean.pods.translate."""

from __future__ import annotations

import pytest
from attrs import evolve

from kubeocean.model.crds import ApiServerAccess, DnsAccess
from kubeocean.model.identity import Workload, digest_of_changes
from kubeocean.model.keys import ExpectedMetadata, physical_name, token_secret_name
from kubeocean.pods.changes import changes
from kubeocean.pods.translate import api_server_environment, host_aliases, physical_pod, set_dns
from tests.unit.kubeocean.builders import OWNER, TARGET, named, physical, pod
from vkubelet.api.objects import Json
from vkubelet.errors import PodRejected

CONNECTED = evolve(TARGET, api_server=ApiServerAccess("10.0.0.1"), dns=DnsAccess(("10.0.0.2",)))


def spec_of(spec: Json | None = None, **metadata: object) -> Json:
    translated: Json = physical_pod(pod(spec, **metadata), TARGET)["spec"]
    return translated


def copy(name: str) -> str:
    return physical_name("default", name)


def test_metadata_names_the_virtual_pod_and_the_owner() -> None:
    web = pod(labels={"app": "web"}, annotations={"note": "x"}, generation=4, ownerReferences=[], finalizers=["a/b"], generateName="web-")
    metadata = physical_pod(web, evolve(TARGET, workload=Workload("deployment", "web")))["metadata"]
    assert (metadata["name"], metadata["namespace"]) == (copy("web"), "mnt")
    assert metadata["labels"] == {
        "app": "web",
        "kubeocean.io/managed-by": "kubeocean",
        "kubeocean.io/owner": OWNER.mark,
        "kubeocean.io/virtual-namespace": "default",
        "kubeocean.io/workload-type": "deployment",
        "kubeocean.io/workload-name": "web",
    }
    expected = metadata["annotations"].pop("kubeocean.io/expected-metadata")
    assert ExpectedMetadata.decode(expected) == ExpectedMetadata({"app": "web"}, {"note": "x"})
    assert metadata["annotations"] == {
        "note": "x",
        "kubeocean.io/hub-uid": "hub-uid-1",
        "kubeocean.io/cluster-id": "demo",
        "kubeocean.io/virtual-pod-namespace": "default",
        "kubeocean.io/virtual-pod-name": "web",
        "kubeocean.io/virtual-pod-uid": "uid-1",
        "kubeocean.io/virtual-node-name": "vnode-demo-node-1",
        "kubeocean.io/virtual-generation": "4",
        "kubeocean.io/virtual-spec": digest_of_changes(web),
        "kubeocean.io/service-account": "default",
    }
    assert metadata.keys() == {"name", "namespace", "labels", "annotations"}


def test_annotations_that_fit_in_the_hub_fit_in_the_worker() -> None:
    big = pod(annotations={f"team.example.com/a{number}": "x" * 20_000 for number in range(12)})
    annotations = physical_pod(big, TARGET)["metadata"]["annotations"]
    assert sum(len(key) + len(value) for key, value in annotations.items()) < 256 * 1024


def test_user_can_not_forge_our_marks() -> None:
    forged = {
        "kubeocean.io/virtual-pod-uid": "other",
        "kubeocean.io/hub-uid": "other",
        "kubeocean.io/physical-pod-name": "other",
        "kubernetes.io/config.mirror": "x",
        "kubectl.kubernetes.io/last-applied-configuration": "{}",
        "kubeocean.io/running-daemonset": "true",
    }
    web = pod(annotations=forged, labels={"kubeocean.io/owner": "other", "kubeocean.io/service-account-token": "true"})
    metadata = physical_pod(web, TARGET)["metadata"]
    assert metadata["annotations"]["kubeocean.io/virtual-pod-uid"] == "uid-1"
    assert metadata["annotations"]["kubeocean.io/running-daemonset"] == "true"
    assert not {"kubernetes.io/config.mirror", "kubeocean.io/physical-pod-name"} & metadata["annotations"].keys()
    assert metadata["labels"]["kubeocean.io/owner"] == OWNER.mark
    assert "kubeocean.io/service-account-token" not in metadata["labels"]


def test_pod_goes_to_the_chosen_node_and_nothing_chooses_again() -> None:
    spec = spec_of(
        {
            "nodeSelector": {"a": "b"},
            "affinity": {"podAntiAffinity": {}},
            "topologySpreadConstraints": [{"maxSkew": 1}],
            "schedulerName": "gang",
            "schedulingGates": [{"name": "g"}],
            "priority": 1000,
            "priorityClassName": "high",
            "preemptionPolicy": "Never",
            "overhead": {"cpu": "1"},
            "runtimeClassName": "kata",
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 7,
        }
    )
    here = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["node-1"]}]}
    assert spec["affinity"] == {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [here]}}}
    assert spec["priorityClassName"] == "kubeocean-default"
    gone = {"nodeName", "nodeSelector", "topologySpreadConstraints", "schedulerName", "schedulingGates", "priority", "preemptionPolicy"}
    assert not spec.keys() & (gone | {"overhead"})
    assert (spec["runtimeClassName"], spec["tolerations"], spec["terminationGracePeriodSeconds"]) == ("kata", [{"operator": "Exists"}], 7)


def test_direct_scheduling_names_the_node_and_has_no_affinity() -> None:
    spec = physical_pod(pod({"affinity": {"nodeAffinity": {}}}), evolve(TARGET, direct=True))["spec"]
    assert spec["nodeName"] == "node-1"
    assert "affinity" not in spec


def test_physical_pod_has_no_identity_of_the_worker() -> None:
    spec = spec_of({"serviceAccountName": "builder", "serviceAccount": "builder", "automountServiceAccountToken": True})
    assert spec["automountServiceAccountToken"] is False
    assert spec["enableServiceLinks"] is False
    assert not {"serviceAccountName", "serviceAccount"} & spec.keys()


@pytest.mark.parametrize(
    ("name", "given", "expected"),
    [
        ("web", None, "web"),
        ("web", "mine", "mine"),
        ("w" * 80, None, "w" * 63),
        ("w" * 62 + "-abc", None, "w" * 62),
        ("web.example.1", None, "web-example-1"),
    ],
)
def test_hostname_is_the_virtual_name_unless_set(name: str, given: str | None, expected: str) -> None:
    assert spec_of({"hostname": given} if given else {}, name=name)["hostname"] == expected


def test_all_references_lead_to_copies() -> None:
    spec = spec_of(
        {
            "volumes": [
                {"name": "a", "configMap": {"name": "settings", "optional": True, "items": [{"key": "k", "path": "p"}]}},
                {"name": "b", "secret": {"secretName": "files", "defaultMode": 256}},
                {"name": "c", "persistentVolumeClaim": {"claimName": "data", "readOnly": True}},
                {"name": "scratch", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}},
                {"name": "d", "csi": {"driver": "d", "nodePublishSecretRef": {"name": "csi"}}},
                {"name": "e", "azureFile": {"secretName": "azure", "shareName": "s"}},
                {"name": "f", "projected": {"sources": [{"configMap": {"name": "ca"}}, {"secret": {"name": "projected"}}]}},
                {"name": "g", "emptyDir": {"medium": "Memory"}},
            ],
            "imagePullSecrets": [{"name": "pull"}],
            "initContainers": [{"name": "init", "image": "i", "envFrom": [{"prefix": "P_", "configMapRef": {"name": "settings"}}]}],
            "containers": [
                {
                    "name": "main",
                    "image": "app:1",
                    "env": [{"name": "PASSWORD", "valueFrom": {"secretKeyRef": {"name": "files", "key": "k"}}}],
                }
            ],
        }
    )
    volumes = {volume.pop("name"): volume for volume in spec["volumes"]}
    assert volumes == {
        "a": {"configMap": {"name": copy("settings"), "optional": True, "items": [{"key": "k", "path": "p"}]}},
        "b": {"secret": {"secretName": copy("files"), "defaultMode": 256}},
        "c": {"persistentVolumeClaim": {"claimName": copy("data"), "readOnly": True}},
        "scratch": {"persistentVolumeClaim": {"claimName": copy("web-scratch")}},
        "d": {"csi": {"driver": "d", "nodePublishSecretRef": {"name": copy("csi")}}},
        "e": {"azureFile": {"secretName": copy("azure"), "shareName": "s"}},
        "f": {"projected": {"sources": [{"configMap": {"name": copy("ca")}}, {"secret": {"name": copy("projected")}}]}},
        "g": {"emptyDir": {"medium": "Memory"}},
    }
    assert spec["imagePullSecrets"] == [{"name": copy("pull")}]
    assert spec["initContainers"][0]["envFrom"] == [{"prefix": "P_", "configMapRef": {"name": copy("settings")}}]
    assert named(spec["containers"], "main")["env"][-1]["valueFrom"] == {"secretKeyRef": {"name": copy("files"), "key": "k"}}


def test_tokens_of_all_volumes_come_from_one_secret() -> None:
    def projected(*sources: Json) -> Json:
        return {"projected": {"sources": list(sources), "defaultMode": 420}}

    ca = {"configMap": {"name": "kube-root-ca.crt", "items": [{"key": "ca.crt", "path": "ca.crt"}]}}
    spec = spec_of(
        {
            "volumes": [
                {"name": "kube-api-access", **projected({"serviceAccountToken": {"path": "token", "expirationSeconds": 3607}}, ca)},
                {"name": "vault", **projected({"serviceAccountToken": {"path": "vault/token", "audience": "vault"}})},
            ]
        }
    )
    secret = token_secret_name("default", "web", "uid-1")
    first, second = (volume["projected"]["sources"] for volume in spec["volumes"])
    assert first == [
        {"secret": {"name": secret, "items": [{"key": "token", "path": "token"}]}},
        {"configMap": {"name": copy("kube-root-ca.crt"), "items": [{"key": "ca.crt", "path": "ca.crt"}]}},
    ]
    assert second == [{"secret": {"name": secret, "items": [{"key": "token-1", "path": "vault/token"}]}}]


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("metadata.name", "metadata.annotations['kubeocean.io/virtual-pod-name']"),
        ("metadata.namespace", "metadata.annotations['kubeocean.io/virtual-pod-namespace']"),
        ("metadata.uid", "metadata.annotations['kubeocean.io/virtual-pod-uid']"),
        ("spec.nodeName", "metadata.annotations['kubeocean.io/virtual-node-name']"),
        ("spec.serviceAccountName", "metadata.annotations['kubeocean.io/service-account']"),
        ("status.podIP", "status.podIP"),
        ("metadata.labels['app']", "metadata.labels['app']"),
    ],
)
def test_downward_api_shows_virtual_values(path: str, expected: str) -> None:
    item = {"path": "f", "fieldRef": {"fieldPath": path}}
    spec = spec_of(
        {
            "containers": [{"name": "main", "env": [{"name": "V", "valueFrom": {"fieldRef": {"fieldPath": path}}}]}],
            "volumes": [
                {"name": "a", "downwardAPI": {"items": [item]}},
                {"name": "b", "projected": {"sources": [{"downwardAPI": {"items": [item]}}]}},
            ],
        }
    )
    assert spec["containers"][0]["env"][-1]["valueFrom"]["fieldRef"]["fieldPath"] == expected
    assert spec["volumes"][0]["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == expected
    assert spec["volumes"][1]["projected"]["sources"][0]["downwardAPI"]["items"][0]["fieldRef"]["fieldPath"] == expected


OURS: list[Json] = [
    {"name": "HOSTNAME", "value": "web"},
    {"name": "KUBERNETES_SERVICE_HOST", "value": "10.0.0.1"},
    {"name": "KUBERNETES_SERVICE_PORT", "value": "443"},
]


def test_environment_of_every_container_leads_to_the_hub() -> None:
    web = pod({"initContainers": [{"name": "init"}], "containers": [{"name": "main", "env": [{"name": "A", "value": "$(HOSTNAME)"}]}]})
    spec = physical_pod(web, CONNECTED)["spec"]
    assert spec["initContainers"][0]["env"] == OURS
    assert spec["containers"][0]["env"] == [*OURS, {"name": "A", "value": "$(HOSTNAME)"}]
    assert spec["hostAliases"][0]["ip"] == "10.0.0.1"
    assert (spec["dnsPolicy"], spec["dnsConfig"]["nameservers"]) == ("None", ["10.0.0.2"])


def test_variables_of_the_user_win() -> None:
    users = [{"name": "HOSTNAME", "value": "0.0.0.0"}, {"name": "KUBERNETES_SERVICE_HOST", "value": "mine"}, {"name": "DB_PORT"}]
    linked = evolve(CONNECTED, services={"DB_PORT": "tcp://10.1.1.1:5432", "DB_SERVICE_HOST": "10.1.1.1"})
    web = pod({"containers": [{"name": "main", "env": users}]})
    linked_env = physical_pod(web, linked)["spec"]["containers"][0]["env"]
    assert linked_env == [{"name": "DB_SERVICE_HOST", "value": "10.1.1.1"}, {"name": "KUBERNETES_SERVICE_PORT", "value": "443"}, *users]


def test_hostname_variable_is_the_hostname_that_the_user_chose() -> None:
    job = pod({"hostname": "train-3", "containers": [{"name": "main"}]}, name="train-3-x7k2p")
    assert physical_pod(job, TARGET)["spec"]["containers"][0]["env"] == [{"name": "HOSTNAME", "value": "train-3"}]


@pytest.mark.parametrize(
    ("asked", "given"),
    [
        ({"subdomain": "workers"}, {"hostname": "web"}),
        ({"setHostnameAsFQDN": True}, {"hostname": "web"}),
        (
            {"subdomain": "workers", "setHostnameAsFQDN": True},
            {"hostname": "web", "hostnameOverride": "web.workers.default.svc.cluster.local"},
        ),
        ({"subdomain": "workers", "setHostnameAsFQDN": True, "hostNetwork": True}, {"hostname": "web"}),
        ({"subdomain": "w" * 60, "setHostnameAsFQDN": True}, {"hostname": "web"}),
    ],
)
def test_qualified_name_is_that_of_the_hub_or_none(asked: Json, given: Json) -> None:
    spec = spec_of(asked)
    names = ("hostname", "hostnameOverride", "subdomain", "setHostnameAsFQDN")
    assert {name: spec[name] for name in names if name in spec} == given


def test_without_a_way_home_the_pod_starts_all_the_same() -> None:
    spec = spec_of({"dnsPolicy": "ClusterFirst"})
    assert spec["containers"][0]["env"] == [{"name": "HOSTNAME", "value": "web"}]
    assert spec["dnsPolicy"] == "ClusterFirst"
    assert not {"hostAliases", "dnsConfig"} & spec.keys()


def test_ephemeral_containers_and_readiness_gates_are_not_created() -> None:
    spec = spec_of({"ephemeralContainers": [{"name": "debug", "image": "d"}], "readinessGates": [{"conditionType": "x/y"}]})
    assert not {"ephemeralContainers", "readinessGates"} & spec.keys()


def test_unknown_reference_is_rejected_for_good() -> None:
    with pytest.raises(PodRejected) as rejected:
        spec_of({"volumes": [{"name": "v", "teleport": {"secretName": "x"}}]})
    assert rejected.value.reason == "UnsupportedReference"
    assert "spec.volumes[0].teleport" in rejected.value.message


def test_translation_does_not_change_the_virtual_pod() -> None:
    web = pod({"volumes": [{"name": "a", "configMap": {"name": "settings"}}]})
    before = web.spec
    physical_pod(web, CONNECTED)
    assert web.spec == before


def test_ephemeral_containers_that_were_there_first_are_added_afterwards() -> None:
    web = pod({"ephemeralContainers": [{"name": "debug", "image": "busybox"}]}, generation=2)
    body = physical_pod(web, TARGET)
    assert "ephemeralContainers" not in body["spec"]
    wanted = changes(web, physical(body), TARGET)
    assert list(wanted.ephemeral) == ["debug"]
    assert wanted.main is not None and wanted.main["metadata"]["annotations"]["kubeocean.io/virtual-generation"] == "2"


DNS = DnsAccess(("10.0.0.2",))
HUB_DNS: Json = {
    "nameservers": ["10.0.0.2"],
    "searches": ["default.svc.cluster.local", "svc.cluster.local", "cluster.local"],
    "options": [{"name": "ndots", "value": "5"}],
}


@pytest.mark.parametrize("policy", [{}, {"dnsPolicy": "ClusterFirst"}, {"dnsPolicy": "ClusterFirstWithHostNet", "hostNetwork": True}])
def test_cluster_policies_become_the_hubs_dns(policy: Json) -> None:
    spec = dict(policy)
    set_dns(spec, DNS, namespace="default")
    assert (spec["dnsPolicy"], spec["dnsConfig"]) == ("None", HUB_DNS)


@pytest.mark.parametrize(
    "spec",
    [
        {"dnsPolicy": "Default"},
        {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}},
        # On the host's network ClusterFirst means the host's DNS.
        {"dnsPolicy": "ClusterFirst", "hostNetwork": True},
    ],
)
def test_other_policies_are_left_as_they_are(spec: Json) -> None:
    changed = dict(spec)
    set_dns(changed, DNS, namespace="default")
    assert changed == spec


def test_without_dns_of_the_hub_the_workers_stays() -> None:
    spec: Json = {"dnsPolicy": "ClusterFirst"}
    set_dns(spec, None, namespace="default")
    assert spec == {"dnsPolicy": "ClusterFirst"}


MIRRORED = evolve(TARGET, services_zone="mnt.kubeocean.internal")


def test_pod_with_the_workers_dns_searches_the_mirrors_of_its_namespace() -> None:
    spec = physical_pod(pod({"dnsConfig": {"searches": ["corp.example"]}}), MIRRORED)["spec"]
    assert "dnsPolicy" not in spec
    assert spec["dnsConfig"] == {
        "searches": ["corp.example", "default.mnt.kubeocean.internal"],
        "options": [{"name": "ndots", "value": "6"}],
    }


def test_ndots_of_the_user_stays() -> None:
    options = [{"name": "ndots", "value": "2"}]
    assert physical_pod(pod({"dnsConfig": {"options": options}}), MIRRORED)["spec"]["dnsConfig"]["options"] == options


@pytest.mark.parametrize("spec", [{"dnsPolicy": "Default"}, {"dnsPolicy": "None", "dnsConfig": {"nameservers": ["1.1.1.1"]}}])
def test_pod_with_a_dns_of_its_own_searches_no_mirrors(spec: Json) -> None:
    assert physical_pod(pod(spec), MIRRORED)["spec"].get("dnsConfig") == spec.get("dnsConfig")


def test_with_dns_of_the_hub_mirrors_are_not_searched() -> None:
    assert physical_pod(pod(), evolve(MIRRORED, dns=DNS))["spec"]["dnsConfig"] == HUB_DNS


def test_users_dns_config_is_merged() -> None:
    users: Json = {
        "nameservers": ["1.1.1.1", "10.0.0.2"],
        "searches": ["corp.example", "svc.cluster.local"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }
    spec: Json = {"dnsConfig": users}
    set_dns(spec, DnsAccess(("10.0.0.2", "10.0.0.3"), "hub.example"), namespace="team")
    assert spec["dnsConfig"] == {
        "nameservers": ["10.0.0.2", "10.0.0.3", "1.1.1.1"],
        "searches": ["team.svc.hub.example", "svc.hub.example", "hub.example", "corp.example", "svc.cluster.local"],
        "options": [{"name": "ndots", "value": "2"}, {"name": "edns0"}],
    }


def test_merged_config_keeps_the_limits_of_kubernetes() -> None:
    users = {"nameservers": ["1.1.1.1", "8.8.8.8", "9.9.9.9"], "searches": [f"{'s' * 60}.d{number}.example" for number in range(32)]}
    spec: Json = {"dnsConfig": users}
    set_dns(spec, DNS, namespace="default")
    assert spec["dnsConfig"]["nameservers"] == ["10.0.0.2", "1.1.1.1", "8.8.8.8"]
    assert len(spec["dnsConfig"]["searches"]) <= 32
    assert len(" ".join(spec["dnsConfig"]["searches"])) <= 2048
    assert spec["dnsConfig"]["searches"][0] == "default.svc.cluster.local"


def test_api_server_is_found_by_environment_and_by_its_usual_names() -> None:
    access = ApiServerAccess("10.0.0.1", 6443)
    assert api_server_environment(access) == {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "6443"}
    users = [{"ip": "1.2.3.4", "hostnames": ["db"]}]
    names = ["kubernetes.default.svc", "kubernetes.default", "kubernetes", "kubernetes.default.svc.cluster.local"]
    assert host_aliases(users, access, domain="cluster.local") == [*users, {"ip": "10.0.0.1", "hostnames": names}]


def test_names_lead_to_addresses_only() -> None:
    assert host_aliases([], ApiServerAccess("api.example"), domain="cluster.local") == []
    assert host_aliases([], None, domain="cluster.local") == []
    assert api_server_environment(None) == {}
