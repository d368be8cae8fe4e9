-- Unsent rows of some buckets above their cursors, and the seqs that lie unsent behind them.
--
-- One statement, hence one snapshot, tells both. Two statements could miss a row between them: a transaction that
-- drew its seq early and committed late. The next row of its key, already above the cursor, would overtake it.
-- Bounds and order are pairs, which only the index of unsent rows can serve: with single columns the planner likes
-- the primary key while most rows are unsent, and keeps it when a million sent ones lie before them.
-- The lateral limit keeps the index condition and needs no sort; the running sum bounds memory.
with page as (
    select p.bucket, p.after, p.take
    from unnest($1::smallint[], $2::bigint[], $3::bigint[]) as p (bucket, after, take)
)
select
    page.bucket as "bucket!",
    array(
        select o.seq from messaging.outbox o
        where (o.bucket, o.seq) > (page.bucket, 0) and (o.bucket, o.seq) <= (page.bucket, page.after)
            and o.sent_at is null and o.dead_at is null and o.held_at is null
            and o.topic <> all ($4::text[])
    ) as "behind: Vec<i64>",
    null::bigint as "seq?", null::uuid as "id?", null::text as "aggregateid?", null::text as "type?",
    null::text as "topic?", null::bytea as "payload?", null::text as "traceparent?",
    null::text as "tracestate?", null::jsonb as "headers?", null::timestamptz as "created_at?",
    null::boolean as "blocked?"
from page
where page.after > 0
union all
select
    page.bucket, null, r.seq, r.id, r.aggregateid, r.type, r.topic, r.payload, r.traceparent,
    r.tracestate, r.headers, r.created_at,
    exists (
        select from messaging.outbox_blocked b where b.topic = r.topic and b.key = r.aggregateid
    )
from page
cross join lateral (
    select
        o.seq, o.id, o.aggregateid, o.type, o.topic, o.payload, o.traceparent, o.tracestate, o.headers,
        o.created_at,
        sum(octet_length(o.payload)) over (order by o.bucket, o.seq) - octet_length(o.payload) as before
    from (
        select bucket, seq, id, aggregateid, type, topic, payload, traceparent, tracestate, headers, created_at
        from messaging.outbox o
        where (o.bucket, o.seq) > (page.bucket, page.after) and (o.bucket, o.seq) < (page.bucket + 1, 0)
            and o.sent_at is null and o.dead_at is null and o.held_at is null
            and o.topic <> all ($4::text[])
        order by o.bucket, o.seq
        limit page.take
    ) o
) r
where r.before < $5
