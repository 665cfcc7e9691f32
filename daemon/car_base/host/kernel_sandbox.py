"""Linux's own means to confine a process: prctl, Landlock and seccomp, through ctypes.

The packages for it are a development release (landlock) or need a C library (pyseccomp); these are a few system calls.
Both sandboxes bind the thread that enters them and the threads that it starts later; `filter_system_calls` binds all.
"""

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterable
from enum import IntFlag
from typing import NamedTuple

_PR_SET_DUMPABLE = 4
_PR_SET_NO_NEW_PRIVS = 38

_CAPABILITY_VERSION = 0x20080522
# Root's rights to read and write files of other users, which Landlock bounds, and to lock memory.
_KEPT_CAPABILITIES = 1 << 1 | 1 << 2 | 1 << 14

# Landlock: the same numbers on all architectures.
_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_RULESET_VERSION = 1
_RULE_PATH_BENEATH = 1
_BIND_TCP, _CONNECT_TCP = 1, 2
_SCOPE_ABSTRACT_SOCKETS, _SCOPE_SIGNALS = 1, 2
_NETWORK_ABI, _SCOPE_ABI = 4, 6


class Access(IntFlag):
    """Rights of Landlock on files and folders."""

    EXECUTE = 1 << 0
    WRITE_FILE = 1 << 1
    READ_FILE = 1 << 2
    READ_DIR = 1 << 3
    REMOVE_DIR = 1 << 4
    REMOVE_FILE = 1 << 5
    MAKE_CHAR = 1 << 6
    MAKE_DIR = 1 << 7
    MAKE_REG = 1 << 8
    MAKE_SOCK = 1 << 9
    MAKE_FIFO = 1 << 10
    MAKE_BLOCK = 1 << 11
    MAKE_SYM = 1 << 12
    REFER = 1 << 13
    TRUNCATE = 1 << 14
    IOCTL_DEV = 1 << 15


READ = Access.READ_FILE | Access.READ_DIR
USE_DEVICE = READ | Access.WRITE_FILE | Access.IOCTL_DEV
REWRITE = Access.READ_FILE | Access.WRITE_FILE | Access.TRUNCATE
WRITE = REWRITE | Access.READ_DIR | Access.MAKE_REG | Access.REMOVE_FILE | Access.MAKE_DIR | Access.REMOVE_DIR
# The rights that a path which is not a folder may have.
_OF_FILES = Access.EXECUTE | Access.WRITE_FILE | Access.READ_FILE | Access.TRUNCATE | Access.IOCTL_DEV
# The number of rights that each version of Landlock has, from the first on.
_RIGHTS = (13, 14, 15, 15, 16)


class PathRule(NamedTuple):
    """A path, and what may be done to it and all beneath it."""

    path: str
    access: Access


class _RulesetAttributes(ctypes.Structure):
    _fields_ = [
        ("handled_access_fs", ctypes.c_uint64),
        ("handled_access_net", ctypes.c_uint64),
        ("scoped", ctypes.c_uint64),
    ]


class _PathBeneath(ctypes.Structure):
    _pack_ = 1
    _fields_ = [("allowed_access", ctypes.c_uint64), ("parent_fd", ctypes.c_int32)]


class _CapabilityHeader(ctypes.Structure):
    _fields_ = [("version", ctypes.c_uint32), ("pid", ctypes.c_int)]


class _Capabilities(ctypes.Structure):
    _fields_ = [("effective", ctypes.c_uint32), ("permitted", ctypes.c_uint32), ("inheritable", ctypes.c_uint32)]


class _Program(ctypes.Structure):
    _fields_ = [("length", ctypes.c_ushort), ("filter", ctypes.c_char_p)]


def give_up_privileges() -> bool:
    """Gain no privilege by executing a program, for good; False if the kernel does not support it."""
    return _prctl(_PR_SET_NO_NEW_PRIVS, 1)


def drop_capabilities() -> bool:
    """Give up what this thread and its later threads may do as root, beyond files and locked memory.

    Returns False if the kernel does not support it.
    """
    if sys.platform != "linux":
        return False
    header, capabilities = _CapabilityHeader(_CAPABILITY_VERSION, 0), (_Capabilities * 2)()
    if _libc().capget(ctypes.byref(header), capabilities) != 0:
        return False
    kept = capabilities[0].permitted & _KEPT_CAPABILITIES
    capabilities[0] = _Capabilities(kept, kept, 0)
    capabilities[1] = _Capabilities(0, 0, 0)
    return int(_libc().capset(ctypes.byref(header), capabilities)) == 0


