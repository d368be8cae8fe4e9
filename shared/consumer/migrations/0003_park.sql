-- The park: keys of which a message failed, with the messages that wait behind it, in order.

create table messaging.parked_key (
    id bigint generated always as identity,
    consumer_group text not null,
    -- Source topic, with its prefix.
    topic text not null,
    -- Of a message without a key (keyless) the bytes of its id: it is parked alone and ordered with nothing.
    key bytea not null,
    keyless boolean not null,
    -- A key may be larger than an index entry.
    key_hash bytea not null generated always as (sha256(key)) stored,
    -- Blocked: after a dead letter, until an operator releases it.
    state text not null default 'waiting',
    -- The next three speak of the first message that is not a replay: failed attempts so far, since when, and when to
    -- try it again.
    attempts int not null,
    first_failed_at timestamptz,
    due_at timestamptz not null,
    parked_at timestamptz not null,
    constraint parked_key_pkey primary key (id),
    constraint parked_key_key unique (consumer_group, topic, key_hash, keyless),
    constraint parked_key_state_check check (state in ('waiting', 'blocked')),
    constraint parked_key_attempts_check check (attempts >= 0)
);

create index parked_key_due_idx on messaging.parked_key (consumer_group, topic, due_at) where state = 'waiting';

create table messaging.parked_message (
    -- Order of arrival: replays before the others, each by position.
    position bigint generated always as identity,
    parked_key_id bigint not null,
    consumer_group text not null,
    message_id uuid not null,
    -- Of a replay, which goes before the others and gets one attempt.
    replay_id uuid,
    -- The record as it was read.
    read_from text not null,
    record_partition int not null,
    record_offset bigint not null,
    record_timestamp_ms bigint,
    -- Null is Kafka's null, not an empty value.
    value bytea,
    -- [[name, value], ...] in order, duplicates kept. A value is null, a text, or the array of its bytes where these
    -- are no text. Not jsonb, which would refuse some texts.
    headers json not null,
    parked_at timestamptz not null,
    -- Of a replay: when to look at it again.
    due_at timestamptz,
    -- Of a replay: a transaction that began when the park was seen to be there. It is handled once every transaction
    -- before this one has ended, for those may be handling a message of its key without knowing of the park.
    fence xid8,
    -- Of a replay that is finished: what is to be told. It is no head any more.
    outcome text,
    -- It has failed for good, and its dead letter is not acknowledged yet.
    dead boolean not null default false,
    -- The last failure.
    error_code text,
    error_class text,
    error_text text,
    failed_at timestamptz,
    failed_traceparent text,
    constraint parked_message_pkey primary key (position),
    constraint parked_message_key_fkey foreign key (parked_key_id) references messaging.parked_key (id),
    constraint parked_message_replay_check check ((replay_id is null) = (due_at is null)),
    constraint parked_message_outcome_check check (outcome is null or replay_id is not null),
    constraint parked_message_outcome_values_check check (outcome in ('resolved', 'already_processed'))
);

-- The head of a key, and the check that a key is empty.
create index parked_message_head_idx on messaging.parked_message (parked_key_id, (replay_id is null), position);

-- A redelivery meets its first copy. A replay may come while that is still here, so it counts for itself.
create unique index parked_message_id_idx on messaging.parked_message (consumer_group, message_id)
    where replay_id is null;
create unique index parked_message_replay_idx on messaging.parked_message (consumer_group, message_id, replay_id)
    where replay_id is not null;

create index parked_message_replay_due_idx on messaging.parked_message (due_at) where replay_id is not null;

-- Queues are small or empty most of the time and turn over completely: they must not wait for a fifth to be dead.
alter table messaging.parked_key set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
alter table messaging.parked_message set (autovacuum_vacuum_scale_factor = 0.02, autovacuum_vacuum_threshold = 200);
