"""A process that has no network, no other process, and no memory but its own: Linux's namespaces, without privileges.

In a namespace of users of its own a process may read the memory of none outside, whoever's that is (Linux,
security/commoncap.c, cap_ptrace_access_check).

It imports nothing that starts threads, of which a process that makes a namespace of users may have none.
"""

import ctypes
import os
import resource
import signal
from pathlib import Path
from typing import NamedTuple

#: of linux/sched.h: mounts, System V's shared memory, users, processes and the network of the process's own
_OWN = 0x00020000 | 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
#: of linux/mount.h: no setuid, devices or programs there; all below, and of nobody else
_PLAIN, _PRIVATE = 2 | 4 | 8, 0x4000 | 0x40000
#: of linux/prctl.h
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 24, 38
_CAPABILITIES = 64  #: as many as capset's two words have
_CAPABILITY_VERSION = 0x20080522  #: of linux/capability.h


class Apart(NamedTuple):
    """What became of a process that went on by itself."""

    why: str  #: Linux does not allow it; empty where it does
    number: str = ""  #: of the process, outside
    has_proc: bool = True  #: whether it has a /proc of its own namespace, without which CUDA finds no GPU


def apart() -> Apart:
    """Go on in a process of namespaces of its own, without capabilities in them.

    What called goes on as a grandchild: the child is process 1 of its namespace, with whose end all of it ends, however
    its processes were started, and to which signals such as SIGABRT of its own do nothing. Both wait for the end, and
    end alike.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_OWN):
        return Apart(os.strerror(ctypes.get_errno()))
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as error:
        return Apart(f"{error.filename}: {error.strerror}")
    for _ in range(2):
        libc.prctl(_PDEATHSIG, signal.SIGKILL)  # after the namespace of users, which takes it away
        if child := os.fork():
            _wait_for(child)
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
    number = os.readlink("/proc/self")
    # in a container whose /proc is masked Linux refuses to mount a new one
    has_proc = not libc.mount(b"none", b"/", None, ctypes.c_ulong(_PRIVATE), None) and not libc.mount(
        b"proc", b"/proc", b"proc", ctypes.c_ulong(_PLAIN), None
    )
    for capability in range(_CAPABILITIES):
        libc.prctl(_CAPBSET_DROP, capability)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    head, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(head, none):
        return Apart(f"capset: {os.strerror(ctypes.get_errno())}")
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return Apart("", number, has_proc)


def _wait_for(child: int) -> None:
    """Take in what ends until `child` does, and end as it does: a signal as 128 and its number, as shells have it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