def hide_memory() -> bool:
    """Let no other process of this user read this one's memory; False if the kernel does not support it."""
    return _prctl(_PR_SET_DUMPABLE, 0)


def landlock_abi() -> int:
    """Return the version of Landlock that the kernel supports; 0 for none."""
    if sys.platform != "linux":
        return 0
    return max(0, _system_call(_CREATE_RULESET, None, 0, _RULESET_VERSION))


def restrict_files(rules: Iterable[PathRule]) -> int:
    """Allow this thread and its later threads these accesses alone, no TCP, and no signals to the outside.

    Returns the version of Landlock in force, 0 if the kernel has none; paths that do not exist are left out. Needs
    `give_up_privileges`.
    """
    abi = landlock_abi()
    if abi == 0:
        return 0
    handled = Access((1 << _RIGHTS[min(abi, len(_RIGHTS)) - 1]) - 1)
    attributes = _RulesetAttributes(
        handled,
        _BIND_TCP | _CONNECT_TCP if abi >= _NETWORK_ABI else 0,
        _SCOPE_ABSTRACT_SOCKETS | _SCOPE_SIGNALS if abi >= _SCOPE_ABI else 0,
    )
    ruleset = _system_call(_CREATE_RULESET, ctypes.byref(attributes), ctypes.sizeof(attributes), 0)
    if ruleset < 0:
        return 0
    try:
        for rule in rules:
            _allow(ruleset, rule, handled)
        return abi if _system_call(_RESTRICT_SELF, ruleset, 0) == 0 else 0
    finally:
        os.close(ruleset)


def _allow(ruleset: int, rule: PathRule, handled: Access) -> None:
    with contextlib.suppress(OSError):
        descriptor = os.open(rule.path, os.O_PATH | os.O_CLOEXEC)
        try:
            access = rule.access & handled
            if not os.path.isdir(rule.path):
                access &= _OF_FILES
            beneath = _PathBeneath(access, descriptor)
            _system_call(_ADD_RULE, ruleset, _RULE_PATH_BENEATH, ctypes.byref(beneath), 0)
        finally:
            os.close(descriptor)


class AllowedPaths(IntFlag):
    """System calls that a filter leaves to a process which needs them."""

    CORES = 1 << 0  # sets the cores of any thread: a filter cannot tell later threads from other processes
    MEMORY_FILES = 1 << 1
    UNIX_SOCKETS = 1 << 2  # of streams and of packets, which send nothing without a connection
    CONNECTIONS = 1 << 3


# seccomp: classic BPF over `struct seccomp_data`.
_LOAD_WORD, _AND, _JUMP_EQUAL, _JUMP_AT_LEAST, _JUMP_ANY_BIT, _RETURN = 0x20, 0x54, 0x15, 0x35, 0x45, 0x06
_AT_NUMBER, _AT_ARCHITECTURE, _AT_FIRST_ARGUMENT = 0, 4, 16
# The halves of the second argument.
_AT_SECOND_ARGUMENT = (24, 28)
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_EPERM, _ENOENT, _ENOSYS = 1, 2, 38
_SET_MODE_FILTER, _FLAG_ALL_THREADS = 1, 1
_CLONE_THREAD = 0x00010000
_AF_UNIX, _SOCK_STREAM, _SOCK_SEQPACKET, _SOCKET_TYPES = 1, 1, 5, 0xF
# System calls of another calling convention, beyond which no number of this one lies.
_X32_BIT = 0x40000000


class _Architecture(NamedTuple):
    audit: int
    seccomp: int
    clone: int
    clone3: int
    utimensat: int
    fcntl: int
    ioctl: int
    sched_setaffinity: int
    connect: int
    made_sockets: tuple[int, int]  # socket and socketpair
    serving: tuple[int, ...]  # bind, listen, accept and accept4
    memory_files: tuple[int, ...]
    of_process: tuple[int, ...]  # calls for a process, which has to be this one
    denied: tuple[int, ...]


