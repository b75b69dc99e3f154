"""System calls that Python has no function for: mounts, namespaces, and privileges to drop.

Invariant: a call that the kernel refuses raises OSError with the kernel's error number; nothing here reads a path of its choice.
"""

import ctypes
import errno
import os

NEW_MOUNTS, NEW_HOSTNAME = 0x00020000, 0x04000000
READ_ONLY, NO_SUID, NO_DEV, NO_EXEC, REMOUNT, BIND, MOVE, REC = 1, 2, 4, 8, 32, 4096, 8192, 16384
UNBINDABLE, PRIVATE, SLAVE = 1 << 17, 1 << 18, 1 << 19
_DETACH = 2
_SET_PDEATHSIG, _SET_SUBREAPER, _SET_NO_NEW_PRIVILEGES = 1, 36, 38
_MOUNT_SETATTR, _EMPTY_PATH, _RECURSIVE = 442, 0x1000, 0x8000
_KEYCTL = {"x86_64": 250, "aarch64": 219, "riscv64": 219, "armv7l": 311, "i686": 288, "ppc64le": 271, "s390x": 280}
_JOIN_SESSION_KEYRING = 1
_CAPABILITY_VERSION = 0x20080522

_libc = ctypes.CDLL(None, use_errno=True)


def _call(name: str, *args: object) -> None:
    """Calls a function of libc. Raises OSError."""
    if getattr(_libc, name)(*args) < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def _system_call(number: int, *args: object) -> None:
    """Makes a system call. Raises OSError."""
    _call("syscall", ctypes.c_long(number), *args)


def mount(source: str, target: str, kind: str = "", *, flags: int = 0, options: str = "") -> None:
    """Mounts a file system. Raises OSError."""
    try:
        _call("mount", os.fsencode(source), os.fsencode(target), kind.encode(), ctypes.c_ulong(flags), options.encode())
    except OSError as error:
        raise OSError(error.errno, error.strerror, target) from error


def unmount(target: str) -> None:
    """Detaches a mount at once, even while it is in use. Raises OSError."""
    _call("umount2", os.fsencode(target), _DETACH)


def restrict(descriptor: int, flags: int) -> bool:
    """Sets NO_SUID, NO_DEV or READ_ONLY on the mount of a descriptor and on all mounts below it, or returns False before Linux 5.12.

    Raises OSError.
    """
    attributes = (ctypes.c_uint64 * 4)(flags, 0, 0, 0)
    try:
        _system_call(
            _MOUNT_SETATTR,
            *(
                ctypes.c_int(descriptor),
                b"",
                ctypes.c_uint(_EMPTY_PATH | _RECURSIVE),
                attributes,
                ctypes.c_size_t(ctypes.sizeof(attributes)),
            ),
        )
    except OSError as error:
        if error.errno != errno.ENOSYS:
            raise
        return False
    return True


def pivot_root(new: str, old: str) -> None:
    """Changes the root of the mount namespace. Raises OSError."""
    _call("pivot_root", os.fsencode(new), os.fsencode(old))


def unshare(flags: int) -> None:
    """Creates new namespaces for this process. Raises OSError."""
    _call("unshare", flags)


def join(descriptor: int) -> None:
    """Enters the namespace of an open `/proc/PID/ns/…`. Raises OSError."""
    _call("setns", descriptor, 0)


def _control(option: int, value: int) -> None:
    _call("prctl", option, ctypes.c_ulong(value), *(ctypes.c_ulong(0),) * 3)


def adopt_orphans() -> None:
    """Makes processes below this one its children when their parent exits. Raises OSError."""
    _control(_SET_SUBREAPER, 1)


def ends_with_parent(signal: int, parent: int) -> bool:
    """Sends the signal when the parent exits; returns False when it has exited already. Raises OSError."""
    _control(_SET_PDEATHSIG, signal)
    return os.getppid() == parent


def no_new_privileges() -> None:
    """Disables set-user-ID, set-group-ID and file capabilities of all programs from now on. Raises OSError."""
    _control(_SET_NO_NEW_PRIVILEGES, 1)


def drop_capabilities() -> None:
    """Drops all capabilities, inheritable and ambient ones too. Raises OSError."""
    header = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0)
    _call("capset", header, (ctypes.c_uint32 * 6)())


def leave_keyring() -> None:
    """Joins an empty session keyring: a process that shares the session keyring of another user may read that user's keys. Raises
    OSError."""
    number = _KEYCTL.get(os.uname().machine)
    try:
        if number is not None:
            _system_call(number, ctypes.c_int(_JOIN_SESSION_KEYRING), None)
    except OSError as error:
        # A kernel, or an engine around us, without keyrings refuses the program's calls as well.
        if error.errno not in (errno.ENOSYS, errno.EPERM):
            raise
