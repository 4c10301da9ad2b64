// A worker in Node's standard library that holds a lease of the lock server and
// presents its token to three resources: an HTTP service, a PostgreSQL table
// with fencepost's triggers, by psql, and an S3 object, sealed as
// s3fence/FORMAT.md says. Its environment is that of worker.py.
//
// It prints one line of JSON when it has written, and one more for every line
// that it reads; at the end of its input it releases the lease.

import { spawnSync } from "node:child_process";
import { createHash, randomBytes, randomUUID } from "node:crypto";
import { createInterface } from "node:readline";

const env = process.env;
const TTL = Number(env.TTL ?? "30");
const bearer = { authorization: `Bearer ${env.TOKEN}` };

async function call(path, body) {
  const answer = await fetch(`${env.URL}/v1/locks/${path}`, {
    method: "POST", headers: { ...bearer, "content-type": "application/json" }, body: JSON.stringify(body),
  });
  return [answer.status, await answer.json()];
}

// Lease is renewed by a timer until it is released or lost.
class Lease {
  static async acquire(resource, owner) {
    const lease = new Lease();
    // A lease ID of one's own: the request can be repeated after a lost response.
    Object.assign(lease, { resource, id: `node-${randomUUID()}` });
    for (;;) {
      const sent = performance.now();
      const [status, g] = await call("acquire", { resource, leaseId: lease.id, ownerId: owner, ttlSeconds: TTL, waitSeconds: 30 });
      if (status === 200) {
        lease.token = g.token; // text: a number would be rounded above 2^53
        lease.proof = g.proof; // if the server signs
        lease.until = sent + (g.waitedSeconds + g.ttlSeconds) * 1000;
        break;
      }
      if (![409, 429, 500, 503].includes(status)) throw new Error(`acquire: ${status} ${JSON.stringify(g)}`);
    }
    lease.timer = setInterval(() => lease.renew(), (TTL / 3) * 1000);
    return lease;
  }

  async renew() {
    const sent = performance.now();
    try {
      const [status, r] = await call(`${this.id}/renew`, { resource: this.resource, fencingToken: this.token, ttlSeconds: TTL });
      if (status === 200) Object.assign(this, { until: sent + r.ttlSeconds * 1000, proof: r.proof });
      else if (status === 404) this.until = 0;
    } catch {
      // One failure is no loss; this.until says when it is.
    }
  }

  // held is a courtesy: what keeps a stale worker from writing is the token.
  held() {
    return performance.now() < this.until;
  }

  async release() {
    clearInterval(this.timer);
    await call("release", { resource: this.resource, leaseId: this.id, fencingToken: this.token });
  }
}

async function byHTTP(lease, text) {
  const answer = await fetch(`${env.URL}/demo/closes/${encodeURIComponent(env.PERIOD)}`, {
    method: "PUT", body: text,
    headers: {
      ...bearer, "x-fencing-token": lease.token, "x-fencing-lease": lease.id, "x-fencing-resource": encodeURIComponent(lease.resource),
      ...(lease.proof && { "x-fencing-proof": lease.proof }),
    },
  });
  const body = await answer.text();
  return answer.status === 204 ? "written" : answer.headers.get("x-fencing-reason") ?? `${answer.status} ${body}`;
}

const SQL = `
SELECT fencepost.raise(:'resource', :token, :'lease', 2000);
BEGIN ISOLATION LEVEL READ COMMITTED;
SELECT fencepost.present(:'resource', :token, :'lease');
INSERT INTO billing.closes VALUES ('demo', :'period', :'note')
  ON CONFLICT (tenant, period) DO UPDATE SET note = excluded.note;
COMMIT;
`;

function bySQL(lease, text) {
  const values = { resource: lease.resource, token: lease.token, lease: lease.id, period: env.PERIOD, note: text };
  const options = Object.entries(values).flatMap(([name, value]) => ["-v", `${name}=${value}`]);
  const done = spawnSync("psql", ["-X", "-q", "-v", "ON_ERROR_STOP=1", "-v", "VERBOSITY=verbose", ...options, env.DATABASE_URL], { input: SQL, encoding: "utf8" });
  if (done.status === 0) return "written";
  const [, state] = /ERROR:\s+(\w{5})/.exec(done.stderr) ?? [];
  return { SF001: "stale", SF002: "conflict" }[state] ?? done.stderr;
}

// The sealed format, FORMAT.md section 2, for objects of this kind alone.
const MAGIC = Buffer.from("fencepost/s3");
const SEALED = 3;
const RECENT = 32;
const sha256 = (b) => createHash("sha256").update(b).digest();

