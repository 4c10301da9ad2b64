package redislock

import (
	"context"
	"crypto/sha1"
	"encoding/hex"
	"strings"
)

// script is a Lua program that the server stores under its SHA-1. Every script
// reads and checks all it needs before it writes, because Redis does not roll
// back what a script wrote before it failed.
type script struct{ text, sha string }

func newScript(text string) script {
	sum := sha1.Sum([]byte(text))
	return script{text: text, sha: hex.EncodeToString(sum[:])}
}

// run sends EVALSHA, and the text if the server does not know it.
func (s script) run(ctx context.Context, do Do, keys []string, args ...any) (any, error) {
	command := make([]any, 0, 3+len(keys)+len(args))
	command = append(command, "EVALSHA", s.sha, len(keys))
	for _, k := range keys {
		command = append(command, k)
	}
	command = append(command, args...)
	answer, err := do(ctx, command...)
	if err != nil && strings.HasPrefix(err.Error(), "NOSCRIPT") {
		command[0], command[1] = "EVAL", s.text
		answer, err = do(ctx, command...)
	}
	return answer, err
}

// prelude has the functions that the scripts share. Numbers above 2^53 lose
// digits in Lua, so tokens stay strings of decimal digits and are compared by
// length, then bytes.
const prelude = `
local function clock()
  local t = redis.call('TIME')
  return t[1] * 1000 + math.floor(t[2] / 1000)
end
local function below(a, b)
  if #a ~= #b then return #a < #b end
  return a < b
end
local function base(ms) return string.format('%.0f', ms * 1024) end
local function lease(key)
  local l = redis.call('HMGET', key, 'v', 'id', 'token', 'owner', 'meta', 'at')
  if (l[1] ~= '1' or not l[2] or not l[3]) and redis.call('EXISTS', key) == 1 then
    return redis.error_reply('ERR fencepost: the lease key ' .. key .. ' holds something else')
  end
  return l
end
local function line(queue, till) -- an error if something else is there
  redis.call('ZCARD', queue)
  redis.call('HLEN', till)
end
-- Without the right to publish, nobody is woken. Few commands of a script cost as
-- much, so watchers are notified only if :watched says that there are any.
local function tell(channel, payload)
  redis.pcall('PUBLISH', channel, payload)
end
-- The lease is kept for the process that has waited for longest, which is told so, and
-- watchers are told.
local function pass(kept, queue, till, watched, process_channel, watchers_channel, resource)
  local now = clock()
  for _, process in ipairs(redis.call('ZRANGE', queue, 0, -1)) do
    local ends = redis.call('HGET', till, process)
    redis.call('ZREM', queue, process)
    redis.call('HDEL', till, process)
    if ends and tonumber(ends) > now then
      redis.call('SET', kept, process, 'PX', 100)
      tell(process_channel .. process, resource)
      break
    end
  end
  if redis.call('EXISTS', watched) == 1 then tell(watchers_channel, '') end
end
-- A counter kept for a week has its expiry renewed once a day of it is over.
local function keep(key, token, now)
  if below(token, base(now + 604800000)) then
    redis.call('SET', key, token, 'PX', 604800000)
  else
    redis.call('SET', key, token)
  end
end
`

// time: KEYS any key of the slot. It returns what TIME does.
var timeScript = newScript(prelude + `
local now = clock()
return {tostring(math.floor(now / 1000)), tostring(now % 1000 * 1000)}
`)

