-- The lowest unsent row of each bucket above its floor, and whose transactions have ended: one snapshot.
select
    p.bucket as "bucket!", messaging.relay_server() + q.times as "era!",
    pg_snapshot_xmin(pg_current_snapshot())::text::bigint as "xmin!",
    w.lowest, w.passed, w.read as "read!"
from unnest($1::smallint[], $2::bigint[]) as p (bucket, floor)
join messaging.relay_requeue q on q.bucket = p.bucket
cross join lateral (
    select
        min(o.seq) filter (
            where o.topic <> all ($3::text[])
                and (cardinality($5::text[]) = 0 or p.bucket || ':' || o.topic <> all ($5))
        ) as lowest,
        max(o.seq) as passed, count(*) as read
    from (
        select o.seq, o.topic from messaging.outbox o
        where (o.bucket, o.seq) > (p.bucket, p.floor) and (o.bucket, o.seq) < (p.bucket + 1, 0)
            and o.sent_at is null and o.dead_at is null and o.held_at is null
        order by o.bucket, o.seq
        limit $4
    ) o
) w
