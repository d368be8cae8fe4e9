-- A row written within the retention cannot be past it, and seq order is about the order of writing: there the pass
-- ends. So a pass reads what it deletes, and one step more.
with cutoff as materialized (
    select messaging.now() - make_interval(secs => $2) as at
),
step as materialized (
    select seq, created_at from messaging.outbox where seq > $1 order by seq limit 1000
),
gone as (
    delete from messaging.outbox o using step, cutoff
    where o.seq = step.seq and o.sent_at < cutoff.at
    returning 1
)
select
    (select count(*) from gone) as "rows!",
    (select max(seq) from step) as last,
    (select coalesce(bool_or(created_at >= cutoff.at), true) from step, cutoff) as "young!"
