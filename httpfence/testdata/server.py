"""The server under test of vectors.json: guards /r/ and a name, and POST /raise/ and a name.
It prints its port and ends with its standard input."""

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
    return environ["PATH_INFO"].encode("latin-1").split(b"/", 2)[2]


class Quiet(wsgiref.simple_server.WSGIRequestHandler):
    def log_message(self, *args):
        pass


class Server(socketserver.ThreadingMixIn, wsgiref.simple_server.WSGIServer):
    daemon_threads = True


server = wsgiref.simple_server.make_server("127.0.0.1", 0, Fence(app, Memory(), resource), Server, Quiet)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
