"""A throw-away Slurm cluster on one machine: several virtual nodes, fake GPUs, accounting. Needs root, no systemd.

usage: python tests/cluster/sandbox.py start FOLDER [--nodes 3] [--gpus 2] [--no-accounting]
       python tests/cluster/sandbox.py stop FOLDER
FOLDER must be empty at the start: old state leaves nodes drained.

One sandbox runs at a time, because its configuration has to be at /etc/slurm: the link /etc/slurm/slurm.conf is the
claim. A machine with a Slurm of its own is left alone. A sandbox that belongs to a process ends when that process ends,
however it ends.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

PACKAGES = "slurm-wlm slurm-client slurmdbd slurm-wlm-mysql-plugin munge mariadb-server"
PROGRAMS = ("slurmctld", "slurmd", "slurmdbd", "munged", "mariadbd", "setpriv")
ETC = Path("/etc/slurm")  # SLURM_CONF does not reach the inner srun of a job: the files must be here
FILES = ("slurm.conf", "slurmdbd.conf", "cgroup.conf", "gres.conf")
DAEMONS = ("slurmctld", "slurmd", "slurmdbd")
OWNER = "owner"  # the file that makes a folder a sandbox; it holds the process that the sandbox belongs to
UNOWNED = "nobody: runs until it is stopped"
SLOW_S = 180  # a busy machine needs long to start a daemon

SLURM_CONF = """\
ClusterName={cluster}
SlurmctldHost={host}(127.0.0.1)
SlurmUser=root
SlurmdUser=root
AuthType=auth/munge
CryptoType=crypto/munge
MpiDefault=none
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
JobAcctGatherType=jobacct_gather/linux
JobAcctGatherFrequency=2
SelectType=select/cons_tres
SelectTypeParameters=CR_Core_Memory
PreemptType=preempt/partition_prio
PreemptMode=REQUEUE
SchedulerType=sched/backfill
ReturnToService=2
SlurmdParameters=config_overrides
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool.%n
SlurmctldPidFile={folder}/pids/slurmctld
SlurmdPidFile={folder}/pids/slurmd.%n
SlurmctldLogFile={folder}/log/slurmctld
SlurmdLogFile={folder}/log/slurmd.%n
SlurmctldPort={controller_port}
SlurmctldTimeout=300
SlurmdTimeout=300
MessageTimeout=60
InactiveLimit=0
MinJobAge=300
KillWait=60
GresTypes=gpu
{accounting}
{nodes}
PartitionName=main Nodes=ALL Default=YES MaxTime=INFINITE DefMemPerCPU=500 PriorityTier=10 PreemptMode=OFF
PartitionName=scavenge Nodes=ALL MaxTime=INFINITE DefMemPerCPU=500 PriorityTier=1 PreemptMode=REQUEUE GraceTime=60
"""
NODE = (
    "NodeName=n{index} NodeHostname={host} NodeAddr=127.0.0.1 Port={port} CPUs=4 RealMemory=8000 {gres} State=UNKNOWN"
)
ACCOUNTING = """\
AccountingStorageType=accounting_storage/slurmdbd
AccountingStorageHost=127.0.0.1
AccountingStoragePort={accounting_port}
AccountingStorageTRES=gres/gpu
AccountingStorageEnforce=associations
"""
SLURMDBD_CONF = """\
AuthType=auth/munge
DbdHost=localhost
DbdAddr=127.0.0.1
DbdPort={accounting_port}
SlurmUser=root
StorageType=accounting_storage/mysql
StorageHost=127.0.0.1
StoragePort={database_port}
StorageUser=slurm
StoragePass=toy
StorageLoc=slurm_acct_db
PidFile={folder}/pids/slurmdbd
LogFile={folder}/log/slurmdbd
"""


def missing() -> str | None:
    """Why no sandbox can be started on this machine, or None."""
    if os.geteuid() != 0:
        return "a throw-away Slurm needs root"
    absent = [name for name in PROGRAMS if shutil.which(name) is None]
    if absent:
        return f"no {', '.join(absent)} here; on Debian: apt-get install --no-install-recommends {PACKAGES}"
    if os.environ.get("SLURM_CONF"):
        return f"SLURM_CONF names a cluster of this machine: {os.environ['SLURM_CONF']}"
    if running() is not None:
        return None  # another sandbox: it can be waited for
    theirs = [name for name in FILES if os.path.lexists(ETC / name)]
    if theirs:
        return f"{ETC / theirs[0]} belongs to another cluster"
    daemons = [name for name in DAEMONS if processes(name)]
    return f"a {daemons[0]} that is not of a sandbox runs on this machine" if daemons else None


def running() -> Path | None:
    """The folder of the sandbox that has claimed this machine, or None."""
    try:
        folder = Path(os.readlink(ETC / "slurm.conf")).parent
    except OSError:
        return None
    return folder if (folder / OWNER).is_file() else None


def processes(name: str) -> list[int]:
    """The processes of this name."""
    found = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdigit():
            try:
                if (folder / "comm").read_text().strip() == name:
                    found.append(int(folder.name))
            except OSError:
                continue
    return found


def left_over(folder: Path) -> list[int]:
    """The processes of the sandbox's jobs that have outlived it: their environment names its cluster."""
    mark, found = f"SLURM_CLUSTER_NAME={cluster_name(folder)}".encode(), []
    for process in Path("/proc").iterdir():
        if process.name.isdigit():
            try:
                if mark in (process / "environ").read_bytes().split(b"\0"):
                    found.append(int(process.name))
            except OSError:
                continue
    return found


