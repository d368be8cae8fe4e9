-- Unsent rows of some buckets above their cursors, and the seqs that lie unsent behind them.
--
-- One statement, hence one snapshot, tells both. Two statements could miss a row between them: a transaction that
-- drew its seq early and committed late. The next row of its key, already above the cursor, would overtake it.
-- Behind means above the floor: below it nothing unsent is left, unless the bucket's era changed (another server, or
-- rows that an operator brought back), and that is told in the same snapshot too.
-- Bounds and order are pairs, which only the index of unsent rows can serve: with single columns the planner likes
-- the primary key while most rows are unsent, and keeps it when a million sent ones lie before them.
-- The inner limit keeps the index condition, needs no sort, and bounds what a topic that is left out can cost: at
-- most $8 of its rows are passed over in one fetch. The running sum bounds memory.
with page as (
    select p.bucket, p.after, p.take, p.bytes, p.floor, p.known, messaging.relay_server() + q.times as era
    from unnest($1::smallint[], $2::bigint[], $3::bigint[], $5::bigint[], $6::bigint[], $7::bigint[])
        as p (bucket, after, take, bytes, floor, known)
    join messaging.relay_requeue q on q.bucket = p.bucket
)
select
    page.bucket as "bucket!", page.era as "era?",
    array(
        select o.seq from messaging.outbox o
        where (o.bucket, o.seq) > (page.bucket, page.floor) and (o.bucket, o.seq) <= (page.bucket, page.after)
            and o.sent_at is null and o.dead_at is null and o.held_at is null
            and o.topic <> all ($4::text[])
            and (cardinality($9::text[]) = 0 or o.bucket || ':' || o.topic <> all ($9))
    ) as "behind: Vec<i64>",
    null::bigint as "seq?", null::uuid as "id?", null::text as "aggregateid?", null::text as "type?",
    null::text as "topic?", null::bytea as "payload?", null::text as "traceparent?",
    null::text as "tracestate?", null::jsonb as "headers?", null::timestamptz as "created_at?",
    null::boolean as "retried?", null::boolean as "blocked?"
from page
where page.after > page.floor or page.known is distinct from page.era
union all
select
    page.bucket, null, null, r.seq, r.id, r.aggregateid, r.type, r.topic, case when r.wanted then r.payload end,
    r.traceparent, r.tracestate, r.headers, r.created_at, r.retried,
    r.wanted and exists (
        select from messaging.outbox_blocked b
        where b.topic = r.topic and b.key = r.aggregateid and b.seq < r.seq
    )
from page
cross join lateral (
    select
        o.seq, o.id, o.aggregateid, o.type, o.topic, o.payload, o.traceparent, o.tracestate, o.headers,
        o.created_at, o.retried, o.wanted,
        sum(case when o.wanted then octet_length(o.payload) else 0 end) over seen
            - case when o.wanted then octet_length(o.payload) else 0 end as before,
        count(*) filter (where o.wanted) over seen as place,
        lead(o.seq) over seen is null as last
    from (
        select
            bucket, seq, id, aggregateid, type, topic, payload, traceparent, tracestate, headers, created_at,
            attempts > 0 as retried,
            topic <> all ($4::text[])
                and (cardinality($9::text[]) = 0 or bucket || ':' || topic <> all ($9)) as wanted
        from messaging.outbox o
        where (o.bucket, o.seq) > (page.bucket, page.after) and (o.bucket, o.seq) < (page.bucket + 1, 0)
            and o.sent_at is null and o.dead_at is null and o.held_at is null
        order by o.bucket, o.seq
        limit greatest(page.take, $8::bigint)
    ) o
    window seen as (order by o.bucket, o.seq)
) r
where r.before < page.bytes and r.place <= page.take and (r.wanted or r.last)
