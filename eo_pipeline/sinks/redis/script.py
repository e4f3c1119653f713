"""The one script that publishes a checkpoint.

Redis runs a script alone: whoever reads sees all of it or nothing. But it does not take back what
a script wrote before an error, so that everything an error could come from is tried first.
"""

#: ``KEYS``: ledger, schema, dead letters, then one a row. ``ARGV``: version, transaction id,
#: parent, entry, target, form, time to live, new columns, number of dead letters, a packed list of
#: where each row came from (its Kafka topic and partition, or nothing); then a packed list of
#: fields and values for each dead letter; then for each row one (hash) or its text (json).
PUBLISH = """
local ledger, schema, letters = KEYS[1], KEYS[2], KEYS[3]
local version, transaction, parent, entry, target = ARGV[1], ARGV[2], ARGV[3], ARGV[4], ARGV[5]
local form, ttl, letter_count = ARGV[6], ARGV[7], tonumber(ARGV[9])
local origins = cmsgpack.unpack(ARGV[10])
local first_key, first_letter = 4, 11
local first_row = first_letter + letter_count

-- 1. look: this very entry, another one, or a head that is not the parent
local held = redis.call('HGET', ledger, version)
if held then
  local id = cjson.decode(held).entry.transaction_id
  return {id == transaction and 'already committed' or 'fenced', id}
end
if (redis.call('HGET', ledger, 'head') or '') ~= parent then
  return {'fenced', ''}
end

-- 2. try: every type and every permission, before the first write
local function denied(command, key, ...)
  return not redis.acl_check_cmd(command, key, ...) and {'denied', command, key}
end
local function misfit(key, wanted)
  local found = redis.call('TYPE', key).ok
  return found ~= 'none' and found ~= wanted and {'wrong type', key, found}
end
local function obstacle(key)
  if form == 'json' then
    return misfit(key, 'string') or denied('SET', key, 'v', 'PX', '1') or denied('GET', key)
  end
  return misfit(key, 'hash') or denied('DEL', key) or denied('HSET', key, 'f', 'v')
    or denied('HMGET', key, 'f') or (ttl ~= '' and denied('PEXPIRE', key, '1'))
end
-- offsets of different partitions say nothing of which row is the newer one
local function moved(key, origin)
  if origin == '' then return false end
  local topic, partition
  if form == 'json' then
    local ok, document = pcall(cjson.decode, redis.call('GET', key) or '{}')
    if ok and type(document) == 'table' then
      topic, partition = document['_eo_topic'], document['_eo_partition']
    end
    if type(partition) == 'number' then partition = string.format('%d', partition) end
  else
    local held = redis.call('HMGET', key, '_eo_topic', '_eo_partition')
    topic, partition = held[1], held[2]
  end
  if type(topic) ~= 'string' or type(partition) ~= 'string' then return false end
  local before = topic .. ' partition ' .. partition
  return before ~= origin and {'moved', key, before .. ', the new one from ' .. origin}
end
local found = misfit(schema, 'hash') or misfit(letters, 'stream')
  or denied('HSET', ledger, 'f', 'v') or denied('HSET', schema, 'f', 'v')
  or denied('XADD', letters, '*', 'f', 'v')
if found then return found end
for i = first_key, #KEYS do
  found = obstacle(KEYS[i]) or moved(KEYS[i], origins[i - first_key + 1])
  if found then return found end
end
if letter_count > 0 and redis.call('EXISTS', letters) == 1 then
  local info = redis.call('XINFO', 'STREAM', letters)
  for i = 1, #info, 2 do
    -- no entry can follow one with the last of all ids
    if info[i] == 'last-generated-id' and info[i + 1]:find('^18446744073709551615') then
      return {'wrong type', letters, 'full stream'}
    end
  end
end
local now = redis.call('TIME')

-- 3. write. Redis asks only before a script's first write whether memory, disk and replicas allow
-- it, and not of a DEL: so the first one changes nothing and may be denied.
redis.call('HSET', ledger, 'target', target)
local columns = cmsgpack.unpack(ARGV[8])
for i = 1, #columns, 2 do
  redis.call('HSET', schema, columns[i], columns[i + 1])
end
for i = first_letter, first_row - 1 do
  redis.call('XADD', letters, '*', unpack(cmsgpack.unpack(ARGV[i])))
end
local function put_hash(key, fields)
  redis.call('DEL', key)
  for from = 1, #fields, 1000 do -- Lua's stack is bounded
    redis.call('HSET', key, unpack(fields, from, math.min(from + 999, #fields)))
  end
  if ttl ~= '' then redis.call('PEXPIRE', key, ttl) end
end
local function put_text(key, text)
  if ttl == '' then redis.call('SET', key, text) else redis.call('SET', key, text, 'PX', ttl) end
end
for i = first_key, #KEYS do
  local value = ARGV[first_row + i - first_key]
  if form == 'json' then
    put_text(KEYS[i], value)
  else
    put_hash(KEYS[i], cmsgpack.unpack(value))
  end
end

-- 4. the entry, and the head that points to it
local stamped = '{"committed_at_us":' .. now[1] .. string.format('%06d', now[2])
  .. ',"entry":' .. entry .. '}'
redis.call('HSET', ledger, version, stamped, 'head', version .. ' ' .. transaction)
return {'committed', ''}
"""
