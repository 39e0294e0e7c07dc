"""Web and mail servers of this host for the tests of sending: they keep what arrives and answer as they are told."""

import contextlib
import email
import email.policy
import http.server
import json
import select
import socket
import socketserver
import ssl
import subprocess
import threading
from collections.abc import Iterable, Mapping
from email.message import EmailMessage
from pathlib import Path
from typing import Any, NamedTuple, Self, cast

DRIP_S = 0.2
"""How long after a byte the next one comes."""


class Answer(NamedTuple):
    """What a web server does with a request."""

    status: int = 200
    headers: Mapping[str, str] = {}
    manner: str = "at once"
    """Or `drip` (a byte now and then), `drip head` (of its head), `hang` (nothing, ever), `drop` (hangs up)."""


OK = Answer()
DRIP, DRIP_HEAD, HANG, DROP = (Answer(manner=manner) for manner in ("drip", "drip head", "hang", "drop"))


class Request(NamedTuple):
    """What arrived."""

    method: str
    path: str
    headers: Mapping[str, str]
    body: bytes

    @property
    def json(self) -> dict[str, Any]:
        """Return the body of a JSON request."""
        found: dict[str, Any] = json.loads(self.body)
        return found


class _Sink:
    """A server in a thread of its own; a context that ends it."""

    _server: socketserver.ThreadingTCPServer

    def __init__(self) -> None:
        self.stopped = threading.Event()
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.02,), daemon=True)
        self._thread.start()

    @property
    def port(self) -> int:
        return int(self._server.server_address[1])

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.stopped.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()


class HttpSink(_Sink):
    """A web server. With a folder for its certificates it speaks TLS and, as a proxy, is every host that is asked for.

    Slack's host cannot be chosen: `HTTPS_PROXY=<proxy>` and `REQUESTS_CA_BUNDLE=<ca>` lead its URLs here.
    """

    def __init__(self, certificates: Path | None = None) -> None:
        self.requests: list[Request] = []
        self.default = OK
        self._script: list[Answer] = []
        self._lock = threading.Lock()
        self.tls: ssl.SSLContext | None = None
        if certificates is not None:
            self.ca, certificate, key = _certificates(certificates)
            self.tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            self.tls.load_cert_chain(certificate, key)
        self._server = _HttpServer(self)
        super().__init__()

    @property
    def proxy(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    def url(self, path: str = "hook", **parameters: object) -> str:
        """Return the Apprise URL that leads here."""
        query = "&".join(f"{name}={value}" for name, value in parameters.items())
        return f"json://127.0.0.1:{self.port}/{path}" + (f"?{query}" if query else "")

    def script(self, *answers: Answer) -> None:
        """Give these answers to the next requests, and the default one after them."""
        with self._lock:
            self._script = list(answers)

    def received(self, request: Request) -> Answer:
        """Keep a request; return how to answer it."""
        with self._lock:
            self.requests.append(request)
            return self._script.pop(0) if self._script else self.default


class _HttpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, sink: HttpSink) -> None:
        self.sink = sink
        super().__init__(("127.0.0.1", 0), _HttpHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _HttpHandler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"

    @property
    def sink(self) -> HttpSink:
        return cast(_HttpServer, self.server).sink

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002
        """Say nothing."""

    def do_CONNECT(self) -> None:
        self.wfile.write(b"HTTP/1.1 200 ok\r\n\r\n")
        assert self.sink.tls is not None
        self.connection = self.request = self.sink.tls.wrap_socket(self.request, server_side=True)
        self.rfile = self.connection.makefile("rb")
        self.wfile = self.connection.makefile("wb", 0)
        self.close_connection = False

    def finish(self) -> None:
        super().finish()
        if self.sink.tls is not None:
            self.connection.close()

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        answer = self.sink.received(Request(self.command, self.path, dict(self.headers.items()), body))
        if answer.manner != "at once":
            self.close_connection = True
        if answer.manner == "hang":
            self.sink.stopped.wait()
        elif answer.manner in ("drip", "drip head"):
            self._drip(answer)
        elif answer.manner == "at once":
            self._say(answer)

    do_GET = do_PUT = do_POST  # noqa: N815

    def _say(self, answer: Answer) -> None:
        said = b"ok" if answer.status < 300 else b"no"
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(said)))
        self.end_headers()
        self.wfile.write(said)

    def _drip(self, answer: Answer) -> None:
        self.send_response(answer.status)
        for name, value in answer.headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", "100000")
        if answer.manner == "drip":
            self.end_headers()
        else:
            self.flush_headers()
        while not self.sink.stopped.wait(DRIP_S):
            self.wfile.write(b"x")
            self.wfile.flush()


