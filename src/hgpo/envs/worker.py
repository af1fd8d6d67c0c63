"""A worker process of the pool: hosts many environments and answers one call after the other.

Run by the pool as `python -m hgpo.envs.worker FILE_DESCRIPTOR`. It ignores the signals meant for its parent, ends when
the parent is gone (even amid a call), and imports nothing but the environment package.
"""

from __future__ import annotations

import os
import pickle
import select
import signal
import socket
import sys
import threading

from hgpo.envs.channel import WorkerEnd
from hgpo.envs.host import Alive, Expect, Expected, Host, Release, Unstartable, describe
from hgpo.tasks import Task

IGNORED_SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGUSR1, signal.SIGUSR2, signal.SIGHUP)


def _end_with_parent(connection: socket.socket, parent: int) -> None:
    """Ends this process when the pool's process is gone, whatever the main thread is doing."""
    poll = select.poll()
    poll.register(connection.fileno(), select.POLLRDHUP)
    while not poll.poll(2000) and os.getppid() == parent:
        pass
    os._exit(0)


def serve(descriptor: int) -> None:
    """Answers calls until the pool closes its end."""
    for number in IGNORED_SIGNALS:
        signal.signal(number, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, IGNORED_SIGNALS)
    os.dup2(2, 1)  # what an engine prints must not end up in the parent's output
    connection = socket.socket(fileno=descriptor)
    threading.Thread(target=_end_with_parent, args=(connection, os.getppid()), daemon=True).start()
    end = WorkerEnd(connection)
    try:
        make_environment = pickle.loads(end.receive())
    except EOFError:
        return
    except Exception as error:
        end.send(Unstartable(describe(error)))
        return
    host = Host(make_environment, alive=lambda: end.send(Alive()))
    end.send(Alive())
    expected: list[Task] = []
    while True:
        try:
            if expected and not end.waiting():
                host.expect(expected.pop(0))
                end.send(Expected())
                continue
            message = end.receive()
            if isinstance(message, Release):
                host.release(message.episode)
            elif isinstance(message, Expect):
                expected.append(message.task)
            else:
                if message.task in expected:
                    expected.remove(message.task)
                    end.send(Expected())
                end.send(host.answer(message))
        except (EOFError, ConnectionError):
            host.close()
            return


if __name__ == "__main__":
    serve(int(sys.argv[1]))
