-- The inbox: which messages a group has finished with. A committed `done` row means exactly that the handler's
-- effect committed in the same transaction; a `dead` row means that the dead-letter topic has acknowledged it.
create table messaging.processed_message (
    consumer_group text not null,
    message_id uuid not null,
    processed_at timestamptz not null default clock_timestamp(),
    outcome text not null,
    -- Set by the replay that resolved a dead message.
    replay_id uuid,
    constraint processed_message_pkey primary key (consumer_group, message_id),
    constraint processed_message_outcome_check check (outcome in ('done', 'dead'))
);

-- Rows arrive in time order, so the purge by age needs no more than a block range index.
create index processed_message_processed_at_idx on messaging.processed_message using brin (processed_at);