function crc32c(data) {
  let crc = 0xffffffff;
  for (const byte of data) {
    crc ^= byte;
    for (let bit = 0; bit < 8; bit++) crc = (crc >>> 1) ^ (crc & 1 ? 0x82f63b78 : 0);
  }
  return (crc ^ 0xffffffff) >>> 0;
}

function seal(key, state, body) {
  const lease = Buffer.from(state.lease);
  const head = Buffer.alloc(73);
  head.set([1, SEALED, state.cut ? 1 : 0, state.recent.length]);
  sha256(key).copy(head, 4);
  head.writeBigUInt64BE(state.token, 36);
  state.write.copy(head, 44);
  head.writeBigUInt64BE(BigInt(body.length), 60);
  head.writeUInt32BE(crc32c(body), 68);
  head[72] = lease.length;
  const fields = Buffer.concat([head, lease, ...state.recent]);
  const summed = Buffer.concat([fields, sha256(fields).subarray(0, 16)]);
  const size = Buffer.alloc(4);
  size.writeUInt32BE(summed.length);
  return Buffer.concat([body, summed, size, MAGIC]);
}

// unseal returns the state of an object; what cannot be verified is an error.
function unseal(key, stored) {
  const damaged = (what) => new Error(`damaged: ${what}`);
  const end = stored.length - MAGIC.length - 4;
  if (end < 89 || !stored.subarray(-MAGIC.length).equals(MAGIC)) throw damaged("no trailer");
  const start = end - stored.readUInt32BE(end);
  if (start < 0 || end - start < 89) throw damaged("length");
  const t = stored.subarray(start, end);
  const fields = t.subarray(0, -16);
  if (!sha256(fields).subarray(0, 16).equals(t.subarray(-16))) throw damaged("sum");
  const [version, kind, flags, n] = t;
  const m = t[72];
  const body = stored.subarray(0, start);
  if (version !== 1 || kind !== SEALED || flags > 1 || fields.length !== 73 + m + 16 * n) throw damaged("fields");
  if (!sha256(key).equals(t.subarray(4, 36)) || t.readBigUInt64BE(60) !== BigInt(body.length) || t.readUInt32BE(68) !== crc32c(body)) throw damaged("key or body");
  const recent = Array.from({ length: n }, (_, i) => t.subarray(73 + m + 16 * i, 89 + m + 16 * i));
  return { token: t.readBigUInt64BE(36), lease: t.toString("utf8", 73, 73 + m), write: t.subarray(44, 60), recent, cut: flags === 1 };
}

async function byS3(lease, text) {
  const key = decodeURIComponent(new URL(env.S3_URL).pathname).split("/").slice(2).join("/");
  const token = BigInt(lease.token);
  for (let attempt = 0; attempt < 10; attempt++) {
    const got = await fetch(env.S3_URL);
    const stored = Buffer.from(await got.arrayBuffer());
    const state = { token, lease: lease.id, write: randomBytes(16), recent: [], cut: false };
    const condition = {};
    if (got.status === 404) {
      condition["if-none-match"] = "*";
    } else if (got.status === 200) {
      const mark = unseal(key, stored);
      if (token < mark.token) return "stale";
      if (token === mark.token && mark.lease !== lease.id) return "conflict";
      state.recent = [mark.write, ...mark.recent].slice(0, RECENT);
      state.cut = mark.cut || mark.recent.length >= RECENT;
      condition["if-match"] = got.headers.get("etag");
    } else {
      return `${got.status} ${stored}`;
    }
    const put = await fetch(env.S3_URL, {
      method: "PUT", body: seal(key, state, Buffer.from(text)),
      headers: {
        ...condition, "x-amz-meta-fencing-mode": "sealed", "x-amz-meta-fencing-token": lease.token,
        "x-amz-meta-fencing-lease": lease.id, "x-amz-meta-fencing-write": state.write.toString("hex"), // an ID of letters, digits and "-" needs no escape
      },
    });
    const answer = await put.text();
    if (put.status === 200) return "written";
    if (put.status !== 409 && put.status !== 412) return `${put.status} ${answer}`; // else somebody else has written: look again
  }
  return "others were faster";
}

const lease = await Lease.acquire(env.RESOURCE, env.OWNER);
async function write(round) {
  const text = `${round} of ${env.OWNER}`;
  const http = await byHTTP(lease, text);
  const sql = bySQL(lease, text);
  const s3 = await byS3(lease, text);
  console.log(JSON.stringify({ token: lease.token, leaseId: lease.id, held: lease.held(), http, sql, s3 }));
}
await write("first");
for await (const line of createInterface({ input: process.stdin })) await write(line.trim());
await lease.release();
