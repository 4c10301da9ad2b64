"""The server under test of vectors.json, as FORMAT.md describes it. It prints its port and ends
with its standard input."""

import socketserver
import sys
import threading
import wsgiref.simple_server

from fencepost_wsgi import Fence, Refused


class Memory:
    """Marks that are forgotten at a restart; a service keeps them in its database."""

    def __init__(self):
        self.marks, self.lock = {}, threading.Lock()

    def admit(self, resource, token, lease):
        if resource.startswith("down:"):
            raise Refused("unavailable")
        with self.lock:
            mark = self.marks.get(resource, (0, ""))
            if token < mark[0]:
                raise Refused("stale")
            if token == mark[0] and lease != mark[1]:
                raise Refused("conflict")
            self.marks[resource] = token, lease


def app(environ, start_response):
    start_response("204 No Content", [])
    return []


def resource(environ):
    name = environ["PATH_INFO"].encode("latin-1").split(b"/", 2)[2]
    if name.startswith(b"absent:"):
        raise Refused("not_found")
    return name


def raises(environ):
    return environ["PATH_INFO"].startswith("/raise/")


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def get_environ(self):
        """wsgiref strips the bytes 85 and A0, of which HTTP says nothing: take each value as it was sent."""
        environ, sent = super().get_environ(), {}
        for name, value in self.headers.items():
            sent.setdefault("HTTP_" + name.upper().replace("-", "_"), []).append(value.strip(" \t"))
        return environ | {name: ",".join(values) for name, values in sent.items()}

    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


server = wsgiref.simple_server.make_server("127.0.0.1", 0, Fence(app, Memory(), resource, raises), Server, Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