# pidfd_getfd, process_madvise, process_mrelease, io_uring_setup, _enter and _register, open_tree, move_mount, fsopen to
# fspick, mount_setattr, pidfd_send_signal, fchmodat2, setxattrat, removexattrat: the same numbers on all architectures
_NEW = (438, 440, 448, 425, 426, 427, 428, 429, 430, 431, 432, 433, 442, 424, 452, 463, 466)
# Of fcntl F_SETOWN and F_SETOWN_EX, of ioctl FIOSETOWN and SIOCSPGRP: the process to which the kernel sends a signal of
# choice when a descriptor is ready. TIOCSTI and TIOCLINUX: keys pressed at a terminal.
_FCNTL_DENIED = (8, 15)
_IOCTL_DENIED = (0x8901, 0x8902, 0x5412, 0x541C)
_ARCHITECTURES = {
    "x86_64": _Architecture(
        0xC000003E, 317, 56, 435, 280, 72, 16, 203, 42,
        (41, 53),
        (49, 50, 43, 288),
        (319, 447, 278),  # memfd_create, memfd_secret, vmsplice
        (62, 234, 129, 297, 302),  # kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, prlimit64
        (
            57, 58, 59, 322,  # fork, vfork, execve, execveat
            101, 310, 311, 312,  # ptrace, process_vm_readv, process_vm_writev, kcmp
            248, 249, 250, 323, 321, 298,  # add_key, request_key, keyctl, userfaultfd, bpf, perf_event_open
            165, 166, 155, 161, 272, 308, 304,  # mount, umount2, pivot_root, chroot, unshare, setns, open_by_handle_at
            175, 313, 176, 246, 320, 169,  # init_module, finit_module, delete_module, kexec_load and _file, reboot
            # What Landlock leaves: modes, owners, attributes and times of files, names of a watched folder.
            90, 91, 268, 92, 93, 94, 260,  # chmod, fchmod, fchmodat, chown, fchown, lchown, fchownat
            188, 189, 190, 197, 198, 199,  # setxattr, lsetxattr, fsetxattr, removexattr, lremovexattr, fremovexattr
            132, 235, 261, 254, 300,  # utime, utimes, futimesat, inotify_add_watch, fanotify_init
            # tkill, setpriority, sched_setparam, sched_setscheduler, sched_setattr, ioprio_set
            200, 141, 142, 144, 314, 251,
            256, 279, 29, 30, 31, 67,  # migrate_pages, move_pages, shmget, shmat, shmctl, shmdt
            64, 65, 66, 220, 68, 69, 70, 71,  # semget, semop, semctl, semtimedop, msgget, msgsnd, msgrcv, msgctl
            240, 241, 242, 243, 244, 245,  # mq_open, _unlink, _timedsend, _timedreceive, _notify, _getsetattr
            *_NEW,
        ),
    ),
    "aarch64": _Architecture(
        0xC00000B7, 277, 220, 435, 88, 25, 29, 122, 203,
        (198, 199),
        (200, 201, 202, 242),
        (279, 447, 75),  # memfd_create, memfd_secret, vmsplice
        (129, 131, 138, 240, 261),  # kill, tgkill, rt_sigqueueinfo, rt_tgsigqueueinfo, prlimit64
        (
            221, 281,  # execve, execveat
            117, 270, 271, 272,  # ptrace, process_vm_readv, process_vm_writev, kcmp
            217, 218, 219, 282, 280, 241,  # add_key, request_key, keyctl, userfaultfd, bpf, perf_event_open
            40, 39, 41, 51, 97, 268, 265,  # mount, umount2, pivot_root, chroot, unshare, setns, open_by_handle_at
            105, 273, 106, 104, 294, 142,  # init_module, finit_module, delete_module, kexec_load and _file, reboot
            # What Landlock leaves: modes, owners, attributes and times of files, names of a watched folder.
            52, 53, 55, 54,  # fchmod, fchmodat, fchown, fchownat
            5, 6, 7, 14, 15, 16,  # setxattr, lsetxattr, fsetxattr, removexattr, lremovexattr, fremovexattr
            27, 262,  # inotify_add_watch, fanotify_init
            # tkill, setpriority, sched_setparam, sched_setscheduler, sched_setattr, ioprio_set
            130, 140, 118, 119, 274, 30,
            238, 239, 194, 196, 195, 197,  # migrate_pages, move_pages, shmget, shmat, shmctl, shmdt
            190, 193, 191, 192, 186, 189, 188, 187,  # semget, semop, semctl, semtimedop, msgget, msgsnd, msgrcv, msgctl
            180, 181, 182, 183, 184, 185,  # mq_open, _unlink, _timedsend, _timedreceive, _notify, _getsetattr
            *_NEW,
        ),
    ),
}  # fmt: skip


