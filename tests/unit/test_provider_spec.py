"""The rules of the provider protocol that need no provider."""

from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Network
from typing import Any

import pytest
from pydantic import ValidationError

from rollbook.sandboxes.docker.network import network_arguments, packet_rules
from rollbook.sandboxes.docker.spec import (
    container_arguments,
    container_name,
    created_at,
    host_arguments,
    host_port,
    info_of,
    status_of,
    why_stopped,
)
from rollbook.sandboxes.provider import SandboxHandle, SandboxSpec, SandboxStatus

NOW = datetime(2026, 11, 29, 12, 0, tzinfo=UTC)


def spec(**changes: Any) -> SandboxSpec:
    given = {
        "deployment": "d",
        "rollout": "b/os/t/0",
        "attempt": 1,
        "execution": "e",
        "image": "rollbook/desktop:x",
        "vnc_port": 8006,
    }
    return SandboxSpec.model_validate(given | changes)


def test_identity_is_deployment_rollout_attempt_and_execution_only() -> None:
    assert spec().key == spec(image="other", screen=(800, 600), egress="open", batch="b", env={"A": "1"}).key
    keys = {spec().key, spec(attempt=2).key, spec(rollout="b/os/t/1").key, spec(deployment="e").key}
    assert len(keys | {spec(execution="f").key}) == 5
    assert container_name(spec()) == f"rollbook-{spec().key}"


@pytest.mark.parametrize(
    ("change", "word"),
    [
        ({"vnc_port": 5000}, "vnc_port"),
        ({"vnc_port": 0}, "vnc_port"),
        ({"screen": (0, 1080)}, "screen"),
        ({"attempt": 0}, "attempt"),
        ({"image": ""}, "image"),
        ({"limits": {"cpus": 0}}, "cpus"),
        ({"limits": {"gpu": 1}}, "gpu"),
        ({"egress": "some"}, "egress"),
        ({"unknown": 1}, "unknown"),
    ],
)
def test_a_bad_spec_names_its_field(change: dict[str, Any], word: str) -> None:
    with pytest.raises(ValidationError, match=word):
        spec(**change)


def test_labels_say_whose_it_is_and_until_when() -> None:
    labels = container_arguments(spec(batch="b", ttl_s=60), NOW)["labels"]
    assert labels["rollbook.deployment"] == "d"
    assert labels["rollbook.key"] == spec().key
    assert labels["rollbook.rollout"] == "b/os/t/0"
    assert labels["rollbook.attempt"] == "1"
    assert labels["rollbook.batch"] == "b"
    assert datetime.fromisoformat(labels["rollbook.expires_at"]) == NOW + timedelta(seconds=60)


def test_the_host_is_guarded() -> None:
    host = host_arguments(
        spec(limits={"cpus": 8, "memory_mib": 1024, "pids": 100, "shm_mib": 64}), "net", "127.0.0.1", 2
    )
    assert host["port_bindings"] == {f"{port}/tcp": ("127.0.0.1", None) for port in (5000, 9222, 8080, 8006)}
    assert host["security_opt"] == ["no-new-privileges"]
    assert host["cap_drop"] == ["ALL"]
    assert not {"NET_RAW", "NET_ADMIN", "SYS_ADMIN", "MKNOD"} & set(host["cap_add"])
    assert host["nano_cpus"] == 2_000_000_000, "a host with two cores cannot give eight"
    assert host["mem_limit"] == host["memswap_limit"] == 1024**3
    assert (host["pids_limit"], host["shm_size"]) == (100, 64 * 1024**2)
    assert host["dns"] == ["127.0.0.1"]
    assert "dns" not in host_arguments(spec(egress="open"), "net", "127.0.0.1", 2)


def test_only_open_egress_leads_anywhere() -> None:
    subnet = IPv4Network("198.18.0.8/29")
    closed, opened = (network_arguments(spec(egress=egress), subnet) for egress in ("none", "open"))
    option = "com.docker.network.bridge.enable_ip_masquerade"
    assert (closed["options"][option], opened["options"][option]) == ("false", "true")
    (pool,) = closed["ipam"]["Config"]
    assert pool["Gateway"] == "198.18.0.9"
    assert pool["AuxiliaryAddresses"] == {"DefaultGatewayIPv4": "198.18.0.14"}
    assert not opened["ipam"]["Config"][0]["AuxiliaryAddresses"]
    assert closed["name"] != network_arguments(spec(), subnet)["name"], "two networks of one name start nothing"


def test_packet_rules_let_in_the_engine_and_out_what_egress_allows() -> None:
    closed, opened = (packet_rules("198.18.0.9", egress).splitlines() for egress in ("none", "open"))
    for rules in (closed, opened):
        assert {":INPUT DROP [0:0]", ":OUTPUT DROP [0:0]", "-A INPUT -s 198.18.0.9 -j ACCEPT"} <= set(rules)
    assert [rule for rule in closed if rule.startswith("-A OUTPUT")] == [
        "-A OUTPUT -o lo -j ACCEPT",
        "-A OUTPUT -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT",
    ]
    last = opened.index("-A OUTPUT -j ACCEPT")
    for subnet in ("10.0.0.0/8", "169.254.0.0/16", "198.18.0.0/15"):
        assert opened.index(f"-A OUTPUT -d {subnet} -j DROP") < last


@pytest.mark.parametrize(
    ("state", "status"),
    [
        ("created", SandboxStatus.STARTING),
        ("running", SandboxStatus.RUNNING),
        ("paused", SandboxStatus.RUNNING),
        ("exited", SandboxStatus.STOPPED),
        ("dead", SandboxStatus.STOPPED),
        ("removing", SandboxStatus.STOPPED),
        ("a word of tomorrow", SandboxStatus.UNKNOWN),
    ],
)
def test_states(state: str, status: SandboxStatus) -> None:
    assert status_of(state) is status


def test_what_docker_says_is_read() -> None:
    details = {
        "Created": "2026-11-29T12:00:00.123456789Z",
        "NetworkSettings": {"Ports": {"5000/tcp": [{"HostIp": "127.0.0.1", "HostPort": "32768"}], "8080/tcp": None}},
        "State": {"Status": "exited", "ExitCode": 137, "OOMKilled": True, "Error": ""},
    }
    assert created_at(details) == NOW + timedelta(microseconds=123456)
    assert (host_port(details, 5000), host_port(details, 8080)) == (32768, None)
    assert why_stopped(details, b"Xvfb: no\n") == (
        "the container exited with code 137, out of memory; its last output: Xvfb: no"
    )
    row = {"Id": "abc", "State": "running", "Created": NOW.timestamp(), "Labels": {"rollbook.key": "k"}}
    assert (info_of(row).key, info_of(row).status) == ("k", SandboxStatus.RUNNING)


def test_a_whole_second_is_a_time_as_well() -> None:
    assert created_at({"Created": "2026-11-29T12:00:00Z"}) == NOW
    assert created_at({"Created": "2026-11-29T12:00:00.5Z"}) == NOW + timedelta(milliseconds=500)


def test_a_handle_is_small_and_survives_json() -> None:
    handle = SandboxHandle(provider="docker", sandbox_id="a" * 64, key=spec().key, created_at=NOW, vnc_port=8006)
    assert SandboxHandle.model_validate_json(handle.model_dump_json()) == handle
    assert len(handle.model_dump_json()) < 500
    assert handle.isolation == "partial"