def _certificates(folder: Path, host: str = "hooks.slack.com") -> tuple[Path, Path, Path]:
    """Make a CA of our own, and a certificate and its key for Slack's host; return their files."""

    def openssl(*words: str) -> None:
        subprocess.run(["openssl", *words], check=True, cwd=folder, capture_output=True)

    curve = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes")
    (folder / "names").write_text(f"subjectAltName=DNS:{host},DNS:slack.com,DNS:localhost,IP:127.0.0.1\n")
    openssl(
        "req", "-x509", *curve, "-keyout", "ca.key", "-out", "ca.pem", "-days", "2", "-subj", "/CN=test",
        "-addext", "basicConstraints=critical,CA:TRUE", "-addext", "keyUsage=critical,keyCertSign",
    )  # fmt: skip
    openssl("req", *curve, "-keyout", "key.pem", "-out", "request.pem", "-subj", f"/CN={host}")
    openssl(
        "x509", "-req", "-in", "request.pem", "-CA", "ca.pem", "-CAkey", "ca.key", "-CAcreateserial", "-days", "2",
        "-extfile", "names", "-out", "certificate.pem",
    )  # fmt: skip
    return folder / "ca.pem", folder / "certificate.pem", folder / "key.pem"


class Mail(NamedTuple):
    """A mail as it arrived."""

    sender: str
    recipients: tuple[str, ...]
    raw: bytes

    @property
    def message(self) -> EmailMessage:
        """Return it taken apart."""
        return email.message_from_bytes(self.raw, EmailMessage, policy=email.policy.default)

    def part(self, kind: str) -> str:
        """Return the text of the part of a content type, e.g. `text/html`, as it was before it was sent."""
        (found,) = [part for part in self.message.walk() if part.get_content_type() == kind]
        return str(found.get_content()).replace("\r\n", "\n").rstrip("\n")


class SmtpSink(_Sink):
    """A mail server without TLS. `script` says how it takes the next mails: `451 busy`, `550 no`, `hang`, `drop`."""

    def __init__(self) -> None:
        self.mails: list[Mail] = []
        self.attempts = 0
        self.default = "250 taken"
        self._script: list[str] = []
        self._lock = threading.Lock()
        self._server = _SmtpServer(self)
        super().__init__()

    def url(self, to: str = "ops@example.test", **parameters: object) -> str:
        """Return the Apprise URL that leads here."""
        more = "".join(f"&{name}={value}" for name, value in parameters.items())
        return f"mailto://127.0.0.1:{self.port}?from=kvlogd@example.test&to={to}&mode=insecure{more}"

    def script(self, *answers: str) -> None:
        """Answer the next mails so, at the end of their content, and the default way after them."""
        with self._lock:
            self._script = list(answers)

    def received(self, mail: Mail) -> str:
        """Return how to answer a mail; keep it where it is taken."""
        with self._lock:
            self.attempts += 1
            answer = self._script.pop(0) if self._script else self.default
            if answer.startswith("2"):
                self.mails.append(mail)
            return answer


class _SmtpServer(socketserver.ThreadingTCPServer):
    daemon_threads = True
    block_on_close = False
    request_queue_size = 128

    def __init__(self, sink: SmtpSink) -> None:
        self.sink = sink
        super().__init__(("127.0.0.1", 0), _SmtpHandler)

    def handle_error(self, request: object, client_address: object) -> None:
        """A client that hangs up is no news."""


class _SmtpHandler(socketserver.StreamRequestHandler):
    def handle(self) -> None:
        self._sender, self._recipients = "", list[str]()
        self._say("220 sink")
        for line in self.rfile:
            word = line.strip().upper()
            if word.startswith(b"DATA"):
                self._say("354 go on")
                if not self._content():
                    return
            else:
                self._envelope(line.decode().strip(), word)
                self._say("221 bye" if word.startswith(b"QUIT") else "250 ok")

    def _envelope(self, line: str, word: bytes) -> None:
        address = line.partition("<")[2].partition(">")[0]
        if word.startswith(b"MAIL"):
            self._sender, self._recipients = address, []
        elif word.startswith(b"RCPT"):
            self._recipients.append(address)

    def _content(self) -> bool:
        """Take a mail; return whether the client is spoken to any further."""
        lines: Iterable[bytes] = iter(self.rfile.readline, b".\r\n")
        raw = b"".join(line.removeprefix(b".") for line in lines)
        sink = cast(_SmtpServer, self.server).sink
        answer = sink.received(Mail(self._sender, tuple(self._recipients), raw))
        if answer == "hang":
            sink.stopped.wait()
        if not answer[:1].isdigit():
            return False
        self._say(answer)
        return True

    def _say(self, line: str) -> None:
        self.wfile.write(line.encode() + b"\r\n")


class BlackHole:
    """A port that takes no connection: whoever calls it hangs in connect."""

    def __init__(self) -> None:
        self._server = socket.socket()
        self._server.bind(("127.0.0.1", 0))
        self._server.listen(0)
        self.port = int(self._server.getsockname()[1])
        self._callers: list[socket.socket] = []
        for _ in range(4):  # as many as its queue holds
            caller = socket.socket()
            caller.setblocking(False)
            with contextlib.suppress(BlockingIOError):
                caller.connect(("127.0.0.1", self.port))
            self._callers.append(caller)
        select.select([], self._callers, [], 0.1)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for one in (*self._callers, self._server):
            one.close()
