#!/usr/bin/env python3
"""Writes a registry hive of Windows that contains only its root key, to standard output.

    packaging/hive.py NAME      SOURCE_DATE_EPOCH is its time

A base layer of a Windows image needs five hives. Windows 11 23H2 and later are reported to refuse empty files in their place
(microsoft/windows-host-process-containers-base-image, issue 14). The format is that of Windows' regf files, version 1.3: a header of 4 KiB, then one bin of 4 KiB with
the root key, the security descriptor of that key, and unused space.
"""

import os
import struct
import sys

PAGE = 4096
NONE = 0xFFFF_FFFF
# The number of 100 ns steps in a second, and of seconds from 1601, when the time of Windows begins, to 1970.
STEPS, TO_1970 = 10_000_000, 11_644_473_600
# The root of a hive, which cannot be deleted, with a name of one byte per character.
ROOT_FLAGS = 0x04 | 0x08 | 0x20
FULL, READ = 0xF003F, 0x20019
# Subkeys inherit an entry.
INHERITED = 2


def sid(*parts):
    """A security identifier of the NT authority."""
    return struct.pack("<BB6s", 1, len(parts), b"\0\0\0\0\0\x05") + struct.pack(f"<{len(parts)}I", *parts)


ADMINISTRATORS, SYSTEM, USERS = sid(32, 544), sid(18), sid(32, 545)


def descriptor():
    """Administrators own the key. They and the system may do everything, users may read."""
    entries = b"".join(
        struct.pack("<BBHI", 0, INHERITED, 8 + len(account), access) + account
        for account, access in [(SYSTEM, FULL), (ADMINISTRATORS, FULL), (USERS, READ)]
    )
    acl = struct.pack("<BxHHxx", 2, 8 + len(entries), 3) + entries
    owner = 20 + len(acl)
    # The descriptor contains its parts (0x8000), and a list of entries (4).
    header = struct.pack("<BxHIIII", 1, 0x8004, owner, owner + len(ADMINISTRATORS), 0, 20)
    return header + acl + ADMINISTRATORS + SYSTEM


def cell(content):
    """A cell in use: its negative size, its content, and bytes up to a multiple of 8."""
    size = (4 + len(content) + 7) // 8 * 8
    return struct.pack("<i", -size) + content.ljust(size - 4, b"\0")


def hive(name, seconds):
    time = (seconds + TO_1970) * STEPS
    # Offsets count from the start of the bin, whose header has 32 bytes.
    root = 32
    security = root + len(cell(bytes(76 + len(name))))
    key = struct.pack("<2sHQIIIIIIIIIIIIIIIHH", b"nk", ROOT_FLAGS, time, 0, NONE, 0, 0, NONE, NONE, 0, NONE, security, NONE, 0, 0, 0, 0, 0, len(name), 0)
    rights = descriptor()
    shared = struct.pack("<2sHIIII", b"sk", 0, security, security, 1, len(rights)) + rights
    used = struct.pack("<4sIIQQI", b"hbin", 0, PAGE, 0, time, 0) + cell(key + name) + cell(shared)
    page = (used + struct.pack("<i", PAGE - len(used))).ljust(PAGE, b"\0")
    header = struct.pack("<4sIIQIIIIIII", b"regf", 1, 1, time, 1, 3, 0, 1, root, PAGE, 1).ljust(508, b"\0")
    checksum = 0
    for (word,) in struct.iter_unpack("<I", header):
        checksum ^= word
    # Two values have another meaning.
    checksum = {0: 1, NONE: NONE - 1}.get(checksum, checksum)
    return (header + struct.pack("<I", checksum)).ljust(PAGE, b"\0") + page


if len(sys.argv) != 2:
    sys.exit("usage: packaging/hive.py NAME")
sys.stdout.buffer.write(hive(sys.argv[1].encode("ascii"), int(os.environ.get("SOURCE_DATE_EPOCH", 0))))
