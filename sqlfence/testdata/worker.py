"""A worker that writes under a fencing token, as sqlfence/SQL.md says, with psycopg2.

    DATABASE_URL RESOURCE TOKEN LEASE    what it writes to, and its claim

It reads a command a line: raise, open (begin, enter, read), unfenced (the same without enter),
commit, add (open and commit), write (the guarded table) or naked (the same without a claim), and
prints a reason or "done" for each.
"""

import os
import sys

import psycopg2

env = os.environ
CLAIM = env["RESOURCE"], int(env["TOKEN"]), env["LEASE"]
TENANT, _, PERIOD = CLAIM[0].split(":")  # they have no % and no colon
REASONS = {"SF001": "stale", "SF002": "conflict", "SF003": "missing", "SF004": "unavailable", "SF005": "invalid", "SF006": "invalid", "22023": "invalid",
           "22003": "invalid", "22P02": "invalid", "40001": "unavailable", "40P01": "unavailable", "55P03": "unavailable", "57014": "unavailable",
           "25006": "unavailable", "3F000": "setup", "42883": "setup", "42501": "setup"}


class Worker:
    conn, committing, total = None, False, 0

    def run(self, *statements):
        with self.conn.cursor() as cur:
            for sql, args in statements:
                cur.execute(sql, args)
            return cur.fetchone() if cur.description else None

    def begin(self):
        """psycopg2 would send BEGIN by itself, but without a level."""
        if self.conn is None or self.conn.closed:
            self.conn = psycopg2.connect(env["DATABASE_URL"])
            self.conn.autocommit = True
        self.run(("BEGIN ISOLATION LEVEL READ COMMITTED", ()))

    def commit(self):
        self.committing = True
        self.run(("COMMIT", ()))

    def raise_mark(self):
        for last in False, True:
            try:
                self.begin()
                self.run(("SELECT fencepost.raise(%s, %s, %s, 2000)", CLAIM))
                return self.commit()
            except psycopg2.errors.LockNotAvailable:
                self.run(("ROLLBACK", ()))
                if last:
                    raise
                self.run(("SELECT e.ended FROM fencepost.holders(%s, %s, %s) h, fencepost.session(h.pid, '{}') s, fencepost.session(h.pid, ARRAY[s.transaction]) e"
                          " WHERE h.kind = 'entered' AND s.state LIKE 'idle in transaction%%' AND s.changed < clock_timestamp() - interval '1 second'", CLAIM))

    def open(self, fenced=True):
        self.begin()
        if fenced:
            self.run(("SELECT fencepost.enter(%s, %s, %s, 20000, 0)", CLAIM))
        self.total, = self.run(("SELECT total FROM billing.totals WHERE tenant = %s", (TENANT,)))

    def close(self):
        self.run(("UPDATE billing.totals SET total = %s WHERE tenant = %s", (self.total + 1, TENANT)))
        self.commit()

    def write(self, claimed=True):
        self.begin()
        if claimed:
            self.run(("SELECT fencepost.enter(%s, %s, %s, 20000, 10000)", CLAIM), ("SELECT fencepost.present(%s, %s, %s)", CLAIM))
        self.run(("INSERT INTO billing.closes (tenant, period, status) VALUES (%s, %s, %s)"
                  " ON CONFLICT (tenant, period) DO UPDATE SET status = excluded.status", (TENANT, PERIOD, "closed by " + env["LEASE"])))
        self.commit()

    def do(self, command):
        steps = {"raise": [self.raise_mark], "open": [self.open], "commit": [self.close], "add": [self.open, self.close],
                 "unfenced": [lambda: self.open(fenced=False)], "write": [self.write], "naked": [lambda: self.write(claimed=False)]}
        self.committing = False
        try:
            for step in steps[command]:
                step()
            return "done"
        except psycopg2.Error as e:
            if self.conn is not None and not self.conn.closed:
                self.run(("ROLLBACK", ()))
            if e.pgcode in (None, "57P01", "57P02", "57P03", "25P03") or e.pgcode[:2] == "08":  # there is no connection, or none any more
                return "outcome_unknown" if self.committing else "unavailable"
            return REASONS.get(e.pgcode, "unavailable" if e.pgcode[:2] == "53" else "other")


worker = Worker()
for line in sys.stdin:
    print(worker.do(line.strip()), flush=True)
