-- Durable tasks. Everything lives in schema `messaging`, apart from the tables of the service that owns the database.

create schema if not exists messaging;

-- The clock of run times, leases and retention: `messaging.now()`, which tests replace, where the outbox or the
-- consumer brought it. It is not made here: the outbox's first migration makes it and stops at one that is there.
-- So tasks can be migrated before or after either of them, or alone.
create function messaging.task_now() returns timestamptz
language plpgsql volatile
as $$
begin
    if to_regprocedure('messaging.now()') is null then
        return clock_timestamp();
    end if;
    return messaging.now();
end
$$;

comment on function messaging.task_now() is 'messaging.now() where there is one, else clock_timestamp().';

create table messaging.task (
    -- UUIDv7 by whoever enqueues: its order is nearly that of creation, by which operators page and the purge walks.
    id uuid not null,
    kind text not null,
    -- Tasks with the same order key run one after the other, by seq. Null: no order.
    key text,
    seq bigint generated always as identity (cache 1),
    payload jsonb not null,
    status text not null default 'pending',
    -- Pending: not before. Running: end of the lease, after which anybody may take the task over.
    run_at timestamptz not null,
    -- Proof of the running attempt: fresh at each claim, and every write of the attempt names it.
    token uuid,
    -- Claims so far, so that an attempt which ends with its process counts as well.
    attempts integer not null default 0,
    cancel_requested_at timestamptz,
    -- Of the transaction that enqueued; never rewritten, each attempt is a child of it.
    traceparent text,
    tracestate text,
    last_error text,
    created_at timestamptz not null default messaging.task_now(),
    updated_at timestamptz not null default messaging.task_now(),
    constraint task_pkey primary key (id),
    constraint task_kind_check check (kind <> ''),
    constraint task_key_check check (key <> ''),
    constraint task_status_check check (status in ('pending', 'running', 'done', 'failed', 'cancelled')),
    constraint task_token_check check ((status = 'running') = (token is not null))
) with (
    -- Every change moves a row in or out of an index. A share of a table with days of finished tasks would vacuum
    -- too late for the few open ones.
    autovacuum_vacuum_scale_factor = 0,
    autovacuum_vacuum_threshold = 10000,
    autovacuum_vacuum_insert_scale_factor = 0,
    autovacuum_vacuum_insert_threshold = 100000,
    autovacuum_analyze_scale_factor = 0,
    autovacuum_analyze_threshold = 50000
);

-- What the poller reads, in this order and in bounded windows. It holds open tasks only.
create index task_due_idx on messaging.task (run_at, seq) where status in ('pending', 'running');

-- Which task of a key is next? The running one, else the first: one look here, however many wait.
create index task_key_idx on messaging.task (key, (status <> 'running'), seq)
    where key is not null and status in ('pending', 'running');

-- Never two running tasks of one key, also when two claims could not see each other.
create unique index task_running_key_idx on messaging.task (key) where key is not null and status = 'running';

-- What an operator looks for, and what is counted for the alarm. Empty when all is well.
create index task_failed_idx on messaging.task (id) where status = 'failed';
