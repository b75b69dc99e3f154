"""Flags of the control plane say what the options ask for.

Invariant: pure; whether the programs accept them is asked in the integration tests.
"""

from __future__ import annotations

from pathlib import Path

from vkubelet.testing.cluster.components import Options, Plane, apiserver, controllers


def plane(number: int = 0) -> Plane:
    return Plane(
        directory=Path("/somewhere/hub"), number=number, port=30001, etcd_port=30002, etcd_peer_port=30003, host_address="10.77.0.1"
    )


def test_clusters_of_a_run_have_different_service_ranges() -> None:
    assert plane(0).service_cidr == "10.96.0.0/16"
    assert plane(1).service_cidr == "10.97.0.0/16"
    assert plane(1).first_service_address == "10.97.0.1"
    assert plane(1).dns_address == "10.97.0.10"


def test_kubelets_are_verified_unless_switched_off() -> None:
    flag = "--kubelet-certificate-authority=/somewhere/hub/pki/ca.crt"
    assert flag in apiserver(plane(), Options())
    assert flag not in apiserver(plane(), Options(verify_kubelets=False))


def test_flags_of_the_caller_come_last_so_that_they_win() -> None:
    own = ("--authorization-mode=AlwaysAllow", "--feature-gates=X=true")
    assert tuple(apiserver(plane(), Options(apiserver_flags=own))[-2:]) == own


def test_api_servers_behind_it_know_it_by_a_certificate_that_its_clients_cannot_have() -> None:
    flags = apiserver(plane(), Options())
    assert "--requestheader-client-ca-file=/somewhere/hub/pki/front-proxy-ca.crt" in flags
    assert "--client-ca-file=/somewhere/hub/pki/ca.crt" in flags


def test_flags_of_the_caller_come_last_for_the_controllers_too() -> None:
    own = ("--horizontal-pod-autoscaler-sync-period=15s",)
    assert tuple(controllers(plane(), Options(controller_flags=own))[-1:]) == own
