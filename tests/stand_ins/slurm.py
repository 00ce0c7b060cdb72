"""A real Slurm on this machine for tests: munge, slurmctld and nodes with pretended GPUs.

    python tests/stand_ins/slurm.py start FOLDER [--constrain]
    export PATH=FOLDER/bin:$PATH        # sbatch, squeue and the others, for this cluster
    python tests/stand_ins/slurm.py stop FOLDER

Needs root and Debian's packages munge, slurmctld, slurmd and slurm-client. Everything is in FOLDER
(a short path, since sockets are in it) and on ports of 127.0.0.1; nothing of /etc or /run is read
or written. `start` does nothing where the cluster runs, `stop` nothing where it does not.

The commands in FOLDER/bin name this cluster's configuration. An exported SLURM_CONF would not do:
Snakemake's job step starts `srun` without it.
"""

import argparse
import contextlib
import json
import os
import shutil
import signal
import socket
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROGRAMS = ("munged", "slurmctld", "slurmd")
CLIENTS = ("sbatch", "srun", "squeue", "scancel", "scontrol", "sinfo", "sacct")
CGROUPS = Path("/sys/fs/cgroup")
SBIN = "/usr/sbin:/sbin"
START_S, STOP_S = 30.0, 8.0

SLURM_CONF = """\
ClusterName={name}
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={port}
SlurmUser=root
AuthType=auth/munge
# A lost node's jobs are started again once their credentials have expired: soon.
AuthInfo=socket={folder}/munge.socket,cred_expire=5
CommunicationParameters=NoCtldInAddrAny,NoInAddrAny
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool-%n
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd-%n.pid
SlurmctldLogFile={folder}/log/slurmctld.log
SlurmdLogFile={folder}/log/slurmd-%n.log
JobCompType=jobcomp/filetxt
JobCompLoc={folder}/log/jobs.txt
AccountingStorageType=accounting_storage/none
JobAcctGatherType=jobacct_gather/none
ProctrackType=proctrack/{proctrack}
TaskPlugin=task/{task}
MpiDefault=none
SwitchType=switch/none
SelectType=select/cons_tres
# jobs are spread over the nodes
SelectTypeParameters=CR_Core,CR_LLN
SchedulerParameters=batch_sched_delay=0,sched_min_interval=200000
GresTypes=gpu
ReturnToService=2
MinJobAge=300
KillWait=5
MailProg=/bin/true
# more than the machine has: jobs here mostly wait
SlurmdParameters=config_overrides
{nodes}
PartitionName=cpu Nodes=ALL Default=YES MaxTime=INFINITE State=UP
PartitionName=gpu Nodes=ALL MaxTime=INFINITE State=UP
"""
NODE = (
    "NodeName={node} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=128 "
    "RealMemory=1000000 Gres=gpu:{gpus} State=UNKNOWN"
)
CGROUP_CONF = """\
CgroupPlugin=cgroup/v1
CgroupMountpoint=/sys/fs/cgroup
CgroupAutomount=no
ConstrainDevices=yes
"""


def missing(constrain: bool = False) -> str | None:
    """Why no cluster can be started here, or None."""
    if os.geteuid() != 0:
        return "Slurm's daemons are started as root"
    path = f"{os.environ.get('PATH', '')}:{SBIN}"
    lacking = [name for name in (*PROGRAMS, *CLIENTS) if not shutil.which(name, path=path)]
    if lacking:
        return f"{', '.join(lacking)} missing; apt install munge slurmctld slurmd slurm-client"
    if constrain and not (CGROUPS / "devices").is_dir():
        return "devices can be constrained only with version 1 of the devices control group"
    return None


def free_ports(number: int) -> list[int]:
    with contextlib.ExitStack() as stack:
        probes = [stack.enter_context(socket.socket()) for _ in range(number)]
        for probe in probes:
            probe.bind(("127.0.0.1", 0))
        return [probe.getsockname()[1] for probe in probes]


