"""The network of one desktop: a bridge of its own, and packet rules in the desktop's network namespace.

The rules are set from outside, by a short container with NET_ADMIN that shares the namespace. The desktop has neither
NET_ADMIN nor NET_RAW, so root in the guest can neither change them nor forge packets.
"""

import random
import uuid
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from ipaddress import IPv4Interface, IPv4Network
from typing import Any

import docker
from docker.errors import APIError, ContainerError
from docker.types import IPAMConfig, IPAMPool

from rollbook.errors import SandboxStartFailed
from rollbook.sandboxes.docker.engine import explain, parse_time
from rollbook.sandboxes.provider import LABEL_DEPLOYMENT, LABEL_KEY, SandboxSpec

DEFAULT_SUBNETS = IPv4Network("198.18.0.0/15")
"""The range of RFC 2544 for measurements between networks: it is not routed, so it hides no host of a user."""

SUBNET_BITS = 29
"""Network, gateway, desktop, an unused address for the default route, broadcast."""

SUBNET_TRIES = 64

HELPER_LABEL = "rollbook.helper"
"""Label of the short container that sets the rules. It is not a desktop, so it carries none of a desktop's labels."""

NOT_PUBLIC = (
    *("0.0.0.0/8", "10.0.0.0/8", "100.64.0.0/10", "127.0.0.0/8", "169.254.0.0/16", "172.16.0.0/12"),
    *("192.0.0.0/24", "192.168.0.0/16", "198.18.0.0/15", "224.0.0.0/3"),
)
"""Special-purpose ranges of RFC 6890: the host, its networks, the metadata address of clouds, multicast."""


def network_arguments(spec: SandboxSpec, subnet: IPv4Network) -> dict[str, Any]:
    """Arguments of `create_network` for one desktop.

    Without egress the default route leads to an unused address, and nothing is masqueraded: also where the
    packet rules cannot be set, nothing leaves. Not an `internal` network: those publish no ports on Docker 20.10.
    """
    gateway, *_, unused = subnet.hosts()
    nowhere = {} if spec.egress == "open" else {"DefaultGatewayIPv4": str(unused)}
    pool = IPAMPool(subnet=str(subnet), gateway=str(gateway), aux_addresses=nowhere)
    return {
        # Unique: the engine lets two creators make two networks of one name, then starts no container in either.
        "name": f"rollbook-{spec.key}-{uuid.uuid4().hex[:8]}",
        "driver": "bridge",
        "ipam": IPAMConfig(pool_configs=[pool]),
        "labels": {LABEL_DEPLOYMENT: spec.deployment, LABEL_KEY: spec.key},
        "options": {
            "com.docker.network.bridge.enable_icc": "false",
            "com.docker.network.bridge.enable_ip_masquerade": "true" if spec.egress == "open" else "false",
        },
    }


def create_network(client: docker.DockerClient, spec: SandboxSpec, subnets: IPv4Network) -> str:
    """Create the network of a desktop in a free subnet of `subnets`; returns its id.

    The subnet is given because the engine's own pools hold about thirty networks. Raises SandboxStartFailed when no
    free one is found.
    """
    count = 1 << (SUBNET_BITS - subnets.prefixlen)
    for _ in range(SUBNET_TRIES):
        start = int(subnets.network_address) + random.randrange(count) * (1 << (32 - SUBNET_BITS))
        try:
            return str(client.api.create_network(**network_arguments(spec, IPv4Network((start, SUBNET_BITS))))["Id"])
        except APIError as error:
            if "overlaps" not in explain(error):
                raise
    raise SandboxStartFailed(
        f"no free subnet for a desktop in {subnets} after {SUBNET_TRIES} tries: remove unused networks with "
        "`docker network prune`, or set ROLLBOOK_DOCKER_SUBNETS to another range"
    )