def cluster_name(folder: Path) -> str:
    """A name that no other sandbox has."""
    return "toy" + hashlib.sha256(str(folder).encode()).hexdigest()[:8]


def abandoned(folder: Path) -> bool:
    """Whether the process that the sandbox in `folder` belongs to has ended."""
    owner = (folder / OWNER).read_text()
    return owner.isdigit() and not Path("/proc", owner).exists()


def claim(folder: Path, patience_s: float) -> None:
    """Makes this sandbox the machine's one; waits for another, and ends one whose owner has gone.

    Raises RuntimeError if another sandbox is still there after `patience_s` seconds.
    """
    end = time.monotonic() + patience_s
    ETC.mkdir(exist_ok=True)
    while True:
        try:
            (ETC / "slurm.conf").symlink_to(folder / "slurm.conf")
            return
        except FileExistsError:
            other = running()
        if other is not None and abandoned(other):
            stop(other)
        elif time.monotonic() > end:
            raise RuntimeError(f"another sandbox runs in {other}; end it: python {__file__} stop {other}")
        time.sleep(1)


def watch(folder: Path) -> None:
    """Starts a process that stops the sandbox and removes its folder when the sandbox's owner ends."""
    command = [sys.executable, str(Path(__file__).resolve()), "watch", str(folder)]
    quiet = subprocess.DEVNULL
    subprocess.Popen(command, stdin=quiet, stdout=quiet, stderr=quiet, start_new_session=True)


def free_ports(count: int) -> list[int]:
    sockets = [socket.socket() for _ in range(count)]
    try:
        for one in sockets:
            one.bind(("127.0.0.1", 0))
        return [one.getsockname()[1] for one in sockets]
    finally:
        for one in sockets:
            one.close()


def run(*command: str, check: bool = True, seconds: float = SLOW_S) -> str:
    result = subprocess.run(command, capture_output=True, text=True, timeout=seconds)
    if check and result.returncode != 0:
        raise RuntimeError(f"{' '.join(command)}: {result.stderr or result.stdout}")
    return result.stdout


def wait_for(what: str, ready: Callable[[], bool], seconds: float = SLOW_S) -> None:
    end = time.monotonic() + seconds
    while not ready():
        if time.monotonic() > end:
            raise RuntimeError(f"{what} was not there within {seconds:.0f} s")
        time.sleep(0.1)


def succeeds(*command: str) -> bool:
    return subprocess.run(command, capture_output=True, timeout=60).returncode == 0