class Daemons:
    """A cluster's processes. The daemons' numbers are in a file, for whoever stops them.

    Args:
        folder: the cluster's; it is part of each daemon's command line.
    """

    def __init__(self, folder: Path):
        self.folder = folder
        self._file = folder / "pids.json"

    def begin(self, cluster: str) -> None:
        """Forget earlier ones; those to come belong to the cluster of this name."""
        self._record({"cluster": cluster, "pids": []})

    def start(self, command: list[str]) -> None:
        program = shutil.which(command[0], path=f"{os.environ['PATH']}:{SBIN}")
        assert program is not None
        with (self.folder / "log/out.log").open("ab") as log:
            started = subprocess.Popen(
                [program, *command[1:]], stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                start_new_session=True,
            )  # fmt: skip
        known = self._recorded()
        self._record(known | {"pids": [*known["pids"], started.pid]})

    def pids(self) -> list[int]:
        return self._recorded()["pids"]

    def alive(self) -> bool:
        pids = self.pids()
        return bool(pids) and all(self._is_daemon(pid) for pid in pids)

    def end(self) -> None:
        """End them, the last one first, and then what outlived the cluster's jobs."""
        for pid in reversed(self.pids()):
            for number, seconds in ((signal.SIGTERM, 5.0), (signal.SIGKILL, 2.0)):
                until = time.monotonic() + seconds
                if self._is_daemon(pid):
                    os.kill(pid, number)
                while self._is_daemon(pid) and time.monotonic() < until:
                    time.sleep(0.05)
        for pid in self._of_jobs():
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)

    def _of_jobs(self) -> list[int]:
        mark = f"SLURM_CLUSTER_NAME={self._recorded()['cluster']}\0".encode()
        found = []
        for path in Path("/proc").glob("[0-9]*/environ"):
            with contextlib.suppress(OSError):
                if mark in path.read_bytes():
                    found.append(int(path.parent.name))
        return [pid for pid in found if pid != os.getpid()]

    def _is_daemon(self, pid: int) -> bool:
        """Whether a process is one of this cluster's daemons, not another with its old number."""
        with contextlib.suppress(OSError):
            words = Path(f"/proc/{pid}/cmdline").read_bytes().decode(errors="replace")
            return str(self.folder) in words
        return False

    def _recorded(self) -> dict[str, Any]:
        try:
            return json.loads(self._file.read_text())
        except (OSError, ValueError):
            return {"cluster": "", "pids": []}

    def _record(self, known: dict[str, Any]) -> None:
        self._file.write_text(json.dumps(known))