def remove_networks(client: docker.DockerClient, labels: Mapping[str, str], older_than_s: float = 0) -> int:
    """Remove every network with all of `labels`, created before `older_than_s`, that no container is in; returns how
    many.

    In use (403, 409) or gone already (404) is fine: another caller uses or removed it.
    """
    removed = 0
    before = datetime.now(UTC) - timedelta(seconds=older_than_s)
    for row in client.api.networks(filters={"label": [f"{name}={value}" for name, value in labels.items()]}):
        if parse_time(row["Created"]) > before:
            continue
        try:
            client.api.remove_network(row["Id"])
            removed += 1
        except APIError as error:
            if error.status_code not in (403, 404, 409):
                raise
    return removed


def remove_helpers(client: docker.DockerClient, deployment: str) -> None:
    """Remove helper containers that a killed worker left behind."""
    filters = {"label": f"{HELPER_LABEL}={deployment}", "status": ["exited", "created", "dead"]}
    for row in client.api.containers(all=True, filters=filters):
        client.api.remove_container(row["Id"], force=True)


_SET_RULES = """
printf %s "$RULES" | iptables-restore
test ! -s /proc/net/if_inet6 || printf %s "$RULES6" | ip6tables-restore
"""

_LOOPBACK_ONLY = """*filter
:INPUT DROP [0:0]
:FORWARD DROP [0:0]
:OUTPUT DROP [0:0]
-A INPUT -i lo -j ACCEPT
-A OUTPUT -o lo -j ACCEPT
COMMIT
"""
"""Input of ip6tables-restore: desktops have no IPv6 network; where the kernel has IPv6, only loopback passes."""


def packet_rules(bridge: str, egress: str) -> str:
    """Input of iptables-restore for the namespace of a desktop.

    In: only the bridge's own address, where the engine's proxy for the published ports is. A neighbouring host with a
    route to the desktop's address reaches nothing. Out: answers; with egress also public addresses and name servers.
    """
    rules = ["*filter", ":INPUT DROP [0:0]", ":FORWARD DROP [0:0]", ":OUTPUT DROP [0:0]"]
    for chain, interface in (("INPUT", "-i"), ("OUTPUT", "-o")):
        rules.append(f"-A {chain} {interface} lo -j ACCEPT")
        rules.append(f"-A {chain} -m conntrack --ctstate ESTABLISHED,RELATED -j ACCEPT")
    rules.append(f"-A INPUT -s {bridge} -j ACCEPT")
    if egress == "open":
        rules += [f"-A OUTPUT -p {protocol} --dport 53 -j ACCEPT" for protocol in ("udp", "tcp")]
        rules += [f"-A OUTPUT -d {subnet} -j DROP" for subnet in NOT_PUBLIC]
        rules.append("-A OUTPUT -j ACCEPT")
    return "\n".join([*rules, "COMMIT", ""])


def set_rules(client: docker.DockerClient, details: Mapping[str, Any], egress: str) -> str | None:
    """Set the packet rules of a running desktop; None on success, else the reason. Repeating it is harmless."""
    (network,) = details["NetworkSettings"]["Networks"].values()
    # The first address is the bridge's; "Gateway" is where the default route leads, which may be nowhere.
    bridge = next(IPv4Interface(f"{network['IPAddress']}/{network['IPPrefixLen']}").network.hosts())
    try:
        client.containers.run(
            details["Image"],
            entrypoint=["/bin/sh", "-ec"],
            command=[_SET_RULES],
            environment={"RULES": packet_rules(str(bridge), egress), "RULES6": _LOOPBACK_ONLY},
            user="root",
            network_mode=f"container:{details['Id']}",
            cap_drop=["ALL"],
            cap_add=["NET_ADMIN", "NET_RAW"],
            labels={HELPER_LABEL: details["Config"]["Labels"][LABEL_DEPLOYMENT]},
            remove=True,
        )
    except ContainerError as error:
        words = error.stderr.decode(errors="replace") if isinstance(error.stderr, bytes) else str(error.stderr or "")
        return words.strip() or f"exit status {error.exit_status}"
    except APIError as error:
        return explain(error)
    return None
