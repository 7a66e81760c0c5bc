"""A node: serves a folder to those who have the key, until its standard input ends.

Arguments: folder, file with the key. Prints its address.
"""

from __future__ import annotations

import sys

from ckptflow.tiers.peer_server import PeerServer
from ckptflow.tiers.posix import PosixTier
from ckptflow.tiers.storekey import StoreKey

folder, key_file = sys.argv[1:]
with PeerServer(PosixTier(folder), StoreKey.from_file(key_file)) as server:
    sys.stdout.write(f"{server.address}\n")
    sys.stdout.flush()
    sys.stdin.read()
