"""A server on loopback that answers each request as a test wants it: real sockets, real HTTP, real trouble."""

import contextlib
import socket
import threading
from collections.abc import Callable

Answer = Callable[[socket.socket, bytes], None]
"""Is given the connection and what was asked; the connection is closed when it returns."""


def whole(body: bytes, status: str = "200 OK", *more: str) -> Answer:
    """Return a usual answer."""

    def answer(peer: socket.socket, asked: bytes) -> None:
        head = [f"HTTP/1.1 {status}", f"Content-Length: {len(body)}", *more]
        peer.sendall("\r\n".join([*head, "", ""]).encode() + body)

    return answer


class PageServer:
    """Answers with `answer`, which a test may change at any time."""

    def __init__(self, answer: Answer) -> None:
        self.answer = answer
        self.asked: list[bytes] = []
        self.closing = threading.Event()
        """Set when the test is over: answers that hang wait for it."""
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = int(self._listener.getsockname()[1])
        self.url = f"http://127.0.0.1:{self.port}/metrics"
        self._threads = [threading.Thread(target=self._serve, daemon=True)]
        self._threads[0].start()

    def __enter__(self) -> "PageServer":
        return self

    def __exit__(self, *_: object) -> None:
        self.closing.set()
        self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for thread in self._threads:
            thread.join(10)

    def _serve(self) -> None:
        while not self.closing.is_set():
            try:
                peer, _ = self._listener.accept()
            except OSError:
                return
            thread = threading.Thread(target=self._answer, args=(peer,), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _answer(self, peer: socket.socket) -> None:
        with peer, contextlib.suppress(OSError):
            peer.settimeout(10)
            asked = peer.recv(65536)
            self.asked.append(asked)
            self.answer(peer, asked)
