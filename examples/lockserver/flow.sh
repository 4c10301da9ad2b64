#!/bin/sh
# The whole story with curl: acquire, contend, renew, expire, take over, a stale
# write and a forged token that are refused, a force unlock that is audited. It needs the lock server
# of "go run ./examples/lockserver -demo":
#
#   URL=http://127.0.0.1:12345 TOKEN=... sh examples/lockserver/flow.sh
#
# It stops at the first response that is not the expected one.
set -eu

period=${PERIOD:-flow-$$}
resource=demo:billing-close:$period
response=$(mktemp)
trap 'rm -f "$response"' EXIT

# request METHOD PATH STATUS [BODY] [CURL OPTION...]: the response is kept.
request() {
	method=$1 path=$2 status=$3 body=${4-}
	shift 3
	[ $# -eq 0 ] || shift
	if [ -n "$body" ]; then
		set -- -H 'Content-Type: application/json' --data-binary "$body" "$@"
	fi
	got=$(curl -sS -o "$response" -w '%{http_code}' -X "$method" -H "Authorization: Bearer $TOKEN" "$@" "$URL$path")
	[ "$got" = "$status" ] || fail "$method $path: $got instead of $status: $(cat "$response")"
}

fail() {
	echo "flow.sh: $*" >&2
	exit 1
}

# has TEXT: the response has it.
has() { grep -qF -- "$1" "$response" || fail "no $1 in: $(cat "$response")"; }

# text NAME: a member of the response that is a string.
text() { sed -n "s/.*\"$1\":\"\\([^\"]*\\)\".*/\\1/p" "$response"; }

acquire() { # status, owner, seconds, more members
	request POST /v1/locks/acquire "$1" "{\"resource\":\"$resource\",\"ownerId\":\"$2\",\"ttlSeconds\":$3${4-}}"
}

# write TOKEN LEASE PROOF STATUS: a write to the fenced resource.
write() {
	request PUT "/demo/closes/$period" "$4" '' -H "X-Fencing-Token: $1" -H "X-Fencing-Lease: $2" -H "X-Fencing-Proof: $3" \
		-H "X-Fencing-Resource: demo%3Abilling-close%3A$period" --data-binary "written under $1"
}

echo "1. worker-a acquires"
acquire 200 worker-a 5
has '"acquired":true'
a=$(text leaseId) a_token=$(text token) a_proof=$(text proof)

echo "2. worker-b contends: refused; the response says who has it"
acquire 409 worker-b 60
has '"acquired":false'
has '"ownerId":"worker-a"'

echo "3. worker-a renews and writes"
request POST "/v1/locks/$a/renew" 200
has '"state":"extended"'
write "$a_token" "$a" "$a_proof" 204

echo "4. worker-a pauses; its lease expires, and worker-b, who waits, takes over"
acquire 200 worker-b 60 ',"waitSeconds":30'
has '"acquired":true'
b=$(text leaseId) b_token=$(text token) b_proof=$(text proof)
[ "$b_token" -gt "$a_token" ] || fail "token $b_token after $a_token"
write "$b_token" "$b" "$b_proof" 204

echo "5. worker-a resumes: its renewal and its write are refused"
request POST "/v1/locks/$a/renew" 404 '{"ttlSeconds":60}'
has 'problem/lease_over'
write "$a_token" "$a" "$a_proof" 412
has 'problem/stale'

echo "6. a token that nobody signed locks nobody out"
write 999999 "$a" "$a_proof" 400
has 'problem/invalid'
write "$b_token" "$b" "$b_proof" 204

echo "7. an operator cuts worker-b, whose write is refused at once"
request POST "/v1/resources/$resource/force-unlock" 200 "{\"actorId\":\"ada\",\"reason\":\"worker-b hangs\",\"leaseId\":\"$b\"}"
has '"raised":true'
write "$b_token" "$b" "$b_proof" 412
has 'problem/stale'
request GET "/v1/audit?prefix=$resource" 200
has '"actorId":"demo","reason":"worker-b hangs (in the name of ada)"'

echo "8. worker-c goes on; released once, and only once"
acquire 200 worker-c 60
has '"acquired":true'
c=$(text leaseId) c_token=$(text token) c_proof=$(text proof)
write "$c_token" "$c" "$c_proof" 204
request DELETE "/v1/locks/$c" 200
request DELETE "/v1/locks/$c" 404
has 'problem/lease_over'
echo "ok: tokens $a_token, $b_token, $c_token"
