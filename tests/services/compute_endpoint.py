"""A real endpoint of Globus Compute, without its command line: interchange, engine and workers.

    python compute_endpoint.py FOLDER AMQP ENDPOINT     # until it is killed

The command line would log in and ask the hosted service for the queues; here they come from the
stand-in. A worker that dies is replaced, and its task tried once more, as the template says.
"""

from __future__ import annotations

import logging
import os
import sys
from pathlib import Path

from compute_service import credentials
from globus_compute_endpoint.endpoint.config import UserEndpointConfig
from globus_compute_endpoint.endpoint.interchange import EndpointInterchange
from globus_compute_endpoint.engines import GlobusComputeEngine
from parsl.providers import LocalProvider

WORKERS = 2


def main(folder: Path, amqp: str, endpoint: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    logging.basicConfig(level=logging.INFO, filename=folder / "log")
    engine = GlobusComputeEngine(
        address="127.0.0.1",
        max_workers_per_node=WORKERS,
        cores_per_worker=0.001,
        heartbeat_period=1,
        heartbeat_threshold=5,
        max_retries_on_system_failure=1,
        provider=LocalProvider(init_blocks=1, min_blocks=1, max_blocks=1),
    )
    EndpointInterchange(
        config=UserEndpointConfig(engine=engine, heartbeat_period=5),
        cred_fn=lambda: {"amqp_creds": credentials(amqp, endpoint)},
        endpoint_id=endpoint,
        endpoint_dir=str(folder),
        logdir=str(folder),
        ep_info={},
        parent_pid=os.getppid(),
    ).start()


if __name__ == "__main__":
    main(Path(sys.argv[1]).absolute(), *sys.argv[2:])
