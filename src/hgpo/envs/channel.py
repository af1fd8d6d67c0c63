"""Messages between the pool and its worker processes: length-prefixed pickles over a socket pair.

The pool's end never blocks, so neither a hung worker nor a full buffer can stop the pool; a worker's end does.
"""

from __future__ import annotations

import pickle
import select
import socket
import struct
from typing import Any

_LENGTH = struct.Struct("!I")
_CHUNK = 1 << 18


def _frame(message: Any) -> bytes:
    body = pickle.dumps(message, protocol=pickle.HIGHEST_PROTOCOL)
    return _LENGTH.pack(len(body)) + body


class PoolEnd:
    """The pool's end. `closed` becomes true once the worker's end is gone; what it sent before is still received."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        self._socket = connection
        self._unsent = bytearray()
        self._unread = bytearray()
        self.closed = False

    def fileno(self) -> int:
        return self._socket.fileno()

    @property
    def unsent(self) -> bool:
        return bool(self._unsent)

    def send(self, message: Any) -> None:
        self._unsent += _frame(message)
        self.flush()

    def flush(self) -> None:
        """Sends as much as the buffer takes now."""
        try:
            while self._unsent and not self.closed:
                sent = self._socket.send(memoryview(self._unsent)[:_CHUNK].tobytes())
                del self._unsent[:sent]
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True

    def receive(self) -> list[Any]:
        """All messages that have arrived in full; does not wait."""
        try:
            while not self.closed:
                data = self._socket.recv(_CHUNK)
                self._unread += data
                self.closed = not data
        except BlockingIOError:
            pass
        except OSError:
            self.closed = True
        messages, start = [], 0
        while len(self._unread) - start >= _LENGTH.size:
            (length,) = _LENGTH.unpack_from(self._unread, start)
            end = start + _LENGTH.size + length
            if end > len(self._unread):
                break
            messages.append(pickle.loads(memoryview(self._unread)[start + _LENGTH.size : end].tobytes()))
            start = end
        del self._unread[:start]
        return messages

    def close(self) -> None:
        self.closed = True
        self._socket.close()


class WorkerEnd:
    """A worker's end. `receive` waits and raises EOFError when the pool is gone."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(True)
        self._socket = connection

    def send(self, message: Any) -> None:
        self._socket.sendall(_frame(message))

    def waiting(self) -> bool:
        """Whether something has come in that was not received yet."""
        return bool(select.select([self._socket], [], [], 0)[0])

    def receive(self) -> Any:
        (length,) = _LENGTH.unpack(self._read(_LENGTH.size))
        return pickle.loads(self._read(length))

    def _read(self, count: int) -> bytes:
        data = bytearray()
        while len(data) < count:
            part = self._socket.recv(min(_CHUNK, count - len(data)))
            if not part:
                raise EOFError
            data += part
        return bytes(data)