class Cluster:
    """A cluster in a folder: nodes gpu1, gpu2, ... with the same number of GPUs each.

    Args:
        constrain: jobs see only their own GPUs, and each sees its first one as number 0.
    """

    def __init__(self, folder: Path, nodes: int = 2, gpus: int = 7, constrain: bool = False):
        self.folder = folder.absolute()
        self.nodes = [f"gpu{i + 1}" for i in range(nodes)]
        self.gpus = gpus
        self.constrain = constrain
        self.bin = self.folder / "bin"
        self.daemons = Daemons(self.folder)

    # ---- start ----

    def start(self) -> None:
        """Start it and wait until all nodes are idle.

        Raises:
            RuntimeError: it cannot be started here; says why.
        """
        if why := missing(self.constrain):
            raise RuntimeError(why)
        if self.daemons.alive():
            return
        self.folder.mkdir(parents=True, exist_ok=True)
        for name in (
            "state",
            "log",
            "bin",
            "dev",
            "tmp",
            "munge",
            *(f"spool-{n}" for n in self.nodes),
        ):
            (self.folder / name).mkdir(exist_ok=True)
        self._configure()
        try:
            self._start()
            self._wait()
        except BaseException:
            self.stop()
            raise

    def _configure(self) -> None:
        name, host = f"tracemill{os.getpid()}", socket.gethostname()
        port, *ports = free_ports(1 + len(self.nodes))
        nodes = [
            NODE.format(node=node, host=host, port=own, gpus=self.gpus)
            for node, own in zip(self.nodes, ports, strict=True)
        ]
        plugins = ("cgroup", "cgroup") if self.constrain else ("linuxproc", "none")
        text = SLURM_CONF.format(
            name=name, host=host, port=port, folder=self.folder, nodes="\n".join(nodes),
            proctrack=plugins[0], task=plugins[1],
        )  # fmt: skip
        (self.folder / "slurm.conf").write_text(text)
        (self.folder / "cgroup.conf").write_text(CGROUP_CONF)
        devices = [self.folder / f"dev/fakegpu{i}" for i in range(self.gpus)]
        for i, device in enumerate(devices):
            # a number that no driver has: a job that may open it is told that there is no device,
            # one that may not that it is not permitted
            os.mknod(device, stat.S_IFCHR | 0o666, os.makedev(240, i))
        gres = f"Name=gpu File={self.folder}/dev/fakegpu[0-{self.gpus - 1}] Flags=nvidia_gpu_env"
        (self.folder / "gres.conf").write_text(f"AutoDetect=off\n{gres}\n")
        for client in CLIENTS:
            script = self.bin / client
            program = shutil.which(client)
            script.write_text(
                f'#!/bin/sh\nSLURM_CONF={self.folder}/slurm.conf exec {program} "$@"\n'
            )
            script.chmod(0o755)

    def _start(self) -> None:
        key = self.folder / "munge/key"
        key.write_bytes(os.urandom(128))
        key.chmod(0o400)
        munge = ["munged", "--foreground", "--force", "--num-threads=2", f"--key-file={key}"]
        munge += [f"--socket={self.folder}/munge.socket", f"--pid-file={self.folder}/munge/pid"]
        munge += [f"--log-file={self.folder}/log/munged.log", f"--seed-file={self.folder}/munge/s"]
        conf = str(self.folder / "slurm.conf")
        commands = [["slurmctld", "-D", "-f", conf]]
        commands += [["slurmd", "-D", "-f", conf, "-N", node] for node in self.nodes]
        self.daemons.begin(f"tracemill{os.getpid()}")
        self.daemons.start(munge)
        self._until((self.folder / "munge.socket").exists, "munged has no socket")
        for command in commands:
            self.daemons.start(command)

    def _wait(self) -> None:
        def idle() -> bool:
            states = self.ask("sinfo", "-h", "-N", "-p", "gpu", "-o", "%T").split()
            return states == ["idle"] * len(self.nodes)

        self._until(idle, "the nodes do not become idle")

    def _until(self, done: Callable[[], bool], what: str) -> None:
        until = time.monotonic() + START_S
        while not done():
            if time.monotonic() > until:
                logs = "".join(
                    f"\n{path.name}: {path.read_text(errors='replace')[-1500:]}"
                    for path in sorted((self.folder / "log").glob("*.log"))
                )
                raise RuntimeError(f"{what} within {START_S:.0f} s{logs}")
            time.sleep(0.1)

    # ---- stop ----

    def stop(self) -> None:
        """End all jobs and daemons and remove the folder."""
        if self.daemons.pids():
            with contextlib.suppress(subprocess.SubprocessError, OSError):
                self.ask("scancel", "--user=root", timeout=10)
                until = time.monotonic() + STOP_S
                while self.ask("squeue", "-h", timeout=10) and time.monotonic() < until:
                    time.sleep(0.2)
        # the nodes first and munge last, since they talk to each other while they end
        self.daemons.end()
        for node in self.nodes:
            for top in CGROUPS.glob(f"*/slurm_{node}"):
                for path in (*sorted(top.rglob("*/"), reverse=True), top):
                    with contextlib.suppress(OSError):
                        path.rmdir()
        shutil.rmtree(self.folder, ignore_errors=True)

    # ---- while it runs ----

    def ask(self, program: str, *words: str, timeout: float = 30.0) -> str:
        """What a client program answers.

        Raises:
            subprocess.SubprocessError: it failed.
        """
        done = subprocess.run(
            [str(self.bin / program), *words], capture_output=True, text=True, check=True,
            timeout=timeout,
        )  # fmt: skip
        return done.stdout.strip()

    def ended(self) -> list[dict[str, str]]:
        """The jobs that are over, as Slurm's log of them has it: JobId, JobState, NodeList, ..."""
        path = self.folder / "log/jobs.txt"
        lines = path.read_text().splitlines() if path.exists() else []
        return [dict(w.split("=", 1) for w in line.split() if "=" in w) for line in lines]


def main(argv: list[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n", 1)[0])
    parser.add_argument("what", choices=("start", "stop"))
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=2)
    parser.add_argument("--gpus", type=int, default=7, help="of each node")
    parser.add_argument("--constrain", action="store_true", help="jobs see only their own GPUs")
    args = parser.parse_args(argv)
    cluster = Cluster(args.folder, args.nodes, args.gpus, args.constrain)
    if args.what == "stop":
        cluster.stop()
        return 0
    try:
        cluster.start()
    except RuntimeError as error:
        print(f"no Slurm: {error}", file=sys.stderr)
        return 1
    print(f"export PATH={cluster.bin}:$PATH")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