def start(
    folder: Path,
    nodes: int = 3,
    gpus: int = 2,
    accounting: bool = True,
    owner: int | None = None,
    patience_s: float = 0,
) -> None:
    """Starts the daemons and returns when the nodes are idle; leaves nothing running if that fails.

    owner: the process that the sandbox belongs to; when that ends, the sandbox does. Without it, `stop` ends it.
    patience_s: how long to wait for another sandbox on this machine, in seconds.
    """
    for name in ("state", "log", "pids", "munge", "db", "dbrun"):
        (folder / name).mkdir(parents=True)
    folder.chmod(0o755)
    (folder / OWNER).write_text(str(owner) if owner else UNOWNED)
    claim(folder, patience_s)
    try:
        if owner:
            watch(folder)
        start_munge(folder)
        ports = free_ports(3 + nodes)
        write_configuration(folder, nodes, gpus, accounting, ports)
        if accounting:
            start_accounting(folder, ports[2])
        run("slurmctld")
        for index in range(nodes):
            (folder / f"spool.n{index}").mkdir()
            run("slurmd", "-N", f"n{index}")
        wait_for(
            "the cluster", lambda: run("sinfo", "-h", "-N", "-o", "%T", check=False).split().count("idle") >= nodes
        )
    except BaseException:
        stop(folder)
        raise


def idle_nodes() -> int:
    return len(set(run("sinfo", "-h", "-N", "--states=idle", "-o", "%N", check=False).split()))


def start_munge(folder: Path) -> None:
    if succeeds("munge", "-n"):
        return
    key = folder / "munge/key"
    key.write_bytes(secrets.token_bytes(1024))
    key.chmod(0o400)
    Path("/run/munge").mkdir(exist_ok=True)
    for path in (folder / "munge", key, Path("/run/munge")):
        shutil.chown(path, "munge", "munge")
    (folder / "munge").chmod(0o700)
    Path("/run/munge").chmod(0o755)
    options = [f"--key-file={key}", f"--log-file={folder}/munge/log", f"--seed-file={folder}/munge/seed"]
    options += ["--socket=/run/munge/munge.socket.2", "--pid-file=/run/munge/munged.pid"]
    run("setpriv", "--reuid=munge", "--regid=munge", "--clear-groups", "munged", *options)
    wait_for("munge", lambda: succeeds("munge", "-n"))
    shutil.copy("/run/munge/munged.pid", folder / "pids/munged")


def write_configuration(folder: Path, nodes: int, gpus: int, accounting: bool, ports: list[int]) -> None:
    """ports: of controller, accounting, its database, and of each node."""
    for index in range(gpus):
        device = folder / f"gpu{index}"
        os.mknod(device, 0o20666, os.makedev(1, 3))
    last, host = nodes - 1, socket.gethostname().split(".")[0]
    gres = f"Gres=gpu:fake:{gpus}" if gpus else ""
    lines = [NODE.format(index=index, host=host, port=ports[3 + index], gres=gres) for index in range(nodes)]
    values = {
        "folder": folder,
        "cluster": cluster_name(folder),
        "host": host,
        "nodes": "\n".join(lines),
        "controller_port": ports[0],
    }
    values |= {"accounting": ACCOUNTING.format(accounting_port=ports[1]) if accounting else ""}
    (folder / "slurm.conf").write_text(SLURM_CONF.format(**values))
    storage = {"folder": folder, "accounting_port": ports[1], "database_port": ports[2]}
    (folder / "slurmdbd.conf").write_text(SLURMDBD_CONF.format(**storage))
    (folder / "slurmdbd.conf").chmod(0o600)
    (folder / "cgroup.conf").write_text("CgroupPlugin=cgroup/v1\nCgroupAutomount=no\n")
    files = f"File={folder}/gpu[0-{gpus - 1}]"
    (folder / "gres.conf").write_text(f"NodeName=n[0-{last}] Name=gpu Type=fake {files}\n" if gpus else "")
    for name in FILES[1:]:
        (ETC / name).symlink_to(folder / name)


