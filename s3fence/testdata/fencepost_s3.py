"""Seals, reads and verifies fenced S3 objects as FORMAT.md describes them.

It needs Python 3.8 and nothing but the standard library, and shares nothing with the
Go code, which is tested against it. As a program it reads one JSON document
per line and answers one per line:

    {"do": "verify", "key": ..., "object": base64, "metadata": {...}}
    {"do": "seal", "key": ..., "body": base64, "kind": ..., "token": ..., ...}
    {"do": "decide", "rule": ..., "mark": {...}, "claim": {...}}
    {"do": "put", "url": ..., "key": ..., "claim": {...}, "rule": ..., "body": base64}

    python3 fencepost_s3.py <requests >answers
    python3 fencepost_s3.py check vectors.json
"""

import base64
import datetime
import email.utils
import gzip
import hashlib
import http.client
import json
import os
import re
import struct
import sys
import time
import unicodedata
import urllib.parse
import zlib

VERSION = 1
MAGIC = b"fencepost/s3"
HEAD = struct.Struct(">BBBB32sQ16sQIB")  # up to the length of the lease ID
SUM = 16
MAX_TOKEN = (1 << 63) - 2
MAX_LEASE = 128
MAX_RECENT = {"plain": 8}
MAX_RECENT_SEALED = 32

KINDS = {"sealed": 3, "pointer": 4, "tombstone": 5, "gzip": 9}
# The last member of a gzip object: what is before and behind the trailer.
MEMBER = struct.Struct("<10sH2sH")
MEMBER_HEAD = bytes.fromhex("1f8b08040000000000ff")
MEMBER_END = bytes.fromhex("03000000000000000000")

NAMES = {number: name for name, number in KINDS.items()}


class Damaged(Exception):
    """The object cannot be verified. Its mark is unknown, which is not "none"."""


# CRC-32C, the Castagnoli polynomial, bits reversed.
def _table():
    table = []
    for n in range(256):
        for _ in range(8):
            n = n >> 1 ^ (0x82F63B78 if n & 1 else 0)
        table.append(n)
    return table


_TABLE = _table()