// acquire: KEYS lease, counter, spent, kept, queue, until, watched.
// ARGV id, owner, metadata, TTL in ms, not-after in ms, highest server time seen
// in ms, "1" if waiting, process, channel of the watchers.
var acquireScript = newScript(prelude + `
local now = clock()
if now >= tonumber(ARGV[5]) then return {'late', tostring(now)} end
-- Usually there is only the counter: one check instead of six.
local lone = redis.call('EXISTS', KEYS[1], KEYS[3], KEYS[4], KEYS[5], KEYS[6], KEYS[7]) == 0
if not lone then
  if redis.call('EXISTS', KEYS[3]) == 1 then return {'spent', tostring(now)} end
  local l = lease(KEYS[1])
  if l.err then return l end
  if l[2] == ARGV[1] and l[4] ~= ARGV[2] then return {'in use', tostring(now), l[4]} end
  if l[2] == ARGV[1] then
    if redis.call('PTTL', KEYS[1]) < tonumber(ARGV[4]) then redis.call('PEXPIRE', KEYS[1], ARGV[4]) end
    return {'granted', tostring(now), l[3], l[6]}
  end
  if l[2] then return {'held', tostring(now), l[3], l[2], l[4], l[5], tostring(redis.call('PTTL', KEYS[1]))} end
  if ARGV[7] == '1' then
    local kept = redis.call('GET', KEYS[4])
    if kept and kept ~= ARGV[8] then return {'kept', tostring(now)} end
  end
end
local last = redis.call('GET', KEYS[2])
if last and not string.find(last, '^[1-9]%d*$') then
  return redis.error_reply('ERR fencepost: the counter ' .. KEYS[2] .. ' holds something else')
end
if not last and now < tonumber(ARGV[6]) then return {'back', tostring(now)} end
if last and not below(last, '9223372036854775806') then return {'full', tostring(now), last} end
-- A right may be missing: what may fail comes before the lease is there, and
-- while there is none this PEXPIRE changes nothing.
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if not lone then
  line(KEYS[5], KEYS[6])
  redis.call('DEL', KEYS[4])
  redis.call('ZREM', KEYS[5], ARGV[8])
  redis.call('HDEL', KEYS[6], ARGV[8])
end
local token = base(now)
if last and not below(last, token) then
  redis.call('INCR', KEYS[2])
  token = redis.call('GET', KEYS[2])
  keep(KEYS[2], token, now)
elseif last and redis.call('PTTL', KEYS[2]) > 518400000 then
  redis.call('SET', KEYS[2], token, 'KEEPTTL')
else
  keep(KEYS[2], token, now)
end
redis.call('HSET', KEYS[1], 'v', '1', 'id', ARGV[1], 'token', token, 'owner', ARGV[2], 'meta', ARGV[3], 'at', tostring(now))
redis.call('PEXPIRE', KEYS[1], ARGV[4])
if not lone and redis.call('EXISTS', KEYS[7]) == 1 then tell(ARGV[9], '') end
return {'granted', tostring(now), token, tostring(now)}
`)

// renew: KEYS one lease key per item. ARGV id, token, TTL in ms for each. The
// later end wins. A foreign value under an item's key is that item's error only.
var renewScript = newScript(`
local out = {}
for i, key in ipairs(KEYS) do
  local l = redis.pcall('HMGET', key, 'v', 'id', 'token')
  if l.err then
    out[i] = l.err
  elseif l[1] == '1' and l[2] == ARGV[3*i-2] and l[3] == ARGV[3*i-1] then
    if redis.call('PTTL', key) < tonumber(ARGV[3*i]) then redis.call('PEXPIRE', key, ARGV[3*i]) end
    out[i] = 'extended'
  else
    out[i] = 'over'
  end
end
return out
`)

// release: KEYS lease, spent, kept, queue, until, watched.
// ARGV id, token or "", process channel prefix, channel of the watchers,
// resource.
var releaseScript = newScript(prelude + `
local l = lease(KEYS[1])
if l.err then return l end
local seen = redis.call('EXISTS', KEYS[4], KEYS[5], KEYS[6]) > 0
if seen then line(KEYS[4], KEYS[5]) end
if ARGV[2] == '' then redis.call('SET', KEYS[2], '1', 'PX', 3600000) end
if l[2] ~= ARGV[1] or (ARGV[2] ~= '' and l[3] ~= ARGV[2]) then return 0 end
if seen then
  pass(KEYS[3], KEYS[4], KEYS[5], KEYS[6], ARGV[3], ARGV[4], ARGV[5])
end
redis.call('DEL', KEYS[1]) -- last, so that what was refused a command has freed nothing
return 1
`)