def start_accounting(folder: Path, port: int) -> None:
    data, at = folder / "db", folder / "dbrun/socket"
    for path in (data, folder / "dbrun"):
        shutil.chown(path, "mysql", "mysql")
    install = ["--user=mysql", f"--datadir={data}", "--auth-root-authentication-method=normal", "--skip-test-db"]
    run("mariadb-install-db", "--no-defaults", *install)
    options = ["--no-defaults", "--user=mysql", f"--datadir={data}", f"--socket={at}", f"--port={port}"]
    options += [f"--pid-file={folder}/dbrun/pid", "--bind-address=127.0.0.1", "--innodb-buffer-pool-size=64M"]
    with open(folder / "log/mariadb", "w") as log:
        daemon = subprocess.Popen(["mariadbd", *options], stdout=log, stderr=log, start_new_session=True)
    (folder / "pids/mariadbd").write_text(str(daemon.pid))
    wait_for("the accounting database", lambda: succeeds("mariadb-admin", "-S", str(at), "ping"))
    for host in ("localhost", "127.0.0.1"):
        grant = f"create user slurm@'{host}' identified by 'toy'; grant all on slurm_acct_db.* to slurm@'{host}';"
        run("mariadb", "-S", str(at), "-e", f"create database if not exists slurm_acct_db; {grant}")
    run("slurmdbd")
    wait_for("slurmdbd", lambda: succeeds("sacctmgr", "-n", "show", "cluster"))
    name = cluster_name(folder)
    for entry in (["cluster", name], ["account", "toyacct", f"cluster={name}"], ["user", "root", "account=toyacct"]):
        run("sacctmgr", "-i", "add", *entry)


def stop(folder: Path) -> None:
    """Ends the jobs and daemons of the sandbox in `folder`, and only those. May be called again."""
    if running() == folder:
        end_jobs()
    order = sorted((folder / "pids").glob("slurmd.*")) + [folder / "pids" / n for n in ("slurmctld", "slurmdbd")]
    for file in [*order, folder / "pids/mariadbd", folder / "pids/munged"]:
        if file.exists() and file.read_text().strip():
            end(int(file.read_text()))
            file.unlink(missing_ok=True)
    for pid in left_over(folder):
        end(pid)
    for name in reversed(FILES):  # slurm.conf last: it is the claim
        if (ETC / name).is_symlink() and Path(os.readlink(ETC / name)).parent == folder:
            (ETC / name).unlink(missing_ok=True)
    (folder / OWNER).unlink(missing_ok=True)


def end_jobs() -> None:
    """Cancels every job, and kills what does not end."""
    for options in ([], ["--signal=KILL", "--full"]):
        try:
            run("scancel", "--user=root", *options, check=False, seconds=30)
            wait_for("the end of the jobs", lambda: run("squeue", "-h", check=False, seconds=30).strip() == "", 20)
            return
        except (RuntimeError, subprocess.TimeoutExpired):
            continue


def end(pid: int) -> None:
    """SIGTERM, and SIGKILL for what is still there after ten seconds."""
    for sign, seconds in ((signal.SIGTERM, 10), (signal.SIGKILL, 5)):
        try:
            os.kill(pid, sign)
        except ProcessLookupError:
            return
        until = time.monotonic() + seconds
        while time.monotonic() < until and Path(f"/proc/{pid}").exists():
            time.sleep(0.1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("action", choices=["start", "stop", "watch"])
    parser.add_argument("folder", type=Path)
    parser.add_argument("--nodes", type=int, default=3)
    parser.add_argument("--gpus", type=int, default=2)
    parser.add_argument("--no-accounting", dest="accounting", action="store_false")
    options = parser.parse_args()
    folder = options.folder.resolve()
    if options.action == "stop":
        stop(folder)
        return
    if options.action == "watch":
        while (folder / OWNER).is_file() and not abandoned(folder):
            time.sleep(1)
        if (folder / OWNER).is_file():
            stop(folder)
            shutil.rmtree(folder, ignore_errors=True)
        return
    reason = missing()
    if reason:
        sys.exit(f"sandbox: {reason}")
    start(folder, options.nodes, options.gpus, options.accounting)
    print(run("sinfo", "-N", "-o", "%N %P %T %c %m %G"), end="")


if __name__ == "__main__":
    main()
