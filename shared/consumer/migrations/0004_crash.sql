-- Starts that have not ended: an assignment of a partition whose process neither committed an offset since nor gave
-- the partition up in order. One row per partition at most; the first commit deletes it.
create table messaging.consumer_start (
    consumer_group text not null,
    topic text not null,
    partition integer not null,
    -- Where the assignment began to read. A start at another offset is a new story.
    first_offset bigint not null,
    -- Behind the largest first batch of these starts: what may have ended the process lies before it.
    until_offset bigint not null,
    starts integer not null,
    -- The assignment that wrote the row, so that a late one deletes nothing of its successor, and a statement whose
    -- answer was lost counts once.
    assignment uuid not null,
    started_at timestamptz not null,
    constraint consumer_start_pkey primary key (consumer_group, topic, partition)
);

-- Messages that a handler has begun and not ended. Written only where crashes are looked for.
create table messaging.suspect (
    consumer_group text not null,
    message_id uuid not null,
    -- A replay is a story of its own.
    replay_id uuid,
    -- How often it was begun without an end, this time included.
    crashes integer not null,
    assignment uuid not null,
    begun_at timestamptz not null,
    constraint suspect_pkey primary key (consumer_group, message_id)
);
