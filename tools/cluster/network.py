"""What an instance needs of the machine's network: a bridge, forwarding, and three iptables rules.

Everything carries the instance's name, so that it can be found and removed after a crash too.
"""

from __future__ import annotations

import shlex
from pathlib import Path

from cluster.paths import API_PORT, Instance
from cluster.processes import run


def set_up_network(instance: Instance) -> None:
    """The bridge with the gateway's address; pods may talk outwards and reach the service `kubernetes`."""
    run("ip", "link", "add", instance.bridge, "type", "bridge")
    run("ip", "address", "add", f"{instance.gateway}/16", "dev", instance.bridge)
    run("ip", "link", "set", instance.bridge, "up")
    subnet, bridge = instance.pod_subnet, instance.bridge
    to_api = f"-d {instance.service_address} -p tcp --dport 443"
    target = f"-j DNAT --to-destination {instance.gateway}:{API_PORT}"
    for rule in (
        f"-t nat -A POSTROUTING -s {subnet} ! -d {subnet} -j MASQUERADE",
        f"-t nat -A PREROUTING {to_api} {target}",
        f"-t nat -A OUTPUT {to_api} {target}",
        f"-t filter -A FORWARD -i {bridge} -j ACCEPT",
        f"-t filter -A FORWARD -o {bridge} -j ACCEPT",
    ):
        run("iptables", "-w", *shlex.split(rule), "-m", "comment", "--comment", _mark(instance.name))


def remove_network(instance: Instance) -> None:
    """Undo `set_up_network`; what is gone already is no error."""
    remove_rules(_mark(instance.name))
    remove_link(instance.bridge)


def remove_rules(mark: str) -> None:
    """Delete all iptables rules with that comment."""
    for table in ("nat", "filter"):
        for rule in run("iptables", "-w", "-t", table, "-S", check=False).splitlines():
            words = shlex.split(rule)
            if words[0] == "-A" and mark in words:
                run("iptables", "-w", "-t", table, "-D", *words[1:])


def remove_link(name: str) -> None:
    if Path(f"/sys/class/net/{name}").exists():
        run("ip", "link", "delete", name)


def _mark(name: str) -> str:
    return f"orchard-devcluster-{name}"


def remove_chains(names: list[str]) -> None:
    """Delete these chains of the table `nat`, with all rules that lead to them, if nothing is in use there.

    The CNI plug-in `portmap` makes them and leaves them behind.
    """
    listing = run("iptables", "-w", "-t", "nat", "-S", check=False).splitlines()
    if any(line.startswith("-N CNI-DN-") for line in listing):
        return
    for line in listing:
        words = shlex.split(line)
        if words[0] == "-A" and words[1] not in names and words[-1] in names:
            run("iptables", "-w", "-t", "nat", "-D", *words[1:])
    present = [name for name in names if f"-N {name}" in listing]
    for action in ("-F", "-X"):
        for name in present:
            run("iptables", "-w", "-t", "nat", action, name)
