"""Rows and marker in one write: the scripts, and why a delivery shows once.

    onceward:1:<pipeline>:<sink>       a hash, the marker of this sink of this pipeline
        log                            identity of the decision log that has claimed the names
        <transaction>                  how many of its rows are here
        floor:start, floor:epoch       transactions up to this START and epoch have ended; their fields are deleted
        released                       transactions from before the newest rewind
        former:start, former:epoch     the floor from before it

1. A script is one step: nobody sees a part of it, and what it wrote reaches the append-only file and the replicas as
   one MULTI/EXEC, of which a file that was cut off holds all or nothing ("Redis persistence", "EVAL scripts
   introduction: script effects replication").
2. A script that stops with an error keeps what it wrote before. So all that can go wrong is asked first, of each key:
   the right to its command, its type, and whether a stream has ids left. A lack of memory and the like stop a script
   only before its first write (scriptVerifyWriteCommandAllow in script.c). And the marker is written last.
3. A delivery is written only if the marker says that exactly the rows before it are here. If it is here already, only
   the marker is written again, so that waiting for the append-only file (WAITAOF) waits for it: that looks at the
   newest write of its own connection.
4. A marker's field is deleted only after COMPLETED of a later epoch, and the floor rises with it in the same step. What
   a paused process sends below the floor is refused: it has ended, nobody can say how. START comes before epoch: a
   rewound pipeline's epochs are lower, its START is not.
5. A server that lost what it had acknowledged shows by a claim that is gone, or by a marker that is behind what this
   side knows to be delivered. Both are errors ("loud"): data is lost, and nobody may be silent about it.
6. Where it may lose what it acknowledged (at most once), the delivery itself goes on. A marker that is behind says what
   is here, for rows and marker are lost together: the rows are written. So they are if the marker is gone ("first").
   But a server that evicts keys may have lost the marker alone: there a delivery that may have been tried before
   ("again") is left out, since it may be here. The new marker's floor is the START of the transaction: while one
   START's are sent, those of older ones have ended, and what a paused process sends of them is refused as under 4.

7. A pipeline that goes back on purpose says nothing any more of how far it had come ("released"), and lays the floor
   aside ("former"): in a copy of the log that is older than the marker the next STARTs are below it. Transactions are
   kept: one of them may be decided, and is then finished.
8. The former floor holds again from the first rows on of a transaction whose START is above it, and of which nothing
   was here: then positions go on above it, and all that is below has ended. What is sent between the rewind and those
   rows by a process that was paused since before both is not refused: its START could be that of such a copy.

9. Once the user has accepted a loss, the marker gets back what this side knows: of each transaction that the folder
   still knows, how many of its rows were acknowledged; and as floor, that all older ones have ended. So what follows is
   written, and what was lost is not waited for. A second loss shows as the first one did.

All keys are on one server: a Redis Cluster could not do this for keys in several slots.
"""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, Final, Literal

from onceward.core.errors import DataLossError, EpochConflictError, RetryableSinkError, SinkError

from .client import asking, redis_error
from .forms import FORMS

if TYPE_CHECKING:
    from onceward.core.contract.names import Scope, TransactionName

    from .client import RedisSettings
    from .forms import WrittenEntry

_log = logging.getLogger("onceward.redis")

Loss = Literal["loud", "first", "again"]
"""What to do if the server has lost what it had acknowledged (5 and 6)."""
CHOICES: Final = (
    "Restore its data; or, to continue without it, start with on_lost='skip', "
    "or run with durable=False until rows are written"
)
WAIT_SHARE: Final = 0.5
"""Share of the timeout of an answer for which the server itself waits for its disk and replicas."""


