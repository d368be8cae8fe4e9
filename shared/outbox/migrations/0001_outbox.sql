-- The transactional outbox: its table, the one way into it, and what the relay keeps beside it.
-- Everything lives in schema `messaging`, apart from the tables of the service that owns the database.

create schema if not exists messaging;

-- The clock of leases, due times and retention. Tests replace this function to step the clock. It may be there
-- already: the inbox has the same one.
create or replace function messaging.now() returns timestamptz
language sql volatile
as $$ select clock_timestamp() $$;

comment on function messaging.now() is
    'Clock of leases, due times and retention; replaced in tests to step the clock.';

-- The hash of Kafka's own partitioner (murmur2 over the key's UTF-8 bytes, sign bit cleared) modulo 64.
-- Partition counts divide 64, so one bucket feeds one partition of a topic. A product below 2^63 never
-- overflows: both factors of each multiplication are below 2^32 and the constant is below 2^31.
create function messaging.bucket(key text) returns smallint
language plpgsql immutable strict parallel safe
as $$
declare
    m constant bigint := 1540483477;  -- 0x5bd1e995
    mask constant bigint := 4294967295;
    bytes constant bytea := convert_to(key, 'UTF8');
    length constant integer := octet_length(bytes);
    h bigint := (2538058380 # length) & mask;  -- seed 0x9747b28c
    k bigint;
    i integer := 0;
    rest integer;
begin
    while i + 4 <= length loop
        k := get_byte(bytes, i)::bigint | (get_byte(bytes, i + 1)::bigint << 8)
            | (get_byte(bytes, i + 2)::bigint << 16) | (get_byte(bytes, i + 3)::bigint << 24);
        k := (k * m) & mask;
        k := k # (k >> 24);
        k := (k * m) & mask;
        h := (h * m) & mask;
        h := h # k;
        i := i + 4;
    end loop;
    rest := length - i;
    if rest >= 3 then h := h # (get_byte(bytes, i + 2)::bigint << 16); end if;
    if rest >= 2 then h := h # (get_byte(bytes, i + 1)::bigint << 8); end if;
    if rest >= 1 then
        h := h # get_byte(bytes, i)::bigint;
        h := (h * m) & mask;
    end if;
    h := h # (h >> 13);
    h := (h * m) & mask;
    h := h # (h >> 15);
    return ((h & 2147483647) % 64)::smallint;
end
$$;

create table messaging.outbox (
    -- Order of publication. CACHE 1: with more, each session would draw a block of its own and
    -- two sessions writing one key would invert it.
    seq bigint generated always as identity (cache 1),
    -- The message id that consumers deduplicate by. Not `seq`, which restarts after a restore.
    id uuid not null,
    bucket smallint not null,
    -- Column names of Debezium's outbox event router, so that it can read the same table.
    aggregatetype text not null,
    aggregateid text not null,
    type text not null,
    topic text not null,
    payload bytea not null,
    -- A header that matters has a column: Debezium places one column in one header.
    traceparent text,
    tracestate text,
    headers jsonb,
    -- Not now(): that is the start of the transaction.
    created_at timestamptz not null default clock_timestamp(),
    -- Set only after the broker acknowledged the record.
    sent_at timestamptz,
    attempts integer not null default 0,
    first_failed_at timestamptz,
    dead_at timestamptz,
    -- Set on rows behind a dead row of the same topic and key: out of the index, so they starve nobody.
    held_at timestamptz,
    last_error text,
    constraint outbox_pkey primary key (seq),
    constraint outbox_bucket_check check (bucket between 0 and 63)
) with (
    -- Room for the row's second version on its page: the mark is then cheaper.
    fillfactor = 60,
    -- A share of a large table would come too late; a fixed threshold keeps the dead entries few.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 20000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000
);

-- The one secondary index. It holds unsent rows only.
create index outbox_unsent_idx on messaging.outbox (bucket, seq)
    where sent_at is null and dead_at is null and held_at is null;

-- Bytes that a record needs beside key, payload and free headers: our own headers' names and values.
create function messaging.record_overhead() returns integer
language sql immutable parallel safe
as $$ select 1024 $$;

-- The one way in. Lock, insert or update the aggregate's row first, then append its event.
create function messaging.append(
    id uuid,
    aggregatetype text,
    aggregateid text,
    type text,
    topic text,
    payload bytea,
    traceparent text default null,
    tracestate text default null,
    headers jsonb default null,
    max_bytes integer default 1048576
) returns bigint
language plpgsql volatile
as $$
#variable_conflict use_column
declare
    size bigint;
    appended bigint;
begin
    -- Rule: the transaction has its xid before it draws a seq. The relay's floor is proven by xids:
    -- a seq drawn without one could appear below a floor that was already published.
    perform pg_current_xact_id();
    if append.id is null or append.payload is null
        or coalesce(append.aggregatetype, '') = '' or coalesce(append.aggregateid, '') = ''
        or coalesce(append.type, '') = '' or coalesce(append.topic, '') = '' then
        raise exception 'outbox: id, aggregatetype, aggregateid, type, topic and payload must be given'
            using errcode = 'invalid_parameter_value';
    end if;
    if append.headers is not null and jsonb_typeof(append.headers) <> 'object' then
        raise exception 'outbox: headers must be a JSON object of strings, not %', jsonb_typeof(append.headers)
            using errcode = 'invalid_parameter_value';
    end if;
    size := octet_length(append.aggregateid) + octet_length(append.payload)
        + coalesce(octet_length(append.headers::text), 0) + messaging.record_overhead();
    if size > append.max_bytes then
        raise exception 'outbox: event % of % "%" needs % bytes, topic "%" takes %',
            append.type, append.aggregatetype, append.aggregateid, size, append.topic, append.max_bytes
            using errcode = 'program_limit_exceeded',
                  hint = 'Publish less in one event, or raise outbox.max_bytes together with the topic''s max.message.bytes.';
    end if;
    insert into messaging.outbox
        (id, bucket, aggregatetype, aggregateid, type, topic, payload, traceparent, tracestate, headers)
    values
        (append.id, messaging.bucket(append.aggregateid), append.aggregatetype, append.aggregateid, append.type,
         append.topic, append.payload, append.traceparent, append.tracestate, append.headers)
    returning seq into appended;
    return appended;
end
$$;

-- One lease per bucket; `epoch` rises with every change of owner.
create table messaging.relay_lease (
    bucket smallint not null,
    owner text,
    epoch bigint not null default 0,
    expires_at timestamptz not null default '-infinity',
    constraint relay_lease_pkey primary key (bucket),
    constraint relay_lease_bucket_check check (bucket between 0 and 63)
);
insert into messaging.relay_lease (bucket) select generate_series(0, 63);

-- Heartbeats of relay instances: their number decides each one's fair share of buckets.
create table messaging.relay_instance (
    id text not null,
    last_seen timestamptz not null,
    constraint relay_instance_pkey primary key (id)
);

-- Keys that a dead row blocks.
create table messaging.outbox_blocked (
    topic text not null,
    key text not null,
    seq bigint not null,
    blocked_at timestamptz not null,
    constraint outbox_blocked_pkey primary key (topic, key)
);

-- A scheduled job runs on one instance at a time: whoever holds its row.
create table messaging.job_lease (
    job text not null,
    owner text,
    expires_at timestamptz not null default '-infinity',
    last_success_at timestamptz,
    constraint job_lease_pkey primary key (job)
);
