"""A worker in Python's standard library that holds a lease of the lock server and
presents its token to three resources: an HTTP service, a PostgreSQL table with
fencepost's triggers, by psql, and an S3 object in the format of s3fence/FORMAT.md.

    URL TOKEN RESOURCE PERIOD OWNER        the lock server, and what is written
    DATABASE_URL                           of the table billing.closes
    S3_URL FENCEPOST_S3                    the object, and the path of fencepost_s3.py

It prints one line of JSON when it has written, and one more for every line that
it reads; at the end of its input it releases the lease.
"""

import importlib.util
import json
import os
import secrets
import subprocess
import sys
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

env = os.environ
TTL = float(env.get("TTL", "30"))


def request(method, url, body=None, headers=None):
    """Returns status, body and headers; an error status is a response as well."""
    r = urllib.request.Request(url, data=body, method=method, headers=headers or {})
    try:
        with urllib.request.urlopen(r, timeout=90) as answer:
            return answer.status, answer.read(), answer.headers
    except urllib.error.HTTPError as e:
        return e.code, e.read(), e.headers


class LeaseLost(Exception):
    pass


class Lease:
    """A lease that a thread renews until it is released or lost."""

    def __init__(self, resource, owner):
        # A lease ID of one's own: the request can be repeated after a lost response.
        self.resource, self.id = resource, "py-" + secrets.token_hex(16)
        while True:
            sent = time.monotonic()
            status, g = self.call("acquire", resource=resource, leaseId=self.id, ownerId=owner, ttlSeconds=TTL, waitSeconds=30)
            if status == 200:
                break
            if status not in (409, 429, 500, 503):  # 409: another has it
                raise RuntimeError("acquire: %d %s" % (status, g))
        self.token = g["token"]  # text: it may be above 2^53
        self.proof = g.get("proof", "")  # if the server signs
        self.until = sent + g["waitedSeconds"] + g["ttlSeconds"]
        self.over = threading.Event()
        self.thread = threading.Thread(target=self.renew, daemon=True)
        self.thread.start()

    def call(self, path, **body):
        headers = {"Authorization": "Bearer " + env["TOKEN"], "Content-Type": "application/json"}
        status, text, _ = request("POST", env["URL"] + "/v1/locks/" + path, json.dumps(body).encode(), headers)
        return status, json.loads(text)

    def renew(self):
        while not self.over.wait(TTL / 3):
            sent = time.monotonic()
            try:
                status, r = self.call(self.id + "/renew", resource=self.resource, fencingToken=self.token, ttlSeconds=TTL)
            except OSError:
                continue  # one failure is no loss; self.until says when it is
            if status == 200:
                self.until, self.proof = sent + r["ttlSeconds"], r.get("proof", "")
            elif status == 404:
                self.until = 0

    def held(self):
        """A courtesy: what keeps a stale worker from writing is the token."""
        return time.monotonic() < self.until

    def release(self):
        self.over.set()
        return self.call("release", resource=self.resource, leaseId=self.id, fencingToken=self.token)[0] == 200


def by_http(lease, text):
    status, body, headers = request("PUT", env["URL"] + "/demo/closes/" + urllib.parse.quote(env["PERIOD"], safe=""), text.encode(), {
        "Authorization": "Bearer " + env["TOKEN"],
        "X-Fencing-Token": lease.token,
        "X-Fencing-Lease": lease.id,
        "X-Fencing-Resource": urllib.parse.quote(lease.resource, safe=""),
        **({"X-Fencing-Proof": lease.proof} if lease.proof else {}),
    })
    if status == 204:
        return "written"
    return headers.get("X-Fencing-Reason") or "%d %s" % (status, body)


SQL = r"""
SELECT fencepost.raise(:'resource', :token, :'lease', 2000);
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT fencepost.present(:'resource', :token, :'lease');
INSERT INTO billing.closes VALUES ('demo', :'period', :'note')
  ON CONFLICT (tenant, period) DO UPDATE SET note = excluded.note;
COMMIT;
"""


def by_sql(lease, text):
    values = {"resource": lease.resource, "token": lease.token, "lease": lease.id, "period": env["PERIOD"], "note": text}
    options = [x for name, value in values.items() for x in ("-v", name + "=" + value)]
    done = subprocess.run(["psql", "-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", *options, env["DATABASE_URL"]],
                          input=SQL, capture_output=True, text=True)
    if done.returncode == 0:
        return "written"
    return {"SF001": "stale", "SF002": "conflict"}.get(done.stderr.partition("ERROR:")[2].strip()[:5], done.stderr)


def by_s3(lease, text):
    spec = importlib.util.spec_from_file_location("fencepost_s3", env["FENCEPOST_S3"])
    s3 = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(s3)
    key = urllib.parse.unquote(urllib.parse.urlsplit(env["S3_URL"]).path).lstrip("/").partition("/")[2]
    for _ in range(10):
        status, stored, headers = request("GET", env["S3_URL"])
        if status == 404:
            base, condition = None, {"If-None-Match": "*"}
        elif status == 200:
            base, _ = s3.unseal(key, stored)
            claim = {"token": int(lease.token), "lease": lease.id}
            reason = s3.decide("SameOrNewer", {"token": base["token"], "lease": base["lease"]}, claim)
            if reason:
                return reason
            condition = {"If-Match": headers["ETag"]}
        else:
            return "%d %s" % (status, stored)
        state = s3.follow(base, "sealed", int(lease.token), lease.id, secrets.token_hex(16))
        body, meta = s3.seal(key, state, text.encode())
        status, answer, _ = request("PUT", env["S3_URL"], body, {**condition, **{"x-amz-meta-" + k: v for k, v in meta.items()}})
        if status == 200:
            return "written"
        if status not in (409, 412):  # else somebody else has written: look again
            return "%d %s" % (status, answer)
    return "others were faster"


def main():
    lease = Lease(env["RESOURCE"], env["OWNER"])
    for round in rounds():
        text = "%s of %s" % (round, env["OWNER"])
        print(json.dumps({"token": lease.token, "leaseId": lease.id, "held": lease.held(),
                          "http": by_http(lease, text), "sql": by_sql(lease, text), "s3": by_s3(lease, text)}), flush=True)
    lease.release()


def rounds():
    yield "first"
    for line in iter(sys.stdin.readline, ""):
        yield line.strip()


if __name__ == "__main__":
    main()