def _script(text: str) -> str:
    """Return a script without its comments, which would be sent with each call."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.lstrip().startswith("--"))


WRITE: Final = _script("""
local marker, log, name = KEYS[1], ARGV[1], ARGV[2]
local start, epoch, first, rows = tonumber(ARGV[3]), tonumber(ARGV[4]), tonumber(ARGV[5]), tonumber(ARGV[6])
local command, kind, loss = ARGV[7], ARGV[8], ARGV[9]
local known = redis.call('HGET', marker, 'log')
local made = {}
-- (5) (6) A claim that is gone is a loss.
if not known then
  if loss == 'loud' then return {'unclaimed'} end
  made = {'log', log, 'floor:start', start, 'floor:epoch', -1}
  if loss == 'again' then
    redis.call('HSET', marker, name, first + rows, unpack(made))
    return {'left out'}
  end
elseif known ~= log then
  return {'claimed', known}
end
local floor_start = tonumber(redis.call('HGET', marker, 'floor:start') or '-1')
local floor_epoch = tonumber(redis.call('HGET', marker, 'floor:epoch') or '-1')
-- (4) START before epoch: after a rewind the epochs are lower.
if start < floor_start or (start == floor_start and epoch <= floor_epoch) then return {'ended'} end
local here = redis.call('HGET', marker, name)
local former_start = tonumber(redis.call('HGET', marker, 'former:start') or '-1')
local former_epoch = tonumber(redis.call('HGET', marker, 'former:epoch') or '-1')
local higher = former_start > floor_start or (former_start == floor_start and former_epoch > floor_epoch)
-- (8) The first rows of a later writer end the time of the rewind.
if higher and start > former_start and not here then
  made = {'floor:start', former_start, 'floor:epoch', former_epoch}
end
local sent = tonumber(here or '0')
-- (3) Written again, so that WAITAOF on this connection waits for it.
if sent >= first + rows then
  redis.call('HSET', marker, name, sent)
  return {'already'}
end
-- (3) Neither in part nor with a gap.
if sent > first or (sent < first and loss == 'loud') then return {'behind', tostring(sent)} end
-- (2) Every reason to fail is asked for before the first write.
local function may(...) return not redis.acl_check_cmd or redis.acl_check_cmd(...) end
local asked = {}
for i = 2, #KEYS do
  local key = KEYS[i]
  if not asked[key] then
    asked[key] = true
    local all = may('HSET', marker, 'f', 'v')
    if command == 'XADD' then all = all and may('XADD', key, '*', 'f', 'v') and may('XINFO', 'STREAM', key) end
    if command == 'RPUSH' then all = all and may('RPUSH', key, 'v') end
    if command == 'HSET' then all = all and may('HSET', key, 'f', 'v') and may('HDEL', key, 'f') end
    if not all then return {'forbidden', key} end
    local is = redis.call('TYPE', key)['ok']
    if is ~= 'none' and is ~= kind then return {'type', key, is} end
    if is == 'stream' then
      local facts = redis.call('XINFO', 'STREAM', key)
      for n = 1, #facts, 2 do
        if facts[n] == 'last-generated-id' and facts[n + 1]:sub(1, 21) == '18446744073709551615-' then
          return {'full', key, facts[n + 1]}
        end
      end
    end
  end
end
local at = 10
for i = 2, #KEYS do
  local words = tonumber(ARGV[at])
  if words > 0 then redis.call(command, KEYS[i], unpack(ARGV, at + 1, at + words)) end
  at = at + 1 + words
  local gone = tonumber(ARGV[at])
  if gone > 0 then redis.call('HDEL', KEYS[i], unpack(ARGV, at + 1, at + gone)) end
  at = at + 1 + gone
end
-- (2) Last: an error before it leaves rows without a marker, never a marker without rows.
redis.call('HSET', marker, name, first + rows, unpack(made))
if not known or sent < first then return {'written', 'after a loss'} end
return {'written'}
""")
"""KEYS: the marker, the key of each row.

ARGV: log, transaction, its START, its epoch, first row, rows, command, type of the keys, "loud", "first" or "again";
then for each row the number of the command's words and these, and the number of fields to delete and these.
"""

CLAIM: Final = _script("""
local known = redis.call('HGET', KEYS[1], 'log')
if not known then
  redis.call('HSET', KEYS[1], 'log', ARGV[1])
  return ARGV[1]
