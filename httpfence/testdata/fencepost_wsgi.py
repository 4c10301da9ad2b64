"""WSGI middleware that refuses stale lock holders, as httpfence/FORMAT.md says.

    app = Fence(app, store, resource, raises)

resource(environ) is the name of the request's resource, as bytes; it raises Refused("not_found")
if there is none. store.admit(resource, token, lease) compares with the mark and raises it in one
step, or raises Refused. raises(environ) says whether a path is one that only raises the mark:
there admit must also wait until no older holder can change anything.
"""

import json
import re
from urllib.parse import unquote_to_bytes

TYPE = "tag:fencepost-go.github.io,2026:problem/"
STATUS = {"missing": "428 Precondition Required", "invalid": "400 Bad Request", "misdirected": "400 Bad Request", "not_found": "404 Not Found",
          "stale": "412 Precondition Failed", "conflict": "412 Precondition Failed", "unavailable": "503 Service Unavailable"}


class Refused(Exception):
    def __init__(self, reason, **members):
        self.reason, self.members = reason, members


def line(environ, field):
    value = environ.get("HTTP_" + field.upper().replace("-", "_"))
    if value is None:
        raise Refused("missing", field=field)
    return value


def text(value, limit, field):
    if len(value) > 3 * limit or not re.fullmatch("(?:[!#$&-+\\--~]|%[0-9A-Fa-f]{2})+", value):
        raise Refused("invalid", field=field)
    return valid(unquote_to_bytes(value), limit, field)


def valid(raw, limit, field):
    try:
        if 1 <= len(raw) <= limit and not re.search("[\x00-\x1f\x7f-\x9f]", raw.decode()):
            return raw.decode()
    except UnicodeDecodeError:
        pass
    raise Refused("invalid", field=field)


class Fence:
    def __init__(self, app, store, resource, raises=lambda environ: False, unguarded=("GET", "HEAD", "OPTIONS", "TRACE")):
        self.app, self.store, self.resource, self.raises, self.unguarded = app, store, resource, raises, unguarded

    def __call__(self, environ, start_response):
        method, raises = environ["REQUEST_METHOD"], self.raises(environ)
        if raises and method != "POST":
            start_response("405 Method Not Allowed", [("Allow", "POST"), ("Cache-Control", "no-store")])
            return []
        try:
            if raises or method not in self.unguarded:
                environ["fencepost.claim"] = claim = self.claim(environ)
                self.store.admit(*claim)
        except Refused as e:
            status = STATUS[e.reason]
            problem = {"type": TYPE + e.reason, "title": status[4:], "status": int(status[:3]), "detail": "The claim was refused.", **e.members}
            header = [("Content-Type", "application/problem+json"), ("Cache-Control", "no-store"), ("X-Fencing-Reason", e.reason)]
            start_response(status, header + [("Retry-After", "2")] * (e.reason == "unavailable"))
            return [json.dumps(problem).encode()]
        if raises:
            start_response("204 No Content", [("Cache-Control", "no-store")])
            return []
        return self.app(environ, start_response)

    def claim(self, environ):
        token = line(environ, "X-Fencing-Token")
        if not re.fullmatch("[1-9][0-9]{0,18}", token) or int(token) > 2**63 - 2:
            raise Refused("invalid", field="X-Fencing-Token")
        lease = text(line(environ, "X-Fencing-Lease"), 128, "X-Fencing-Lease")
        claimed = text(line(environ, "X-Fencing-Resource"), 512, "X-Fencing-Resource")
        guarded = valid(self.resource(environ), 512, "resource")
        if claimed != guarded:
            raise Refused("misdirected", claimed=claimed, guarded=guarded)
        return guarded, int(token), lease
