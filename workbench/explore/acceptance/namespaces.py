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

#: of linux/sched.h: System V's shared memory, users, processes and the network of the process's own
_OWN = 0x08000000 | 0x10000000 | 0x20000000 | 0x40000000
#: of linux/prctl.h
_PDEATHSIG, _CAPBSET_DROP, _NO_NEW_PRIVS = 1, 24, 38
_CAPABILITIES = 64  #: as many as capset's two words have
_CAPABILITY_VERSION = 0x20080522  #: of linux/capability.h


def apart() -> str:
    """Go on in a process of namespaces of its own, without capabilities in them; empty, or why Linux does not allow it.

    What called goes on as a grandchild: the child is process 1 of its namespace, with whose end all of it ends, however
    its processes were started, and to which signals such as SIGABRT of its own do nothing. Both wait for the end, and
    end alike.
    """
    libc = ctypes.CDLL(None, use_errno=True)
    uid, gid = os.getuid(), os.getgid()
    if libc.unshare(_OWN):
        return os.strerror(ctypes.get_errno())
    try:
        Path("/proc/self/setgroups").write_text("deny")
        Path("/proc/self/uid_map").write_text(f"{uid} {uid} 1")
        Path("/proc/self/gid_map").write_text(f"{gid} {gid} 1")
    except OSError as error:
        return f"{error.filename}: {error.strerror}"
    for _ in range(2):
        libc.prctl(_PDEATHSIG, signal.SIGKILL)  # after the namespace of users, which takes it away
        if child := os.fork():
            _wait_for(child)
    libc.prctl(_PDEATHSIG, signal.SIGKILL)
    for capability in range(_CAPABILITIES):
        libc.prctl(_CAPBSET_DROP, capability)
    libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0)
    head, none = (ctypes.c_uint32 * 2)(_CAPABILITY_VERSION, 0), (ctypes.c_uint32 * 6)()
    if libc.capset(head, none):
        return f"capset: {os.strerror(ctypes.get_errno())}"
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    return ""


def _wait_for(child: int) -> None:
    """Take in what ends until `child` does, and end as it does: a signal as 128 and its number, as shells have it."""
    while True:
        pid, status = os.wait()
        if pid == child:
            code = os.waitstatus_to_exitcode(status)
            os._exit(code if code >= 0 else 128 - code)
