"""What a private Slurm cluster is like, and the slurm.conf that says so to its daemons.

Intervals are short: what takes a real cluster minutes to notice takes this one seconds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True, kw_only=True)
class Settings:
    """What a cluster is like.

    Attributes:
        nodes: how many nodes; they are called node1, node2, and so on.
        cpus: of each node, which may be more than the host has.
        memory_mib: of each node.
        proctrack: how Slurm finds the processes of a step, ``linuxproc`` or ``cgroup``. It
            decides who gets signals: all of them, or the step's first process only.
        kill_wait_s: between SIGTERM and SIGKILL.
        grace_s: what a preempted job of the partition ``preemptible`` has before SIGTERM.
        node_timeout_s: when a node that does not answer is down.
        requeue_wait_s: how long a requeued job waits.
        partitions: more partitions than debug, preemptible and urgent, with their nodes.
    """

    nodes: int = 4
    cpus: int = 2
    memory_mib: int = 4000
    proctrack: str = "linuxproc"
    kill_wait_s: int = 5
    grace_s: int = 10
    node_timeout_s: int = 10
    requeue_wait_s: int = 5
    partitions: Mapping[str, Sequence[int]] | None = None


def slurm_conf(
    settings: Settings,
    names: Sequence[str],
    *,
    folder: Path,
    munge: Path,
    spool: Path,
    first_port: int,
) -> str:
    """Return the text of a slurm.conf.

    Args:
        settings: what the cluster is like.
        names: of its nodes.
        folder: where its daemons write.
        munge: the socket of its munged.
        spool: where slurmd keeps jobs, and sockets of their steps: no long path.
        first_port: of its controller; those of its nodes follow.
    """
    size = f"CPUs={settings.cpus} RealMemory={settings.memory_mib} State=UNKNOWN"
    machines = [
        f"NodeName={name} NodeHostname={name} NodeAddr=127.0.0.1 Port={port} {size}"
        for port, name in enumerate(names, start=first_port + 1)
    ]
    limits = "MaxTime=60 DefaultTime=10 State=UP OverSubscribe=NO"
    partitions = [
        f"PartitionName={name} Nodes={','.join(nodes)} {limits} {options}"
        for name, nodes, options in [
            ("debug", names, "Default=YES PriorityTier=10 PreemptMode=OFF"),
            (
                "preemptible",
                names,
                f"PriorityTier=1 PreemptMode=REQUEUE GraceTime={settings.grace_s}",
            ),
            ("urgent", names, "PriorityTier=20 PreemptMode=OFF"),
            *(
                (
                    name,
                    [names[number - 1] for number in numbers],
                    "PriorityTier=10 PreemptMode=OFF",
                )
                for name, numbers in (settings.partitions or {}).items()
            ),
        ]
    ]
    return "\n".join(
        [
            _CONF.format(
                port=first_port,
                munge=munge,
                spool=spool,
                folder=folder,
                proctrack=settings.proctrack,
                node_timeout_s=settings.node_timeout_s,
                kill_wait_s=settings.kill_wait_s,
                requeue_wait_s=settings.requeue_wait_s,
            ),
            *machines,
            *partitions,
            "",
        ]
    )


# cred_expire is also how long a requeued job waits. With preempt_send_user_signal a preempted
# job gets its --signal at once, and SIGTERM after GraceTime. config_overrides: nodes may have
# more processors than the host.
_CONF = """\
ClusterName=private
SlurmctldHost=head(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
AuthInfo=socket={munge},cred_expire={requeue_wait_s}
CredType=cred/munge
StateSaveLocation={folder}/state
SlurmdSpoolDir={spool}/%n
SlurmctldPidFile={folder}/machines/slurmctld.pid
SlurmdPidFile={folder}/machines/slurmd.%n.pid
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/%n
SlurmctldParameters=preempt_send_user_signal
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/none
AccountingStorageType=accounting_storage/none
MpiDefault=none
SwitchType=switch/none
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU_Memory
DefMemPerCPU=100
SchedulerType=sched/backfill
SchedulerParameters=sched_interval=2,bf_interval=2,batch_sched_delay=1
PriorityType=priority/basic
SlurmdTimeout={node_timeout_s}
SlurmctldTimeout=10
MessageTimeout=5
InactiveLimit=0
KillWait={kill_wait_s}
OverTimeLimit=0
CompleteWait=0
MinJobAge=600
ReturnToService=2
JobRequeue=1
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
RequeueExit=99"""
