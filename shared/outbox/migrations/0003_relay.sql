-- What the relay's floor and its operators need beside the outbox.

-- A dead row that an operator gave up: kept, never sent, in nobody's way.
alter table messaging.outbox add column skipped_at timestamptz;

-- Dead rows that wait for an operator, and the rows held behind them, each by key. Both are empty in a healthy
-- outbox: an insert and a mark only evaluate the conditions.
create index outbox_dead_idx on messaging.outbox (topic, aggregateid, seq)
    where dead_at is not null and skipped_at is null;
create index outbox_held_idx on messaging.outbox (topic, aggregateid, seq)
    where held_at is not null;

-- How often rows of a bucket came back among the unsent ones (`relay dead retry`, `relay dead skip`). They lie below
-- the relays' floors: a relay that sees another number than before, in the snapshot of its fetch, reads the bucket
-- from its very start. Not a column of relay_lease: that row has a new version every few seconds, and the fetch
-- would walk them all behind a long transaction.
create table messaging.relay_requeue (
    bucket smallint not null,
    times bigint not null default 0,
    constraint relay_requeue_pkey primary key (bucket),
    constraint relay_requeue_bucket_check check (bucket between 0 and 63)
);
insert into messaging.relay_requeue (bucket) select generate_series(0, 63);

-- Changes when another server answers: after a failover, marks and rows may be gone that a relay has seen.
create function messaging.relay_server() returns bigint
language sql stable
as $$ select (extract(epoch from pg_postmaster_start_time()) * 1000000)::bigint $$;
