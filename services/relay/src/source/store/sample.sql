-- The first unsent row of each bucket: a few index probes, whatever the backlog. Pairs as in fetch.sql. Every count
-- ends at a limit.
select
    coalesce((
        select max(extract(epoch from clock_timestamp() - first.created_at))::float8
        from unnest($1::smallint[]) as mine (bucket)
        cross join lateral (
            select o.created_at from messaging.outbox o
            where (o.bucket, o.seq) > (mine.bucket, 0) and (o.bucket, o.seq) < (mine.bucket + 1, 0)
                and o.sent_at is null and o.dead_at is null and o.held_at is null
            order by o.bucket, o.seq limit 1
        ) first
    ), 0) as "oldest!",
    (select count(*) from (
        select from unnest($1::smallint[]) as mine (bucket)
        cross join lateral (
            select from messaging.outbox o
            where (o.bucket, o.seq) > (mine.bucket, 0) and (o.bucket, o.seq) < (mine.bucket + 1, 0)
                and o.sent_at is null and o.dead_at is null and o.held_at is null
            limit $2
        ) o
        limit $2
    ) unsent) as "unsent!",
    (select count(*) from (
        select from (select seq from messaging.outbox_blocked limit $2) b
        join messaging.outbox o on o.seq = b.seq
        where o.bucket = any ($1)
    ) blocked) as "blocked!",
    (select count(*) from (
        select from messaging.outbox o
        where o.dead_at is not null and o.skipped_at is null and o.bucket = any ($1)
        limit $2
    ) dead) as "dead!",
    (select count(*) from (
        select from messaging.outbox o where o.held_at is not null and o.bucket = any ($1) limit $2
    ) held) as "held!",
    coalesce((
        select max(extract(epoch from clock_timestamp() - first.created_at))::float8
        from (select topic, key from messaging.outbox_blocked limit $2) b
        cross join lateral (
            select o.bucket, o.created_at from messaging.outbox o
            where o.topic = b.topic and o.aggregateid = b.key and o.held_at is not null
            order by o.topic, o.aggregateid, o.seq limit 1
        ) first
        where first.bucket = any ($1)
    ), 0) as "oldest_held!"