def crc32c(data):
    crc = 0xFFFFFFFF
    for byte in data:
        crc = crc >> 8 ^ _TABLE[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


def valid_lease(raw):
    """Up to 128 bytes of UTF-8 without control characters; empty is none."""
    if len(raw) > MAX_LEASE:
        return False
    try:
        text = raw.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return not any(unicodedata.category(c) == "Cc" for c in text)


def parse_token(text):
    if not isinstance(text, str) or not re.fullmatch("[1-9][0-9]{0,18}", text) or int(text) > MAX_TOKEN:
        raise Damaged("the token %r is invalid" % (text,))
    return int(text)


def parse_write(text):
    if not isinstance(text, str) or not re.fullmatch("[0-9a-f]{32}", text):
        raise Damaged("the write ID %r is invalid" % (text,))
    return text


# --- writing


def payload(key, state, body):
    """The fields of a seal, without sum, size and magic. body is as stored."""
    lease = state.get("lease", "").encode("utf-8")
    recent = [bytes.fromhex(parse_write(w)) for w in state.get("recent", [])]
    token = state["token"]
    if not valid_lease(lease):
        raise ValueError("invalid lease ID")
    if not 1 <= token <= MAX_TOKEN:
        raise ValueError("invalid token %d" % token)
    if len(recent) > MAX_RECENT_SEALED:
        raise ValueError("too many recent writes")
    head = HEAD.pack(
        VERSION,
        KINDS[state["kind"]],
        1 if state.get("cut") else 0,
        len(recent),
        hashlib.sha256(key.encode("utf-8")).digest(),
        token,
        bytes.fromhex(parse_write(state["write"])),
        len(body),
        crc32c(body),
        len(lease),
    )
    out = head + lease + b"".join(recent)
    if state["kind"] == "gzip":
        out += struct.pack(">Q", len(gzip.decompress(body)))
    return out


def trailer(key, state, body):
    out = payload(key, state, body)
    out += hashlib.sha256(out).digest()[:SUM]
    out += struct.pack(">I", len(out)) + MAGIC
    if state["kind"] == "gzip":
        out = MEMBER.pack(MEMBER_HEAD, 4 + len(out), b"FP", len(out)) + out + MEMBER_END
    return out


def metadata(state, user=None):
    """The reserved metadata with the user's. A plain state has the body's MD5."""
    m = dict(user or {})
    m["fencing-mode"] = state["kind"]
    m["fencing-token"] = str(state["token"])
    m["fencing-write"] = state["write"]
    if state.get("lease"):
        m["fencing-lease"] = urllib.parse.quote(state["lease"], safe="$&+=:@-_.~")
    if state["kind"] == "plain":
        m["fencing-md5"] = state["md5"]
        recent = ",".join(state.get("recent", [])) + ("+" if state.get("cut") else "")
        if recent:
            m["fencing-recent"] = recent
    return m


def seal(key, state, body, user=None):
    """Returns the object's bytes and its metadata. A gzip body is packed already."""
    if state["kind"] == "plain":
        return body, metadata(dict(state, md5=hashlib.md5(body).hexdigest()), user)
    return body + trailer(key, state, body), metadata(state, user)


def follow(base, kind, token, lease, write):
    """The state that a write makes of the state it replaces, None if absent."""
    state = {"kind": kind, "token": token, "lease": lease, "write": write, "recent": [], "cut": False}
    if base is None:
        return state
    if base["kind"] == "unfenced":
        state["cut"] = True
        return state
    limit = MAX_RECENT.get(kind, MAX_RECENT_SEALED)
    older = base.get("recent", [])
    state["recent"] = [base["write"]] + older[: limit - 1]
    state["cut"] = base.get("cut", False) or len(older) > limit - 1
    return state


def decide(rule, mark, claim):
    """None if the claim may write over the mark, else the reason why not."""
    if claim["token"] > mark["token"]:
        return None
    if claim["token"] < mark["token"]:
        return "stale"
    if claim.get("lease", "") != mark.get("lease", ""):
        return "conflict"
    return "spent" if rule == "OncePerToken" else None


# --- reading


def whole_trailer(stored):
    """Whether an object ends with a trailer whose sum holds, and not just with its magic."""
    if stored.endswith(MAGIC + MEMBER_END):
        stored = stored[: -len(MEMBER_END)]
    if not stored.endswith(MAGIC) or len(stored) < 4 + len(MAGIC):
        return False
    rest = stored[: -len(MAGIC)]
    (size,) = struct.unpack(">I", rest[-4:])
    rest = rest[:-4]
    if size < HEAD.size + SUM or size > len(rest):
        return False
    sealed = rest[len(rest) - size :]
    return hashlib.sha256(sealed[:-SUM]).digest()[:SUM] == sealed[-SUM:]


def unseal(key, stored):
    """Splits a sealed object into its state and its body."""
    member = stored.endswith(MAGIC + MEMBER_END)
    if member:
        stored = stored[: -len(MEMBER_END)]
    if not stored.endswith(MAGIC):
        raise Damaged("its trailer is missing")
    rest = stored[: -len(MAGIC)]
    if len(rest) < 4:
        raise Damaged("its trailer is cut")
    (size,) = struct.unpack(">I", rest[-4:])
    rest = rest[:-4]
    if size < HEAD.size + SUM or size > len(rest):
        raise Damaged("its trailer is cut or its length is wrong")
    body, sealed = rest[: len(rest) - size], rest[len(rest) - size :]
    if member:
        n = size + 4 + len(MAGIC)
        head = MEMBER.pack(MEMBER_HEAD, 4 + n, b"FP", n)
        if not body.endswith(head):
            raise Damaged("its trailer is not in a member of a gzip file")
        body = body[: -len(head)]
    state = parse_payload(key, sealed, body)
    if member != (state["kind"] == "gzip"):
        raise Damaged("its trailer stands where one of its kind does not")
    return state, body


def parse_payload(key, sealed, body):
    """Checks a seal against itself, the key and the body."""
    fields, check = sealed[:-SUM], sealed[-SUM:]
    if hashlib.sha256(fields).digest()[:SUM] != check:
        raise Damaged("its trailer does not match its own checksum")
    version, kind, flags, count, keysum, token, write, length, crc, lease_length = HEAD.unpack(fields[: HEAD.size])
    variable = fields[HEAD.size :]
    content = None
    if NAMES.get(kind) == "gzip":
        if len(variable) < 8:
            raise Damaged("the lengths in its trailer do not add up")
        variable, content = variable[:-8], struct.unpack(">Q", variable[-8:])[0]
    if version != VERSION or flags & ~1:
        raise Damaged("its trailer has version %d, flags %d, which are unknown" % (version, flags))
    if len(variable) != lease_length + 16 * count:
        raise Damaged("the lengths in its trailer do not add up")
    lease, recent = variable[:lease_length], variable[lease_length:]
    if keysum != hashlib.sha256(key.encode("utf-8")).digest():
        raise Damaged("its trailer belongs to another key")
    if length != len(body):
        raise Damaged("its body has %d bytes, its trailer says %d" % (len(body), length))
    if kind not in NAMES:
        raise Damaged("its trailer has the unknown kind %d" % kind)
    if not 1 <= token <= MAX_TOKEN:
        raise Damaged("its trailer has the invalid token %d" % token)
    if not valid_lease(lease):
        raise Damaged("its trailer has an invalid lease ID")
    if crc32c(body) != crc:
        raise Damaged("its body does not match the checksum in its trailer")
    if content is not None:
        try:
            unpacked = len(gzip.decompress(body))
        except (OSError, EOFError, zlib.error):
            raise Damaged("its body is no gzip file")
        if unpacked != content:
            raise Damaged("its body does not unpack to the length in its trailer")
    return {
        "kind": NAMES[kind],
        "token": token,
        "lease": lease.decode("utf-8"),
        "write": write.hex(),
        "recent": [recent[i : i + 16].hex() for i in range(0, len(recent), 16)],
        "cut": bool(flags & 1),
    }


def verify(key, stored, given):
    """The state and the body of an object, from all of its bytes and its metadata.

    Raises Damaged if they cannot be verified.
    """
    reserved = {}
    for name, value in given.items():
        if name.lower().startswith("fencing-"):
            reserved[name.lower()] = value
    mode = reserved.get("fencing-mode", "")
    if not mode:
        if reserved:
            raise Damaged("its metadata has fencing fields but no fencing-mode")
        if whole_trailer(stored):
            raise Damaged("its trailer is there and its metadata is gone")
        return {"kind": "unfenced"}, stored
    if mode == "plain":
        return parse_plain(reserved, stored), stored
    state, body = unseal(key, stored)
    want = metadata(state)
    for name in ("fencing-mode", "fencing-token", "fencing-lease", "fencing-write"):
        if reserved.get(name, "") != want.get(name, ""):
            raise Damaged("its trailer and its metadata disagree about " + name)
    if state["kind"] == "pointer":
        state["pointer"] = parse_pointer(body)
    return state, body


def parse_plain(reserved, body):
    state = {"kind": "plain", "token": parse_token(reserved.get("fencing-token")), "recent": []}
    escaped = reserved.get("fencing-lease", "")
    if re.search("%(?![0-9A-Fa-f]{2})", escaped):
        raise Damaged("its metadata has an invalid lease ID")
    lease = urllib.parse.unquote_to_bytes(escaped)
    if not valid_lease(lease):
        raise Damaged("its metadata has an invalid lease ID")
    state["lease"] = lease.decode("utf-8")
    state["write"] = parse_write(reserved.get("fencing-write"))
    recent = reserved.get("fencing-recent", "")
    state["cut"] = recent.endswith("+")
    if state["cut"]:
        recent = recent[:-1]
    if recent:
        state["recent"] = [parse_write(w) for w in recent.split(",")]
    state["md5"] = reserved.get("fencing-md5", "")
    if state["md5"] != hashlib.md5(body).hexdigest():
        raise Damaged("its body does not match the MD5 in its metadata")
    return state


def parse_pointer(body):
    try:
        p = json.loads(body.decode("utf-8"))
    except ValueError:
        raise Damaged("its pointer cannot be read")
    if not isinstance(p, dict) or not isinstance(p.get("data"), str) or not p["data"]:
        raise Damaged("its pointer cannot be read")
    length, crc = p.get("length", 0), p.get("crc32c")
    if isinstance(length, bool) or not isinstance(length, int) or not isinstance(crc, str) or not re.fullmatch("[0-9a-f]{8}", crc):
        raise Damaged("its pointer cannot be read")
    parse_token(p.get("token"))
    return p


def pointer(data, token, length, crc, settled=None, later=None):
    """The body of a pointer. settled and later are (token, datetime) or None."""
    p = {"note": "fenced pointer; the object's bytes are under the key in data", "data": data, "token": str(token)}
    if length:
        p["length"] = length
    p["crc32c"] = "%08x" % crc
    for name, since in (("settled", settled), ("later", later)):
        if since:
            at = since[1].astimezone(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ")
            p[name] = {"token": str(since[0]), "at": at}
    return json.dumps(p, ensure_ascii=False, separators=(",", ":")).encode("utf-8")


def data_key(prefix, key, token, write):
    """Where the data of a pointer lies, below a handle's internal folder."""
    return "%sdata/%s/%019d-%s" % (prefix, hashlib.sha256(key.encode("utf-8")).hexdigest(), token, write)


# --- writing to a store


class Unreadable(Exception):
    """The state of an object could not be learned."""


def http_request(url, method, headers=None, body=None):
    """One request, sent once. The answer is (status, headers, body), or (0, {}, b"") if there is none."""
    u = urllib.parse.urlsplit(url)
    connection = http.client.HTTPConnection(u.hostname, u.port, timeout=30)
    try:
        connection.request(method, u.path, body, headers or {})
        answer = connection.getresponse()
        return answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read()
    except (OSError, http.client.HTTPException):
        return 0, {}, b""
    finally:
        connection.close()


def error_code(body):
    found = re.search(b"<Code>([^<]*)</Code>", body)
    return found.group(1).decode() if found else ""


def strong(etag):
    inner = etag[1:-1] if len(etag) > 1 and etag[0] == etag[-1] == '"' else etag
    return inner not in ("", "*") and not inner.startswith("W/") and '"' not in inner


def read_state(url, key):
    """Section 6, step 1: the state, the ETag and how old that version is; (None, "", 0) of an absent object."""
    asking = {"Accept-Encoding": "identity", "Cache-Control": "no-cache, no-store, no-transform"}
    status, headers, stored = http_request(url, "GET", asking)
    if status == 404 and error_code(stored) == "NoSuchKey":
        return None, "", 0
    if status != 200 or not strong(headers.get("etag", "")):
        raise Unreadable("GET was answered with %d and the ETag %r" % (status, headers.get("etag")))
    given = {n[len("x-amz-meta-") :]: v for n, v in headers.items() if n.startswith("x-amz-meta-")}
    return verify(key, stored, given)[0], headers["etag"], age(headers)


def age(headers):
    """How many seconds ago a version was stored, by the store's own clock; 0 if it does not say."""
    try:
        at, now = (email.utils.parsedate_to_datetime(headers[n]) for n in ("last-modified", "date"))
        return (now - at).total_seconds()
    except (KeyError, TypeError, ValueError):
        return 0


def made(state, write):
    return state is not None and (state.get("write") == write or write in state.get("recent", []))


def judge(write, base, now, doubt, older):
    """The table of section 6, step 5. base and now begin with the state and the ETag. older
    says that the version now was stored before the write was first sent."""
    if made(now[0], write):
        return "written"
    if now[1] == base[1]:
        return "again" if doubt else "contradiction"
    if base[0] is None:
        reaches = now[0] is not None and not now[0].get("cut", False)
    else:
        reaches = made(now[0], base[0].get("write"))
    bare = now[0] is None or now[0].get("kind") == "unfenced"
    if reaches or older and not bare:
        return "decide"
    return "decide" if bare and not doubt else "unknown"


def mixed(state, kind):
    return state is not None and state["kind"] not in (kind, "tombstone")


def put(url, key, claim, rule, body, trusting=False):
    """Writes a sealed object. "" is success; else it is the reason.

    trusting takes the first 412 for "not written", which section 6 forbids: the
    control of the tests.
    """
    write = os.urandom(16).hex()
    contradictions = 0
    try:
        base = read_state(url, key)
    except (Unreadable, Damaged):
        return "unavailable"
    for _ in range(128):
        if mixed(base[0], "sealed"):
            return "unfenced" if base[0]["kind"] == "unfenced" else "invalid"
        mark = {"token": base[0]["token"], "lease": base[0]["lease"]} if base[0] else {"token": 0}
        reason = decide(rule, mark, claim)
        if reason:
            return reason
        stored, m = seal(key, follow(base[0], "sealed", claim["token"], claim.get("lease", ""), write), body)
        headers = {"x-amz-meta-" + name: value for name, value in m.items()}
        headers.update({"If-Match": base[1]} if base[1] else {"If-None-Match": "*"})
        doubt, verdict, first = False, "again", time.monotonic()
        for sending in range(8):
            status, answered, text = http_request(url, "PUT", headers, stored)
            code = error_code(text)
            if status == 200 and strong(answered.get("etag", "")):
                return ""
            race = status == 409 and code in ("ConditionalRequestConflict", "OperationAborted", "")
            if 400 <= status < 500 and status not in (404, 408, 412, 429) and not race and sending == 0:
                return "outcome_unknown" if contradictions else "unavailable"
            doubt = doubt or not (status == 412 or status == 404 and code == "NoSuchKey")
            try:
                now = read_state(url, key)
            except (Unreadable, Damaged):
                return "outcome_unknown"
            verdict = "decide" if trusting and status == 412 else judge(write, base, now, doubt, now[2] > time.monotonic() - first + 2)
            if verdict != "again":
                break
        if verdict == "written":
            return ""
        if verdict in ("unknown", "again"):
            return "outcome_unknown"
        contradictions = contradictions + 1 if verdict == "contradiction" else 0
        if contradictions == 3:
            return "outcome_unknown"
        base = now
    return "unavailable"


# --- the program


def answer(request):
    if request["do"] == "decide":
        return {"reason": decide(request["rule"], request["mark"], request["claim"]) or ""}
    if request["do"] == "seal":
        state = request["state"]
        body = base64.b64decode(request["body"])
        if request.get("pack"):
            body = gzip.compress(body, mtime=0)
        if "pointer" in request:
            p = request["pointer"]
            body = pointer(p["data"], p["token"], p["length"], p["crc"])
        stored, m = seal(request["key"], state, body, request.get("metadata"))
        return {"object": base64.b64encode(stored).decode(), "metadata": m}
    if request["do"] == "follow":
        return {"state": follow(request["base"], request["kind"], request["token"], request["lease"], request["write"])}
    if request["do"] == "put":
        return {"reason": put(request["url"], request["key"], request["claim"], request["rule"], base64.b64decode(request["body"]), request.get("trusting", False))}
    if request["do"] == "judge":
        sides = [(s.get("state"), s.get("etag", "")) for s in (request["base"], request["now"])]
        return {"verdict": judge(request["write"], sides[0], sides[1], request["doubt"], request.get("older", False))}
    if request["do"] == "mixed":
        return {"mixed": mixed({"kind": request["object"]}, request["writer"])}
    if request["do"] == "gunzip":
        return {"body": base64.b64encode(gzip.decompress(base64.b64decode(request["object"]))).decode()}
    if request["do"] == "dataKey":
        return {"key": data_key(request["prefix"], request["key"], request["token"], request["write"])}
    try:
        state, body = verify(request["key"], base64.b64decode(request["object"]), request["metadata"])
    except Damaged as e:
        return {"damaged": str(e)}
    return {"state": state, "body": base64.b64encode(body).decode()}


def check(path):
    """Checks test vectors; the exit status is the number of those that fail."""
    failed = 0
    with open(path, encoding="utf-8") as f:
        vectors = json.load(f)
    for v in vectors:
        got = answer({"do": "verify", "key": v["key"], "object": v["object"], "metadata": v["metadata"]})
        if v.get("damaged"):
            good = "damaged" in got
        else:
            good = got.get("body") == v["body"] and all(got["state"].get(k) == x for k, x in v["state"].items())
        if good and "again" in v:  # the same bytes come out of sealing
            again = answer({"do": "seal", "key": v["key"], "body": v["body"], "state": v["state"], "metadata": v["again"]})
            good = again["object"] == v["object"] and again["metadata"] == v["metadata"]
        if not good:
            failed += 1
            print("%s: %s" % (v["name"], json.dumps(got)), file=sys.stderr)
    print("%d vectors, %d failed" % (len(vectors), failed))
    return failed


def main():
    if sys.argv[1:2] == ["check"]:
        sys.exit(1 if check(sys.argv[2]) else 0)
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
