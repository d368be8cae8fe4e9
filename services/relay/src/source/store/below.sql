-- Unsent rows up to each bucket's floor: there should be none.
select p.bucket as "bucket!", messaging.relay_server() + q.times as "era!", w.unsent as "unsent!"
from unnest($1::smallint[], $2::bigint[]) as p (bucket, floor)
join messaging.relay_requeue q on q.bucket = p.bucket
cross join lateral (
    select count(*) as unsent
    from (
        select from messaging.outbox o
        where (o.bucket, o.seq) > (p.bucket, 0) and (o.bucket, o.seq) <= (p.bucket, p.floor)
            and o.sent_at is null and o.dead_at is null and o.held_at is null
            and o.topic <> all ($3::text[])
            and (cardinality($5::text[]) = 0 or p.bucket || ':' || o.topic <> all ($5))
        limit $4
    ) o
) w
where w.unsent > 0