end
return known
""")
"""KEYS: the marker. ARGV: log. Claims the names if nobody has; returns the log that has them."""

ACCEPT: Final = _script("""
local marker = KEYS[1]
local known = redis.call('HGET', marker, 'log')
if known and known ~= ARGV[1] then return known end
if not known then redis.call('HSET', marker, 'log', ARGV[1], 'floor:start', ARGV[2], 'floor:epoch', ARGV[3]) end
-- (9) Never less than the marker knows already.
for i = 4, #ARGV, 2 do
  local here = tonumber(redis.call('HGET', marker, ARGV[i]) or '0')
  if tonumber(ARGV[i + 1]) > here then redis.call('HSET', marker, ARGV[i], ARGV[i + 1]) end
end
return ARGV[1]
""")
"""KEYS: the marker. ARGV: log, START and epoch of the floor, transactions and how many of their rows were acknowledged.

Goes on behind what was acknowledged and is lost (9); returns the log that has the names.
"""

RELEASE: Final = _script("""
if redis.call('HGET', KEYS[1], 'log') ~= ARGV[1] then return redis.call('DEL', KEYS[1]) end
local kept = {}
for _, field in ipairs(redis.call('HKEYS', KEYS[1])) do
  if field:sub(1, 9) == 'onceward:' then kept[#kept + 1] = field end
end
-- (7)
redis.call('HSET', KEYS[1], 'released', table.concat(kept, ' '))
local function number(field) return tonumber(redis.call('HGET', KEYS[1], field) or '-1') or -1 end
local start, epoch, former = number('floor:start'), number('floor:epoch'), number('former:start')
if start > former or (start == former and epoch > number('former:epoch')) then
  redis.call('HSET', KEYS[1], 'former:start', start, 'former:epoch', epoch)
end
redis.call('HDEL', KEYS[1], 'floor:start', 'floor:epoch')
return #kept
""")
"""KEYS: the marker. ARGV: log. Forgets any other log's, and how far this one had come."""

PRUNE: Final = _script("""
local marker, start, epoch = KEYS[1], tonumber(ARGV[2]), tonumber(ARGV[3])
if redis.call('HGET', marker, 'log') ~= ARGV[1] then return 0 end
local floor_start = tonumber(redis.call('HGET', marker, 'floor:start') or '-1')
local floor_epoch = tonumber(redis.call('HGET', marker, 'floor:epoch') or '-1')
-- (4) The floor only rises.
if start > floor_start or (start == floor_start and epoch > floor_epoch) then
  redis.call('HSET', marker, 'floor:start', start, 'floor:epoch', epoch)
end
for i = 4, #ARGV do redis.call('HDEL', marker, ARGV[i]) end
return #ARGV - 3
""")
"""KEYS: the marker. ARGV: log, START and epoch of the floor, the fields to delete."""

EXPIRE: Final = _script("""
if redis.call('HGET', KEYS[1], 'log') ~= ARGV[1] then return 0 end
return redis.call('EXPIRE', KEYS[1], 604800)
""")
"""KEYS: the marker. ARGV: log. Lets the log's marker expire in a week."""


def marker_key(scope: Scope) -> bytes:
    """Return the key of the marker of a pipeline's sink."""
    return scope.head.encode()


def change_marker(settings: RedisSettings, script: str, scope: Scope, *arguments: object) -> Any:
    """Run CLAIM, ACCEPT, RELEASE, PRUNE or EXPIRE.

    Raises:
        RetryableSinkError: No answer, or the server cannot just now.
        SinkError: It refuses.
    """
    with asking(settings, f"cannot change the marker of sink {scope.sink}") as client:
        return client.execute_command("EVAL", script, 1, marker_key(scope), scope.log, *arguments)


def deliver(  # noqa: PLR0917 - of the delivery
    settings: RedisSettings,
    name: TransactionName,
    first: int,
    form: str,
    rows: list[WrittenEntry],
    loss: Loss,
    replicas: int,
) -> None:
    """Write rows if they are not there yet; if no loss is allowed, wait until they are on disk.

    Args:
        settings: Of the server.
        name: Of their transaction.
        first: Number of the first of them in it.
        form: Of the rows.
        rows: As they are written.
        loss: What to do if the server has lost what it had acknowledged.
        replicas: How many replicas must have them in their append-only files too.

    Raises:
        RetryableSinkError: No answer, or not on disk in time.
        DataLossError: The server has lost what it had acknowledged.
        EpochConflictError: Another decision log has taken the names meanwhile.
        SinkError: It refuses.
    """
    durable, what = loss == "loud", "cannot write rows"
    keys = [marker_key(name.scope), *(row.key for row in rows)]
    arguments: list[Any] = [name.scope.log, str(name), name.start, name.epoch, first, len(rows)]
    arguments += [FORMS[form], form, loss]
    for row in rows:
        arguments += [len(row.words), *row.words, len(row.gone), *row.gone]
    with asking(settings, what) as client:
        pipe = client.pipeline(transaction=False)
        # (3) One connection for both: WAITAOF waits for the newest write of its own.
        pipe.execute_command("EVAL", WRITE, len(keys), *keys, *arguments)
        if durable:
            pipe.execute_command("WAITAOF", 1, replicas, int(settings.timeout * WAIT_SHARE * 1000))
        answers = pipe.execute(raise_on_error=False)
    # (2) (3) A script that failed has written nothing; after a failed WAITAOF the next attempt finds the rows.
    for answer in answers:
        if isinstance(answer, Exception):
            raise redis_error(settings, what, answer)
    words = [word.decode(errors="replace") if isinstance(word, bytes) else word for word in answers[0]]
    _check(settings.shown, name, f"{first} to {first + len(rows) - 1}", form, words)
    if durable:
        # (3) Not an acknowledgement yet: the next attempt finds the rows, and waits again.
        here, there = answers[1]
        if here < 1 or there < replicas:
            raise RetryableSinkError(
                f"{settings.shown} has the rows, but not yet on disk: here {here} of 1, "
                f"at replicas {there} of {replicas}"
            )


def _check(where: str, name: TransactionName, numbers: str, form: str, words: list[str]) -> None:
    """Check the answer of the script WRITE; log a warning or raise if rows were lost."""
    marker = marker_key(name.scope).decode()
    match words:
        case ["written" | "already"]:
            return
        # (6) Only with durable=False: the loss was allowed, and is told.
        case ["written", _]:
            _log.warning("%s had lost rows of %s, or its marker %s: continuing", where, name, marker)
        case ["left out"]:
            _log.warning(
                "%s has lost %s. Rows %s of %s may have been written before: they are left out",
                where,
                marker,
                numbers,
                name,
            )
        # (5) A claim that this writer has made is gone.
        case ["unclaimed"]:
            raise DataLossError(
                f"{where} has lost {marker}, which this writer had made: it was emptied, or is another "
                f"server. {CHOICES}"
            )
        # (4) Sent by a process that was paused while a later epoch was completed.
        case ["ended"]:
            raise DataLossError(f"{where}: {name} is of an epoch that has ended, and its marker is deleted")
        case ["claimed", log]:
            raise EpochConflictError(f"{where}: decision log {log} has taken {marker} meanwhile")
        case ["behind", sent]:
            raise DataLossError(
                f"{where} has {sent} rows of {name}, and had acknowledged {numbers.partition(' ')[0]}: it has lost "
                f"rows. {CHOICES}"
            )
        case ["type", key, kind]:
            raise SinkError(f"{where}: key {key!r} is a {kind}, and not a {form}. Nothing of the delivery is written")
        case ["full", key, newest]:
            raise SinkError(
                f"{where}: stream {key!r} has no ids left after {newest}. Nothing of the delivery is written: delete "
                "the stream, or lower its id with XSETID"
            )
        case _:
            raise SinkError(
                f"{where}: this user lacks a right to {_RIGHTS[form]}: {words}. Nothing of the delivery is written"
            )


_RIGHTS: Final = {"stream": "HSET, XADD or XINFO STREAM", "hash": "HSET or HDEL", "list": "HSET or RPUSH"}