// watch: KEYS lease, kept, queue, until, watched. ARGV id or "", process. It puts
// a waiter in the queue, records that there is a watcher, and returns who has the
// lease.
var watchScript = newScript(prelude + `
local now = clock()
local l = lease(KEYS[1])
if l.err then return l end
if ARGV[1] == '' then redis.pcall('SET', KEYS[5], '1', 'PX', 3600000) end -- a client without the right to it asks on its own
local kept = redis.call('GET', KEYS[2])
if (not l[2] or l[2] == ARGV[1]) and (ARGV[1] == '' or not kept or kept == ARGV[2]) then return {'free', tostring(now)} end
if ARGV[1] ~= '' then
  redis.call('PEXPIRE', KEYS[3], 10000) -- without the right to it nothing is left behind
  redis.call('ZADD', KEYS[3], 'NX', now, ARGV[2])
  redis.call('HSET', KEYS[4], ARGV[2], tostring(now + 5000))
  redis.call('PEXPIRE', KEYS[3], 10000)
  redis.call('PEXPIRE', KEYS[4], 10000)
end
if not l[2] then return {'kept', tostring(now), tostring(redis.call('PTTL', KEYS[2]))} end
return {'held', tostring(now), l[3], l[2], l[4], l[5], tostring(redis.call('PTTL', KEYS[1]))}
`)

// advance: KEYS lease, counter. ARGV token.
var advanceScript = newScript(prelude + `
local now = clock()
local l = lease(KEYS[1])
if l.err then return l end
if l[2] and below(l[3], ARGV[1]) then
  return {'held', tostring(now), l[3], l[2], l[4], l[5], tostring(redis.call('PTTL', KEYS[1]))}
end
local last = redis.call('GET', KEYS[2])
if last and not string.find(last, '^[1-9]%d*$') then
  return redis.error_reply('ERR fencepost: the counter ' .. KEYS[2] .. ' holds something else')
end
local token = ARGV[1]
if last and below(token, last) then token = last end
keep(KEYS[2], token, now)
return {'reached', tostring(now), token}
`)

// cut: KEYS lease, counter, cut, spent, kept, queue, until, watched.
// ARGV lease ID and token as they were read, or "" and "", record, highest server time seen in
// ms, request ID, process channel prefix, channel of the watchers, resource.
var cutScript = newScript(prelude + `
local now = clock()
local done = redis.call('HMGET', KEYS[3], 'id', 'token', 'at', 'left', 'record')
if done[1] then return {'done', tostring(now), done[1], done[2], done[3], done[4], done[5]} end
local l = lease(KEYS[1])
if l.err then return l end
if (l[2] or '') ~= ARGV[1] or (l[3] or '') ~= ARGV[2] then return {'changed', tostring(now)} end
local last = redis.call('GET', KEYS[2])
for _, token in ipairs({last or '1', l[3] or '1'}) do
  if not string.find(token, '^[1-9]%d*$') then
    return redis.error_reply('ERR fencepost: the counter ' .. KEYS[2] .. ' or the lease holds something else')
  end
end
if l[3] and (not last or below(last, l[3])) then last = l[3] end
if not last and now < tonumber(ARGV[4]) then return {'back', tostring(now)} end
if last and not below(last, '9223372036854775806') then return {'full', tostring(now), last} end
-- A right may be missing: what may fail comes first. Until the lease is deleted nothing of this
-- is harmful, but for the record, and the right to delete is tried on its key before it is there.
redis.call('DEL', KEYS[3])
local seen = redis.call('EXISTS', KEYS[6], KEYS[7], KEYS[8]) > 0
if seen then line(KEYS[6], KEYS[7]) end
local token = base(now)
if last and not below(last, token) then
  redis.call('SET', KEYS[2], last)
  redis.call('INCR', KEYS[2])
  token = redis.call('GET', KEYS[2])
end
keep(KEYS[2], token, now)
if l[2] then redis.call('SET', KEYS[4], ARGV[5], 'PX', 3600000) end
if l[2] and seen then pass(KEYS[5], KEYS[6], KEYS[7], KEYS[8], ARGV[6], ARGV[7], ARGV[8]) end
local t = redis.call('TIME')
local id, left = string.format('%.0f', t[1] * 1000000 + t[2]), tostring(redis.call('PTTL', KEYS[1]))
redis.call('PEXPIRE', KEYS[3], 2592000000) -- there is none yet: it tries the right
redis.call('HSET', KEYS[3], 'v', '1', 'id', id, 'token', token, 'at', tostring(now), 'left', left, 'record', ARGV[3])
redis.call('PEXPIRE', KEYS[3], 2592000000)
redis.call('DEL', KEYS[1])
return {'cut', tostring(now), id, token, tostring(now), left, ARGV[3]}
`)