def filter_system_calls(allowed: AllowedPaths = AllowedPaths(0)) -> bool:  # noqa: B008 - a constant
    """Refuse all threads of this process the system calls that reach other processes, the network or the kernel.

    Nor do they get memory that no limit counts. A later filter refuses more, never less. Returns False if the kernel or
    this architecture does not support it. Needs `give_up_privileges`.
    """
    architecture = _ARCHITECTURES.get(platform.machine())
    if sys.platform != "linux" or architecture is None:
        return False
    code = _program(architecture, os.getpid(), allowed)
    program = _Program(len(code) // 8, code)
    return _system_call(architecture.seccomp, _SET_MODE_FILTER, _FLAG_ALL_THREADS, ctypes.byref(program)) == 0


def _program(architecture: _Architecture, process: int, allowed: AllowedPaths) -> bytes:
    """Return the filter of a process.

    A fork is a clone without the flag of threads; clone3 is absent, because it has its flags in memory. Times are set
    by a descriptor, without a path. A connection of a process that makes sockets fails as if its peer was not there.
    """
    deny, missing, absent = ((_RETURN, 0, 0, _ERRNO | error) for error in (_EPERM, _ENOENT, _ENOSYS))
    allow = (_RETURN, 0, 0, _ALLOW)
    code = [
        (_LOAD_WORD, 0, 0, _AT_ARCHITECTURE),
        (_JUMP_EQUAL, 1, 0, architecture.audit),
        deny,
        (_LOAD_WORD, 0, 0, _AT_NUMBER),
        (_JUMP_AT_LEAST, 0, 1, _X32_BIT),
        deny,
        (_JUMP_EQUAL, 0, 1, architecture.clone3),
        absent,
        (_JUMP_EQUAL, 0, 4, architecture.clone),
        (_LOAD_WORD, 0, 0, _AT_FIRST_ARGUMENT),
        (_JUMP_ANY_BIT, 1, 0, _CLONE_THREAD),
        deny,
        allow,
        (_JUMP_EQUAL, 0, 6, architecture.utimensat),
        (_LOAD_WORD, 0, 0, _AT_SECOND_ARGUMENT[0]),
        (_JUMP_EQUAL, 0, 3, 0),
        (_LOAD_WORD, 0, 0, _AT_SECOND_ARGUMENT[1]),
        (_JUMP_EQUAL, 0, 1, 0),
        allow,
        deny,
    ]
    for number, commands in ((architecture.fcntl, _FCNTL_DENIED), (architecture.ioctl, _IOCTL_DENIED)):
        code += [(_JUMP_EQUAL, 0, 2 * len(commands) + 2, number), (_LOAD_WORD, 0, 0, _AT_SECOND_ARGUMENT[0])]
        for command in commands:
            code += [(_JUMP_EQUAL, 0, 1, command), deny]
        code.append(allow)
    own = () if AllowedPaths.CORES in allowed else (architecture.sched_setaffinity,)
    for number in (*architecture.of_process, *own):
        code += [
            (_JUMP_EQUAL, 0, 5, number),
            (_LOAD_WORD, 0, 0, _AT_FIRST_ARGUMENT),
            (_JUMP_EQUAL, 2, 0, process),
            (_JUMP_EQUAL, 1, 0, 0),
            deny,
            allow,
        ]
    denied = architecture.denied
    if AllowedPaths.MEMORY_FILES not in allowed:
        denied += architecture.memory_files
    if AllowedPaths.UNIX_SOCKETS in allowed:
        for number in architecture.made_sockets:
            code += [
                (_JUMP_EQUAL, 0, 8, number),
                (_LOAD_WORD, 0, 0, _AT_FIRST_ARGUMENT),
                (_JUMP_EQUAL, 0, 4, _AF_UNIX),
                (_LOAD_WORD, 0, 0, _AT_SECOND_ARGUMENT[0]),
                (_AND, 0, 0, _SOCKET_TYPES),
                (_JUMP_EQUAL, 2, 0, _SOCK_STREAM),
                (_JUMP_EQUAL, 1, 0, _SOCK_SEQPACKET),
                deny,
                allow,
            ]
    else:
        denied += (*architecture.made_sockets, *architecture.serving)
    if AllowedPaths.CONNECTIONS not in allowed:
        code += [(_JUMP_EQUAL, 0, 1, architecture.connect), missing if AllowedPaths.UNIX_SOCKETS in allowed else deny]
    for number in denied:
        code += [(_JUMP_EQUAL, 0, 1, number), deny]
    return b"".join(struct.pack("=HBBI", *step) for step in [*code, allow])


def _prctl(option: int, value: int) -> bool:
    if sys.platform != "linux":
        return False
    return int(_libc().prctl(option, ctypes.c_ulong(value), *[ctypes.c_ulong(0)] * 3)) == 0


def _system_call(number: int, *arguments: object) -> int:
    """Make a system call; return -1 if it fails."""
    libc = _libc()
    libc.syscall.restype = ctypes.c_long
    wide = [ctypes.c_long(each) if isinstance(each, int) else each for each in arguments]
    return int(libc.syscall(ctypes.c_long(number), *wide))


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)
